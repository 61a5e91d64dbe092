"""Pacing of posts: rate limits, order, and delays that the platform requests."""

import asyncio

import pytest

from shoal.delivery.pacing import BARRED_SECONDS_MAX, Pacer
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.posts import ChatLimits, Window
from shoal.testing.clock import ManualClock

LIMITS = ChatLimits(
    4000,
    windows=(Window(5, 5.0), Window(3, 60.0, groups_only=True), Window(12, 1.0, "account")),
    group_prefix="-",
    edit_seconds_min=1.1,
    group_edit_seconds_min=3.1,
)


def thread(channel: str, name: str = "1") -> ThreadId:
    return make_thread_id("chat", channel, name)


async def times(pacer: Pacer, clock: ManualClock, threads: list[ThreadId], seconds: float) -> list[float]:
    made: list[float | None] = [None] * len(threads)

    async def post(number: int) -> None:
        await pacer.turn(threads[number])
        made[number] = clock.monotonic()

    async with asyncio.TaskGroup() as tasks:
        for number in range(len(threads)):
            tasks.create_task(post(number))
        await clock.advance(seconds)
    return [at for at in made if at is not None]


async def test_fifty_threads_of_a_channel_share_its_window_in_order() -> None:
    clock = ManualClock()
    threads = [thread("harbour", str(number)) for number in range(50)]
    made = await times(Pacer(LIMITS, clock), clock, threads, 60)
    assert made == [float(5 * (number // 5)) for number in range(50)]


async def test_channels_do_not_wait_for_each_other() -> None:
    clock = ManualClock()
    threads = [thread("a", "1")] * 8 + [thread("b", "1")]
    assert (await times(Pacer(LIMITS, clock), clock, threads, 10))[-1] == 0.0


async def test_the_account_has_a_window_too() -> None:
    clock = ManualClock()
    threads = [thread(f"c{number}") for number in range(30)]
    made = await times(Pacer(LIMITS, clock), clock, threads, 10)
    assert [made.count(at) for at in (0.0, 1.0, 2.0)] == [12, 12, 6]


async def test_threads_with_separate_windows_do_not_wait_for_each_other() -> None:
    clock = ManualClock()
    limits = ChatLimits(4000, windows=(Window(1, 5.0, "thread"), Window(5, 60.0, "account")))
    threads = [thread("a", name) for name in ("1", "1", "2", "2", "3", "4")]
    assert await times(Pacer(limits, clock), clock, threads, 100) == [0.0, 5.0, 0.0, 60.0, 0.0, 0.0]


async def test_groups_have_a_separate_window() -> None:
    clock = ManualClock()
    made = await times(Pacer(LIMITS, clock), clock, [thread("-7")] * 4 + [thread("7")] * 4, 100)
    assert made == [0.0, 0.0, 0.0, 60.0, 0.0, 0.0, 0.0, 0.0]


async def test_a_refusal_pauses_only_its_channel() -> None:
    clock = ManualClock()
    pacer = Pacer(LIMITS, clock)
    pacer.refused(thread("a"), 9.0)
    assert pacer.barred(thread("a", "2"))
    assert await times(pacer, clock, [thread("a"), thread("b")], 20) == [9.0, 0.0]


async def test_posts_delayed_by_a_refusal_respect_the_windows() -> None:
    clock = ManualClock()
    pacer = Pacer(LIMITS, clock)
    pacer.refused(thread("a"), 9.0)
    assert await times(pacer, clock, [thread("a")] * 12, 60) == [9.0] * 5 + [14.0] * 5 + [19.0] * 2


async def test_a_post_that_must_wait_reserves_no_slot() -> None:
    clock = ManualClock()
    pacer = Pacer(LIMITS, clock)
    assert [pacer.take_now(thread("a")) for _ in range(7)] == [True] * 5 + [False] * 2
    assert await times(pacer, clock, [thread("a")] * 6, 60) == [5.0] * 5 + [10.0]
    pacer.refused(thread("b"), 9.0)
    assert not pacer.take_now(thread("b"))


async def test_a_due_post_does_not_overtake_a_waiting_one() -> None:
    clock = ManualClock()
    pacer, place = Pacer(LIMITS, clock), thread("harbour")
    for _ in range(5):
        await pacer.turn(place)
    waiting = asyncio.create_task(pacer.turn(place))
    await clock.sleepers()
    clock.skip(6)
    assert not pacer.take_now(thread("harbour", "2"))
    await clock.advance(1)
    await waiting
    assert pacer.take_now(thread("harbour", "2"))


async def test_a_refusal_of_the_account_pauses_every_channel() -> None:
    clock = ManualClock()
    pacer = Pacer(LIMITS, clock)
    pacer.refused(thread("a"), 9.0, everywhere=True)
    assert await times(pacer, clock, [thread("a"), thread("b")], 20) == [9.0, 9.0]


def test_edits_are_spaced_wider_in_groups() -> None:
    pacer = Pacer(LIMITS, ManualClock())
    assert (pacer.edit_seconds(thread("7")), pacer.edit_seconds(thread("-7"))) == (1.1, 3.1)


async def test_the_longer_of_two_refusals_applies() -> None:
    clock = ManualClock()
    pacer = Pacer(LIMITS, clock)
    for seconds in (3.0, 9.0, 5.0):
        pacer.refused(thread("a"), seconds)
    assert await times(pacer, clock, [thread("a")], 20) == [9.0]


async def test_an_endless_wait_is_capped_at_a_day() -> None:
    clock = ManualClock()
    pacer = Pacer(LIMITS, clock)
    pacer.refused(thread("a"), 10 * BARRED_SECONDS_MAX)
    await clock.advance(BARRED_SECONDS_MAX - 1)
    assert pacer.barred(thread("a"))
    await clock.advance(1)
    assert not pacer.barred(thread("a"))


def test_the_least_recently_used_channels_are_forgotten_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.delivery.pacing.ROUTES_KEPT_MAX", 3)
    pacer = Pacer(LIMITS, ManualClock())
    for name in ("a", "b", "c", "a", "d"):
        pacer.refused(thread(name), 9.0)
    assert [pacer.barred(thread(name)) for name in "abcd"] == [True, False, True, True]
    pacer = Pacer(LIMITS, ManualClock())
    for name in ("a", "b"):
        assert [pacer.take_now(thread(name)) for _ in range(6)] == [True] * 5 + [False]
    assert not pacer.take_now(thread("a"))
    assert pacer.take_now(thread("c"))
    assert not pacer.take_now(thread("a"))
    assert pacer.take_now(thread("b"))
