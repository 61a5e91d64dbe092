"""Deletion of old rows that were needed only for delivery.

rows                          never deleted while
---------------------------   ----------------------------------------------------------------------
inbox                         pending, or sent to a subagent whose caller's turn is open
outbox                        pending or being sent
approvals                     pending, requested by an open turn, or valid for the whole thread
thread_steps                  recorded by an open turn
settings, scope `once`        (always deleted)
tables of features            (defined by the feature's queries)
budget                        not limited to a day or a turn, or belonging to an open turn

Tables are scanned by key, one page per step, on a read-only connection. Only pages with old rows are written to. If
keys sort by time, a scan ends at the first page without old rows. Rows locked by another process are skipped, because
they are in use or that process is deleting them.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import NamedTuple

from shoal.kernel.clock import Clock, sleep_till_steady, to_micros
from shoal.kernel.ids import format_ulid
from shoal.kernel.settings import Config
from shoal.kernel.webhooks import REPEATED_SECONDS
from shoal.store.driver import Driver, Row, StorePart, Value, number

log = logging.getLogger(__name__)

BATCH_ROWS = 500
PAUSE_SECONDS = 0.1
"""Seconds between batches, so that other writes can proceed."""
FIRST_SECONDS = 600.0
"""Seconds between the start and the first run. Interrupted requests may be repeated in that time and are recognized by
their rows.
"""
EVERY_SECONDS = 86_400.0
_EARLIEST = b"\0" * 10


class Walk(NamedTuple):
    """A table that is scanned with the queries `TABLE_page` and `TABLE_forget`.

    `first` sorts before all keys of the table. If `is_by_time` is True, later rows have higher keys.
    """

    table: str
    first: Row
    is_by_time: bool


WALKS = (
    Walk("inbox", (0,), True),
    Walk("outbox", (0,), True),
    Walk("approvals", ("",), True),
    Walk("steps", ("", 0), False),
    Walk("once", ("",), False),
)
"""Tables that the core scans. Features add their own tables."""


class Bookkeeping(StorePart):
    def __init__(self, driver: Driver, clock: Clock) -> None:
        super().__init__(driver, clock)
        self.walks = [*WALKS]
        self.repeat_seconds = REPEATED_SECONDS
        """Seconds for which a repeated request must be recognized by its row. Features can increase it."""

    async def run(self, days: float) -> None:
        """Delete rows that finished more than `days` days ago. The first run starts after FIRST_SECONDS, and later runs
        are daily. 0 days means never.

        Runs until cancelled. Raises StoreError.
        """
        seconds = FIRST_SECONDS
        while days:
            await sleep_till_steady(self._clock, seconds)
            await self.expire(days)
            seconds = EVERY_SECONDS

    async def expire(self, days: float) -> int:
        total = 0
        async with aclosing(self.forget(self._clock.now() - timedelta(days=days))) as batches:
            async for gone in batches:
                total += gone
                await self._clock.sleep(PAUSE_SECONDS)
        if total:
            log.info("deleted old rows", extra={"rows": total})
        return total

    async def forget(self, before: datetime, batch_rows: int = BATCH_ROWS) -> AsyncGenerator[int]:
        """Delete rows that finished before this time, at most `batch_rows` per transaction.

        Yield the number of rows that each transaction deleted, so the caller can pause in between. Rows that are
        waiting or may still be needed are kept. Several processes can run this concurrently.
        """
        for table, first, is_by_time in self.walks:
            after = first
            while page := await self._read(f"{table}_page", **_named("after", after), limit=batch_rows):
                upto = page[-1][: len(after)]
                has_old = any(number(row[-1]) < to_micros(before) for row in page)
                if is_by_time and not has_old:
                    break
                span = {**_named("after", after), **_named("upto", upto)}
                yield len(await self._write(f"{table}_forget", **span, before=before)) if has_old else 0
                after = upto
        day = before.date().isoformat()
        turn = f"turn:{format_ulid(to_micros(before) // 1000, _EARLIEST)}"
        for name, where in (("budget_days_forget", {"day": day}), ("budget_turns_forget", {"turn": turn})):
            gone = batch_rows
            while gone == batch_rows:
                gone = len(await self._write(name, **where, limit=batch_rows))
                yield gone


def _named(name: str, key: Row) -> dict[str, Value]:
    return dict(zip((name, f"{name}_at"), key, strict=False))


MARGIN_DAYS = 1.0
"""Days added to the retention period, because the platforms' clocks may differ."""
KEPT_DAYS_MAX = 10_000.0
"""Maximum retention period in days. A date that far in the past is still valid."""


def bookkeeping_days(config: Config, repeat_seconds: float = REPEATED_SECONDS) -> float:
    """Return the number of days for which finished rows are kept. 0 keeps them permanently.

    This is `database.bookkeeping_days`, or the period in which a platform may redeliver a message if that is longer.
    """
    days, again = config.database.bookkeeping_days, config.context.backfill_hours / 24
    longest = max(repeat_seconds / 86_400, again) + MARGIN_DAYS
    return min(max(days, longest), KEPT_DAYS_MAX) if days else 0.0
