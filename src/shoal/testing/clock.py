"""A clock that moves only when a test says so: a week of schedules runs in milliseconds, the same way every time."""

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
"""Where a ManualClock starts unless told: a Monday morning."""

_PASSES = 25
"""How often the event loop goes round after a wake, so that what was woken gets to its next wait."""
_IDLE_PASSES = 8
"""At so many passes in a row with nothing to do, for what threads and sockets bring, no more are made."""
_LOOKS_AFTER_A_LEAP = 200
"""At so many looks in a row everything rests, and nobody lies down, when who was woken waits for something else."""


class ManualClock:
    """A `Clock` for tests. Sleepers wake in order of time; ties wake in the order in which they went to sleep.

    Ids count up, so they sort by creation and are the same in every run. `settle` waits until every woken task waits
    again; by default it runs some rounds of the event loop. `timezone` is the zone of `local`.
    """

    __slots__ = ("_arrived", "_count", "_elapsed", "_ids", "_now", "_settle", "_sleepers", "_who", "_zone")

    def __init__(
        self, start: datetime = START, settle: Callable[[], Awaitable[None]] | None = None, timezone: str = "UTC"
    ) -> None:
        self._zone = zone_named(timezone)
        self._now = start.astimezone(UTC)
        self._elapsed = timedelta()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._who: dict[asyncio.Future[None], asyncio.Task[object] | None] = {}
        self._arrived: set[asyncio.Future[None]] = set()
        self._count = self._ids = 0
        self._settle = settle or _settle

    def now(self) -> datetime:
        """The time the test has set, aware, UTC."""
        return self._now

    def local(self) -> datetime:
        """Return the current test time in the clock's time zone."""
        return self._now.astimezone(self._zone)

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._elapsed.total_seconds()

    def new_id(self) -> str:
        """The next ULID: the clock's milliseconds and a counter."""
        self._ids += 1
        return format_ulid(int(self._now.timestamp() * 1000), self._ids.to_bytes(10, "big"))

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has advanced this far; cancellable. Zero or less only lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter = self._lie_down(seconds)
        try:
            await waiter
        finally:
            self._get_up(waiter)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set or the test has advanced this far; cancellable."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter, told = self._lie_down(seconds), asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({waiter, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
            self._get_up(waiter)

    def sleeping(self) -> int:
        """How many tasks wait on this clock now."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    def next_wake_at(self) -> datetime | None:
        """When the next sleeper is due; None when nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._now + self._sleepers[0][0] - self._elapsed if self._sleepers else None

    async def sleepers(self, count: int = 1) -> None:
        """Wait (in real time) until at least `count` tasks sleep here: so a test lets threads and files catch up."""
        while self.sleeping() < count:
            await self._next_arrival()

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, waking sleepers one at a time at their own times; what they start may sleep anew."""
        await self.advance_to(self._now + timedelta(seconds=seconds))

    async def advance_to(self, at: datetime) -> None:
        """Move on to `at`, waking sleepers on the way. Raises ValueError when `at` is in the past."""
        self._check_future(at)
        await self._settle()
        while (wake_at := self.next_wake_at()) is not None and wake_at <= at:
            self._move_to(max(self._now, wake_at))
            _, _, waiter = heapq.heappop(self._sleepers)
            waiter.set_result(None)
            await self._settle()
        self._move_to(at)

    async def leap_to(self, at: datetime) -> None:
        """Move on to `at` in one step, as a machine does that stood still meanwhile: who was due wakes once, and late.

        Returns when each of them sleeps again, has ended, or waits for something else, while no thread or child of this
        process is at work. A week with pollers in it takes a moment. Raises ValueError when `at` is in the past.
        """
        self._check_future(at)
        await self._settle()
        self._move_to(at)
        woken = list[asyncio.Task[object] | None]()
        while (wake_at := self.next_wake_at()) is not None and wake_at <= at:
            _, _, waiter = heapq.heappop(self._sleepers)
            woken.append(self._who[waiter])
            waiter.set_result(None)
        looks = 0
        while looks < _LOOKS_AFTER_A_LEAP and any(
            task and not task.done() and not self._is_asleep(task) for task in woken
        ):
            count = self._count
            _let_others_work()
            await self._settle()
            looks = looks + 1 if self._count == count and not _is_at_work(os.getpid()) else 0
        await self._settle()

    async def advance_to_next(self) -> datetime:
        """Move on to the next sleeper's time, waiting for a sleeper if there is none, and wake it; returns the time."""
        await self.sleepers()
        wake_at = self.next_wake_at()
        assert wake_at is not None
        await self.advance_to(wake_at)
        return wake_at

    def stand_still(self, seconds: float) -> None:
        """Let time go by without waking anybody, as for a process that is stopped."""
        self._move_to(self._now + timedelta(seconds=seconds))

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back with a negative number, as a person, a time server or a suspend does:
        what sleeps goes on to sleep as long as before."""
        self._now += timedelta(seconds=seconds)

    def _move_to(self, at: datetime) -> None:
        self._elapsed += at - self._now
        self._now = at.astimezone(UTC)

    def _check_future(self, at: datetime) -> None:
        if at < self._now:
            raise ValueError(f"The clock stands at {self._now} and cannot go back to {at}.")

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
        """Until somebody goes to sleep."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.add(arrival)
        try:
            await arrival
        finally:
            self._arrived.discard(arrival)


async def _settle() -> None:
    ready: object = getattr(asyncio.get_running_loop(), "_ready", True)  # asyncio's own loops tell what is to run
    idle = 0
    for _ in range(_PASSES):
        await asyncio.sleep(0)
        idle = 0 if ready else idle + 1
        if idle == _IDLE_PASSES:
            return


def _let_others_work() -> None:
    """Leave the processor to threads and processes, whose rest nothing tells of."""
    threading.Event().wait(0.001)


def _is_at_work(process: int) -> bool:
    """Whether a thread of a process but this one, or a process that it started, runs or waits for a processor or disk.

    Linux alone tells; elsewhere none is.
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
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        pass
    return False


async def in_time(clock: ManualClock, coming: Coroutine[object, object, T], seconds: float = 0.5) -> T:
    """Let time pass, so much at a time, until what is awaited has come.

    Each step takes a thread's turn: on a slow machine, where calls take longer, time passes as much more slowly.
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
