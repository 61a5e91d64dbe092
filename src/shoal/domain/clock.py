"""Time, ids and randomness, injected wherever they are needed so that tests can move them by hand."""

import asyncio
import contextlib
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from shoal.domain.ids import format_ulid


class Clock(Protocol):
    """The only source of time and of fresh ids."""

    def now(self) -> datetime:
        """The present, aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, at most this long; cancellable."""
        ...

    def new_id(self) -> str:
        """A fresh ULID (26 characters, sorts by time)."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """The present, aware, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, at most this long; cancellable."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def new_id(self) -> str:
        """A fresh ULID."""
        return format_ulid(time.time_ns() // 1_000_000, os.urandom(10))


def iso(at: datetime) -> str:
    """ISO 8601 UTC with milliseconds and `Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def to_micros(at: datetime) -> int:
    """Microseconds since 1970, as the database keeps times."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Invert `to_micros`."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
