"""The store contract over PostgreSQL."""

from collections.abc import AsyncIterator

import pytest
from tests.contracts.feature_stores import FeatureRules
from tests.postgres import empty

from shoal.store.postgres import PoolSettings, open_postgres
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.store import StoreContract


@pytest.mark.xdist_group("postgres")
class TestPostgresStore(StoreContract, FeatureRules):
    """The contract over a connection pool for one database."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, postgres_database: str, clock: ManualClock) -> AsyncIterator[Store]:
        empty(postgres_database)
        driver = await open_postgres(postgres_database, PoolSettings(connections_max=8))
        yield Store(driver, clock)
        await driver.close()
