"""Time, ids and retry delays.

Code receives a Clock instead of calling the system, so tests can control time and ids. Retry delays grow exponentially
with jitter and are never shorter than the delay that a server requests.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from shoal.kernel import lazy_re
from shoal.kernel.ids import format_ulid
from shoal.kernel.zones import zone_named


class Clock(Protocol):
    """The only source of the current time and of new ids."""

    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC."""
        ...

    def local(self) -> datetime:
        """Return the current time in the configured time zone. Days begin at midnight in this zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. The value never decreases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`. Can be cancelled."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set or `seconds` have passed. Can be cancelled."""
        ...

    def new_id(self) -> str:
        """Return a new ULID: 26 characters that sort by time."""
        ...


class SystemClock:
    """The machine's clock. `timezone` is an IANA name."""

    def __init__(self, timezone: str = "UTC") -> None:
        self._timezone = timezone

    def now(self) -> datetime:
        return datetime.now(UTC)

    def local(self) -> datetime:
        return self.now().astimezone(zone_named(self._timezone))

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def new_id(self) -> str:
        return format_ulid(time.time_ns() // 1_000_000, os.urandom(10))


CLOCK_SET_SECONDS = 60.0
"""Minimum jump of the wall clock that counts as a change, in seconds. Smaller jumps are normal corrections."""
STEADY_SECONDS = 3600.0


SET_BACK_SECONDS = 1.0
"""Minimum jump of the wall clock after which due work is checked immediately, in seconds. Smaller jumps are normal
corrections.
"""


def wall_ahead(clock: Clock) -> float:
    """Return the difference between the wall clock and the monotonic clock, in seconds. It changes if the wall
    clock jumps.
    """
    return clock.now().timestamp() - clock.monotonic()


async def sleep_till_steady(clock: Clock, seconds: float) -> None:
    """Sleep for `seconds`. If the wall clock jumps, continue until it has been steady for STEADY_SECONDS.

    A clock that is wrong for a few minutes therefore does not expire anything. Resuming from suspend counts as a jump.
    """
    while True:
        ahead = wall_ahead(clock)
        await clock.sleep(seconds)
        if abs(wall_ahead(clock) - ahead) < CLOCK_SET_SECONDS:
            return
        seconds = STEADY_SECONDS


def iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def to_micros(at: datetime) -> int:
    """Convert a time to microseconds since 1970-01-01 UTC, as stored in the database."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

BACKOFF_SECONDS_MAX = 30.0
"""Maximum backoff in seconds, unless a server requests a longer delay."""
JITTER = 0.5
"""Maximum share of a delay that is subtracted at random, so clients that failed together do not retry together."""

ASKED_SECONDS_MAX = 1e9
"""Maximum delay that a server can request, in seconds. Longer delays are reduced to this value."""

_DOUBLINGS_MAX = 30
_NUMBERS = lazy_re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(\s*,\s*[+-]?[0-9]+(\.[0-9]*)?)*")


def retry_delay(
    attempt: int,
    retry_after_seconds: float | None = None,
    base_seconds: float = 1.0,
    *,
    chance: Callable[[], float] = random.random,
) -> float:
    """Return the seconds to wait after failure number `attempt`, counted from 1.

    The delay is base × 2^(attempt-1), at most BACKOFF_SECONDS_MAX, shortened at random by up to half. If the server
    requests `retry_after_seconds`, the delay is at least that long, plus random jitter of up to a tenth of it, but at
    most one second. The caller limits `retry_after_seconds`. `chance` returns numbers from 0 to 1.
    """
    doubled = base_seconds * 2.0 ** min(max(attempt, 1) - 1, _DOUBLINGS_MAX)
    own = min(doubled, BACKOFF_SECONDS_MAX) * (1.0 - JITTER * chance())
    if retry_after_seconds is None:
        return own
    return max(own, retry_after_seconds + min(1.0, 0.1 * retry_after_seconds) * chance())


def retry_after(headers: Mapping[str, str], clock: Clock | None = None) -> float | None:
    """Return the delay that a response requests, in seconds. Return None if no header has a usable value.

    Reads `retry-after-ms`, `x-ms-retry-after-ms` and `retry-after` (seconds or an HTTP date), in this order. The names
    in `headers` must be lowercase. If a header lists several numbers, the largest one counts. A date is compared with
    the response's `date` header, or with `clock` if that header is missing. The result is between 0 and
    ASKED_SECONDS_MAX.
    """
    for name, unit_seconds in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        match = _NUMBERS.fullmatch(headers.get(name, "").strip())
        if match is not None:
            asked = max(float(number) for number in match[0].split(","))
            return min(max(0.0, asked * unit_seconds), ASKED_SECONDS_MAX)
    at = _http_date(headers.get("retry-after", ""))
    if at is None:
        return None
    now = _http_date(headers.get("date", "")) or (clock.now() if clock is not None else None)
    return min(max(0.0, (at - now).total_seconds()), ASKED_SECONDS_MAX) if now is not None else None


def _http_date(text: str) -> datetime | None:
    if not text:
        return None
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
