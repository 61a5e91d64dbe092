"""The engine for a single process: one task per thread with work.

    wake(thread)                       not running -> start a task; running -> one more round after this one
    advance returns                    another round was requested -> run it; otherwise forget the thread
    drain                              no new tasks; running ones get time to finish and are then cancelled

At the next start, threads with unfinished work are woken from the store's rows.
"""

import asyncio

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.ports import SignalKind, ThreadHandler


class LocalEngine:
    """Implementation of `Engine` on one event loop. At most `concurrency_max` threads advance at the same time."""

    def __init__(self, concurrency_max: int = 10_000) -> None:
        self._slots = asyncio.Semaphore(concurrency_max)
        self._running: dict[ThreadId, asyncio.Task[None]] = {}
        self._again: set[ThreadId] = set()
        self._early: list[ThreadId] = []
        self._handler: ThreadHandler | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._draining = asyncio.Event()
        self._serving = asyncio.Event()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_ready(self) -> bool:
        return self._serving.is_set() and not self._draining.is_set()

    async def started(self) -> None:
        await self._serving.wait()

    async def confirm(self, thread: ThreadId) -> None:
        """Return immediately, because no other process exists."""

    async def wake(self, thread: ThreadId) -> None:
        if self._draining.is_set():
            return
        if thread in self._running:
            self._again.add(thread)
        elif self._tasks is None:
            self._early.append(thread)
        else:
            self._running[thread] = self._tasks.create_task(self._advance(thread), name=f"thread {thread}")

    woken = wake  # the store's transaction cannot wake threads of this engine

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Notify the running turn. Other threads read the rows when they are woken."""
        if self._handler is not None:
            self._handler.signal(thread, kind, turn)

    async def run(self, handler: ThreadHandler) -> None:
        self._handler = handler
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._serving.set()
            early, self._early = self._early, []
            for thread in early:
                await self.wake(thread)
            await self._draining.wait()
            while self._running:
                await asyncio.wait(list(self._running.values()))

    async def drain(self, seconds: float) -> None:
        self._draining.set()
        if running := list(self._running.values()):
            await asyncio.wait(running, timeout=seconds)
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    async def _advance(self, thread: ThreadId) -> None:
        assert self._handler is not None
        try:
            while True:
                self._again.discard(thread)
                async with self._slots:
                    await self._handler.advance(thread)
                if thread not in self._again or self._draining.is_set():
                    return
        finally:
            self._again.discard(thread)
            del self._running[thread]
