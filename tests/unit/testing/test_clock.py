"""The manual clock moves only by hand and wakes sleepers in a fixed order."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from shoal.kernel.clock import Clock
from shoal.testing.clock import START, ManualClock


async def _note(clock: ManualClock, seconds: float, name: str, notes: list[tuple[str, float]]) -> None:
    await clock.sleep(seconds)
    notes.append((name, clock.monotonic()))


async def test_time_stands_still_until_advanced() -> None:
    clock: Clock = ManualClock()
    assert clock.now() == START
    assert clock.now() == START
    assert clock.monotonic() == 0.0


async def test_sleepers_wake_in_order_of_time_then_arrival() -> None:
    clock, notes = ManualClock(), list[tuple[str, float]]()
    async with asyncio.TaskGroup() as group:
        for seconds, name in ((30, "late"), (10, "first"), (10, "second"), (20, "middle")):
            group.create_task(_note(clock, seconds, name, notes))
        await clock.advance(25)
        assert notes == [("first", 10), ("second", 10), ("middle", 20)]
        await clock.advance(5)
    assert notes[-1] == ("late", 30)


async def test_a_sleeper_may_sleep_again_within_one_advance() -> None:
    clock, ticks = ManualClock(), list[float]()

    async def tick() -> None:
        for _ in range(4):
            await clock.sleep(15)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(tick())
    await clock.advance(60)
    await task
    assert ticks == [15, 30, 45, 60]


async def test_a_cancelled_sleeper_is_removed() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.sleepers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleeping() == 0
    assert clock.next_wake_at() is None


async def test_waiting_for_sleepers_lasts_until_the_tasks_sleep() -> None:
    clock, order = ManualClock(), list[str]()

    async def late() -> None:
        await asyncio.to_thread(order.append, "thread")
        await clock.sleep(1)

    task = asyncio.create_task(late())
    await clock.sleepers()
    order.append("asleep")
    await clock.advance(1)
    await task
    assert order == ["thread", "asleep"]


async def test_ids_are_unique_sorted_and_repeatable() -> None:
    first, second = ManualClock(), ManualClock()
    ids = [first.new_id() for _ in range(300)]
    assert ids == sorted(set(ids))
    assert ids == [second.new_id() for _ in range(300)]
    await first.advance(1)
    assert first.new_id() > ids[-1]


async def test_advancing_never_sets_the_clock_back() -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match="cannot go back"):
        await clock.advance_to(clock.now() - timedelta(seconds=1))
    clock.jump(-3600)
    assert clock.now() == datetime(2026, 2, 28, 23, tzinfo=UTC)


async def test_a_leap_wakes_each_due_sleeper_once_and_waits_until_it_sleeps_again() -> None:
    clock, ticks = ManualClock(), list[float]()

    async def poll() -> None:
        while True:
            await clock.sleep(60)
            await asyncio.to_thread(ticks.append, clock.monotonic())

    async def end() -> None:
        await clock.wait(asyncio.Event(), 30)
        await asyncio.to_thread(ticks.append, -1.0)

    polling, ending = asyncio.create_task(poll()), asyncio.create_task(end())
    await clock.sleepers(2)
    await clock.jump_to(START + timedelta(days=7))
    assert sorted(ticks) == [-1.0, 7 * 86_400]
    assert ending.done()
    assert clock.next_wake_at() == START + timedelta(days=7, seconds=60)
    await clock.jump_to(START + timedelta(days=7, seconds=59))
    assert len(ticks) == 2
    with pytest.raises(ValueError, match="cannot go back"):
        await clock.jump_to(START)
    polling.cancel()


async def test_a_leap_does_not_wait_for_tasks_blocked_elsewhere() -> None:
    clock, never = ManualClock(), asyncio.Event()

    async def begin() -> None:
        await clock.sleep(5)
        await never.wait()

    beginning = asyncio.create_task(begin())
    await clock.sleepers()
    async with asyncio.timeout(60):
        await clock.jump_to(START + timedelta(days=1))
    assert clock.next_wake_at() is None
    beginning.cancel()
