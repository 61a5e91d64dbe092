"""Runs blocking work in the bounded thread pool, and never leaves it running behind a cancelled caller."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread and return its result or raise its error.

    Cancelling waits for the end of what runs, since a thread cannot be stopped, and is raised then: so a lock that the
    caller holds covers all of the work. For work that is bounded by itself, such as reading or writing a file.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.result()
