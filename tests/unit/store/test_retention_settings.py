"""Delivery rows are kept for the configured time, and at least as long as they are needed."""

import asyncio
from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.kernel.errors import ConfigError
from shoal.store.retention import bookkeeping_days
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock, in_time
from shoal.testing.database import empty_database


@pytest.mark.parametrize(
    ("settings", "days"),
    [
        ({}, 30),
        ({"database": {"bookkeeping_days": 0}}, 0),
        ({"database": {"bookkeeping_days": 90.5}}, 90.5),
        ({"database": {"bookkeeping_days": 1}}, 8),
        ({"context": {"backfill_hours": 960}}, 41),
        ({"database": {"bookkeeping_days": 0}, "context": {"backfill_hours": 960}}, 0),
    ],
)
async def test_rows_are_kept_as_long_as_redelivery_is_possible(
    tmp_path: Path, settings: dict[str, object], days: float
) -> None:
    clock = ManualClock()
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), clock)
    kept = bookkeeping_days(load_config(tmp_path, {}, settings))
    assert kept == days
    async with asyncio.timeout(60):
        assert await in_time(clock, store.bookkeeping.expire(kept)) == 0
    await store.close()


@pytest.mark.parametrize(("repeat_seconds", "days"), [(3600, 30), (86_400 * 35, 36), (10**12, 10_000)])
def test_rows_are_kept_while_features_need_them(tmp_path: Path, repeat_seconds: float, days: float) -> None:
    assert bookkeeping_days(load_config(tmp_path, {}, {}), repeat_seconds) == days


@pytest.mark.parametrize(("section", "key"), [("database", "bookkeeping_days"), ("context", "artifact_days")])
@pytest.mark.parametrize("days", [-1, 1e6])
def test_an_impossible_number_of_days_is_refused(tmp_path: Path, section: str, key: str, days: float) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(tmp_path, {}, {section: {key: days}})
