"""The mailbox state machine on SQLite and on PostgreSQL."""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.contracts.mailbox_machine import MailboxMachine
from tests.postgres import empty

from shoal.store.postgres import PoolSettings, open_postgres
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database


def run(open_store: Callable[[], Awaitable[Store]], *, examples: int, steps: int) -> None:
    class Machine(MailboxMachine):
        def __init__(self) -> None:
            super().__init__(open_store)

    limits = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(Machine, settings=limits)


@pytest.mark.slow
def test_the_sqlite_mailbox_passes_the_state_machine(tmp_path: Path) -> None:
    async def open_store() -> Store:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        return Store(SqliteDriver(empty_database(folder / "shoal.db"), synchronous="OFF"), ManualClock())

    run(open_store, examples=60, steps=40)


@pytest.mark.slow
@pytest.mark.xdist_group("postgres")
def test_the_postgres_mailbox_passes_the_state_machine(postgres_database: str) -> None:
    async def open_store() -> Store:
        driver = await open_postgres(postgres_database, PoolSettings(connections_max=2))
        empty(postgres_database)
        return Store(driver, ManualClock())

    run(open_store, examples=12, steps=30)
