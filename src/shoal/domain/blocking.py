"""Runs blocking work in the bounded thread pool, and never leaves it running behind a cancelled caller."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread and return its result or raise its error.

    Cancelling waits for the end of what runs, since a thread cannot be stopped, and is raised then: so a lock that the
    caller holds covers all of the work. For work that is bounded by itself, such as reading or writing a file.
    """
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, work))


async def to_the_end(future: "asyncio.Future[_Result]") -> _Result:
    """Wait for it even when cancelled meanwhile; the cancellation is raised afterwards."""
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        import anyio

        with anyio.CancelScope(shield=True):  # a scope of anyio's cancels at every step of the loop who has no shield
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
        raise
    return future.result()
