"""Which rows go once they are done, and when: those that only served delivery.

rows                          go when they are old, unless
---------------------------   ----------------------------------------------------------------------
inbox                         it is pending, or a subagent's whose caller's turn is open
outbox                        it is pending or at its platform
approvals                     it is pending, its turn is open, or it holds for the whole thread
thread_steps                  its turn is open
settings, scope `once`        -
what features add             -
budget                        it is of no day and no turn, or of a turn that is open

Tables are walked by their keys, a page a step, which is read beside the writer; only a page that holds something old
is written to. Where keys sort by time, a walk ends with the first page that is young. What another process has locked
is skipped: it is in use, or that process deletes it.
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
"""Most rows that one statement deletes."""
PAUSE_SECONDS = 0.1
"""Between two batches, for everybody else."""
FIRST_SECONDS = 600.0
"""Time after the start in which whatever its end had cut off comes again, and is known."""
EVERY_SECONDS = 86_400.0
_EARLIEST = b"\0" * 10


class Walk(NamedTuple):
    """A table, by the name of its queries `TABLE_page` and `TABLE_forget`. `first` is a key before all of its keys;
    `is_by_time`: later rows have higher keys."""

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
"""The tables of the core; features add theirs."""


class Bookkeeping(StorePart):
    """Rows that only served delivery, once they are done."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        super().__init__(driver, clock)
        self.walks = [*WALKS]
        self.repeat_seconds = REPEATED_SECONDS
        """Longest time after which something may come again that is recognized by its row. Features raise it."""

    async def run(self, days: float) -> None:
        """Delete what has been done for longer than `days` (0: never), some minutes after the start and then once a
        day, for ever. Raises StoreError."""
        seconds = FIRST_SECONDS
        while days:
            await sleep_till_steady(self._clock, seconds)
            await self.expire(days)
            seconds = EVERY_SECONDS

    async def expire(self, days: float) -> int:
        """Delete what is old now, with pauses; returns how many rows went."""
        total = 0
        async with aclosing(self.forget(self._clock.now() - timedelta(days=days))) as batches:
            async for gone in batches:
                total += gone
                await self._clock.sleep(PAUSE_SECONDS)
        if total:
            log.info("old rows were deleted", extra={"rows": total})
        return total

    async def forget(self, before: datetime, batch_rows: int = BATCH_ROWS) -> AsyncGenerator[int]:
        """Delete those that have been done since before this time, at most `batch_rows` a step, each durable by itself.

        Yields how many rows each step deleted; whoever asks pauses between them. What waits, and what may still be
        asked for, stays whatever its age. Several processes may do so at once.
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
    """A key as parameters: the first part by that name, the time in it, if any, as `NAME_at`."""
    return dict(zip((name, f"{name}_at"), key, strict=False))


MARGIN_DAYS = 1.0
"""What the clocks of platforms may be off, and more."""
KEPT_DAYS_MAX = 10_000.0
"""The longest that can be asked for; a date that far back still is one of a computer's."""


def bookkeeping_days(config: Config, repeat_seconds: float = REPEATED_SECONDS) -> float:
    """[database] bookkeeping_days; a row that tells what was taken in stays as long as that may come again."""
    days, again = config.database.bookkeeping_days, config.context.backfill_hours / 24
    longest = max(repeat_seconds / 86_400, again) + MARGIN_DAYS
    return min(max(days, longest), KEPT_DAYS_MAX) if days else 0.0
