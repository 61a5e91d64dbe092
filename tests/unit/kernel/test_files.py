"""Work that runs in a thread ends before its cancelled caller does, without busy waiting."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from threading import Event

import anyio
import pytest

from shoal.kernel.files import in_thread

STEPS = 200


async def by_scope(
    work: Callable[[], Coroutine[object, object, None]], begun: asyncio.Event, release: Callable[[], None]
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await begun.wait()
        tasks.cancel_scope.cancel()
        asyncio.get_running_loop().call_later(0.05, release)


async def by_task(
    work: Callable[[], Coroutine[object, object, None]], begun: asyncio.Event, release: Callable[[], None]
) -> None:
    async def waits() -> None:
        await work()

    task = asyncio.create_task(waits())
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, release)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("cancel", [by_scope, by_task])
async def test_work_ends_before_its_cancelled_caller_even_if_the_loop_stalls(
    cancel: Callable[
        [Callable[[], Coroutine[object, object, None]], asyncio.Event, Callable[[], None]],
        Coroutine[object, object, None],
    ],
) -> None:
    loop, begun, hold, done = asyncio.get_running_loop(), asyncio.Event(), Event(), list[str]()
    after, steps = list[str](), 0

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        hold.wait()
        done.append("whole")

    async def caller() -> None:
        try:
            await in_thread(work)
        finally:
            after.extend(done)

    def count(deliver: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object, **named: object) -> object:
            nonlocal steps
            steps += 1
            return deliver(*given, **named)

        return counted

    loop.call_soon = count(loop.call_soon)  # pyrefly: ignore[bad-assignment]  what a spinning loop calls
    await cancel(caller, begun, hold.set)
    assert after == ["whole"]
    assert steps < STEPS


async def test_an_error_in_the_thread_is_raised_to_the_caller() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_thread(fails)
