"""The engine for a single process: one task for each thread that has work.

    event                       effect
    -------------------------   ----------------------------------------------------------------------------------
    an idle thread is woken     a task starts
    a running thread is woken   the task calls `advance` again after the current call
    `advance` returns           the task ends, unless the thread was woken in the meantime
    the engine drains           no task starts, and running tasks are cancelled after some time

At the next start, the rows in the store show which threads have unfinished work and must be woken.
"""

import asyncio

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.ports import SignalKind, ThreadHandler


class LocalEngine:
    """Implements `Engine` on one event loop. At most `concurrency_max` threads advance at the same time."""

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
        """Return immediately, because no other process can run the thread."""

    async def wake(self, thread: ThreadId) -> None:
        if self._draining.is_set():
            return
        if thread in self._running:
            self._again.add(thread)
        elif self._tasks is None:
            self._early.append(thread)
        else:
            self._running[thread] = self._tasks.create_task(self._advance(thread), name=f"thread {thread}")

    woken = wake  # the store's transaction cannot wake a thread here

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Notify the running turn. A thread that is not running reads its signals from the database when it is
        woken.
        """
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
