"""A clock that only the test advances. A week of schedules runs in milliseconds, with the same result each time."""

import asyncio
import heapq
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from shoal.kernel.ids import format_ulid
from shoal.kernel.zones import zone_named

T = TypeVar("T")

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
"""Default start time of a ManualClock, a Monday morning."""

_PASSES = 25
"""Maximum number of event loop iterations after a wake-up. Woken tasks reach their next wait within these iterations.
"""
_IDLE_PASSES = 8
"""Number of consecutive idle iterations after which the event loop is considered idle."""
_LOOKS_AFTER_JUMP = 200
"""Number of consecutive idle checks after which a woken task is assumed to wait for something other than the clock."""


class ManualClock:
    """A `Clock` for tests. Time passes only when the test calls `advance` or a similar method.

    Sleepers wake in the order of their wake-up times. Sleepers with the same time wake in the order in which they
    went to sleep. Ids are sequential and the same in every run.

    - `wait_idle`: a function that returns once every woken task waits again. By default, it runs a few iterations of
      the event loop.
    - `timezone`: the time zone of `local`.
    """

    __slots__ = ("_arrived", "_count", "_elapsed", "_ids", "_now", "_sleepers", "_wait_idle", "_who", "_zone")

    def __init__(
        self, start: datetime = START, wait_idle: Callable[[], Awaitable[None]] | None = None, timezone: str = "UTC"
    ) -> None:
        self._zone = zone_named(timezone)
        self._now = start.astimezone(UTC)
        self._elapsed = timedelta()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._who: dict[asyncio.Future[None], asyncio.Task[object] | None] = {}
        self._arrived: set[asyncio.Future[None]] = set()
        self._count = self._ids = 0
        self._wait_idle = wait_idle or _wait_idle

    def now(self) -> datetime:
        return self._now

    def local(self) -> datetime:
        return self._now.astimezone(self._zone)

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    def new_id(self) -> str:
        self._ids += 1
        return format_ulid(int(self._now.timestamp() * 1000), self._ids.to_bytes(10, "big"))

    async def sleep(self, seconds: float) -> None:
        """Wait until the test advances the clock by `seconds`. A value of zero or less only yields to other tasks."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter = self._lie_down(seconds)
        try:
            await waiter
        finally:
            self._get_up(waiter)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter, notified = self._lie_down(seconds), asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({waiter, notified}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            notified.cancel()
            self._get_up(waiter)

    def sleeping(self) -> int:
        """Return the number of tasks that sleep on this clock."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    def next_wake_at(self) -> datetime | None:
        """Return the next wake-up time, or None if no task sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._now + self._sleepers[0][0] - self._elapsed if self._sleepers else None

    async def sleepers(self, count: int = 1) -> None:
        """Wait in real time until at least `count` tasks sleep on this clock."""
        while self.sleeping() < count:
            await self._next_arrival()

    async def advance(self, seconds: float) -> None:
        """Advance the clock by `seconds`.

        Sleepers wake one at a time, each at its own time. This includes tasks that go to sleep during the call.
        """
        await self.advance_to(self._now + timedelta(seconds=seconds))

    async def advance_to(self, at: datetime) -> None:
        """Advance the clock to `at` and wake the sleepers that are due by then. Raises ValueError if `at` is in
        the past.
        """
        self._check_future(at)
        await self._wait_idle()
        while (wake_at := self.next_wake_at()) is not None and wake_at <= at:
            self._move_to(max(self._now, wake_at))
            _, _, waiter = heapq.heappop(self._sleepers)
            waiter.set_result(None)
            await self._wait_idle()
        self._move_to(at)

    async def jump_to(self, at: datetime) -> None:
        """Advance the clock to `at` in one step, as if the machine resumed from suspend. Due sleepers wake late and
        only once.

        Returns when each woken task sleeps again, has ended, or waits for something other than the clock, and no
        thread or child process is busy. Raises ValueError if `at` is in the past.
        """
        self._check_future(at)
        await self._wait_idle()
        self._move_to(at)
        woken = list[asyncio.Task[object] | None]()
        while (wake_at := self.next_wake_at()) is not None and wake_at <= at:
            _, _, waiter = heapq.heappop(self._sleepers)
            woken.append(self._who[waiter])
            waiter.set_result(None)
        looks = 0
        while looks < _LOOKS_AFTER_JUMP and any(
            task and not task.done() and not self._is_asleep(task) for task in woken
        ):
            count = self._count
            _let_others_work()
            await self._wait_idle()
            looks = looks + 1 if self._count == count and not _is_at_work(os.getpid()) else 0
        await self._wait_idle()

    async def advance_to_next(self) -> datetime:
        """Wait until a task sleeps, advance the clock to the next wake-up time and return that time."""
        await self.sleepers()
        wake_at = self.next_wake_at()
        assert wake_at is not None
        await self.advance_to(wake_at)
        return wake_at

    def skip(self, seconds: float) -> None:
        """Advance the clock without waking sleepers, as if the process were stopped."""
        self._move_to(self._now + timedelta(seconds=seconds))

    def jump(self, seconds: float) -> None:
        """Change the wall clock by `seconds`, as if a time server corrected it. A negative value moves it back.

        Sleepers keep their remaining time.
        """
        self._now += timedelta(seconds=seconds)

    def _move_to(self, at: datetime) -> None:
        self._elapsed += at - self._now
        self._now = at.astimezone(UTC)

    def _check_future(self, at: datetime) -> None:
        if at < self._now:
            raise ValueError(f"The clock shows {self._now}. It cannot go back to {at}.")

    def _lie_down(self, seconds: float) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed + timedelta(seconds=seconds), self._count, waiter))
        self._who[waiter] = asyncio.current_task()
        for arrival in self._arrived:
            if not arrival.done():
                arrival.set_result(None)
        return waiter

    def _get_up(self, waiter: asyncio.Future[None]) -> None:
        waiter.cancel()
        self._who.pop(waiter, None)

    def _is_asleep(self, task: asyncio.Task[object]) -> bool:
        return any(other is task and not waiter.done() for waiter, other in self._who.items())

    async def _next_arrival(self) -> None:
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.add(arrival)
        try:
            await arrival
        finally:
            self._arrived.discard(arrival)


async def _wait_idle() -> None:
    ready: object = getattr(asyncio.get_running_loop(), "_ready", True)  # only asyncio's own event loops have `_ready`
    idle = 0
    for _ in range(_PASSES):
        await asyncio.sleep(0)
        idle = 0 if ready else idle + 1
        if idle == _IDLE_PASSES:
            return


def _let_others_work() -> None:
    """Sleep briefly to let other threads and processes run, because they do not report when they are idle."""
    threading.Event().wait(0.001)


def _is_at_work(process: int) -> bool:
    """Return True if another thread or a child process is running, or waits for a CPU or a disk.

    Only Linux reports this. On other systems, the result is always False.
    """
    tasks = f"/proc/{process}/task"
    try:
        for thread in os.listdir(tasks):
            with open(f"{tasks}/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
            if state in b"RD" and int(thread) != threading.get_native_id():
                return True
            with open(f"{tasks}/{thread}/children", "rb") as file:
                children = file.read().split()
            if any(_is_at_work(int(child)) for child in children):
                return True
    except (FileNotFoundError, ProcessLookupError):  # the thread or process has just ended
        pass
    return False


async def in_time(clock: ManualClock, coming: Coroutine[object, object, T], seconds: float = 0.5) -> T:
    """Advance the clock in steps of `seconds` until `coming` is done, and return its result.

    After each step, wait for a worker thread. This gives other threads time to run on a slow machine.
    """
    waiting = asyncio.ensure_future(coming)
    try:
        while not waiting.done():
            await clock.advance(seconds)
            await asyncio.to_thread(_turn)
        return await waiting
    finally:
        waiting.cancel()


def _turn() -> None:
    pass
