"""The store contract over SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.feature_stores import FeatureRules

from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.store import StoreContract
from shoal.testing.database import empty_database


class TestSqliteStore(StoreContract, FeatureRules):
    """The contract with one file and one process."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
        store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), clock)
        yield store
        await store.close()
