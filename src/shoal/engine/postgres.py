"""The engine of many machines: procrastinate's jobs, one a thread, over PostgreSQL.

what happens                            what this worker does
-------------------------------------   -----------------------------------------------------------------------
a job is todo (NOTIFY, or a look        fetches it when a slot is free, and advances the thread; meanwhile the
  every POLL_SECONDS)                   job's lock keeps every other worker off it
work comes while the thread runs        nothing: the store's transaction made the next job, fetched afterwards
a turn waits for a person               `advance` returns, the job is gone, the decision makes a new one
a signal (NOTIFY)                       tells the handler; what was missed is read from the rows on reconnect
a worker is silent too long             makes its jobs todo again (every worker looks after the others)
this one was taken for dead             drops what it runs (the journal refuses it anyway), starts as a new worker
it stood still for as long              drops what it runs before anything else goes on
it may have been: its last sign of      looks at the job before it asks a model (`confirm`); until then no other can
  life is older than stalled_seconds      have the thread, and nothing is looked at
the database is away                    running turns go on until they have to write; then tries again
drain                                   fetches no more, waits, cancels the rest and makes those jobs todo again
"""

import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import anyio
import msgspec
import psycopg
from anyio.abc import TaskGroup

from shoal.domain.errors import StaleEpoch, StoreError, StoreUnavailable
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.ports import SignalKind, ThreadHandler
from shoal.engine.jobs import CHANNEL, JobError, Jobs, Pool, why
from shoal.engine.listener import Listener

log = logging.getLogger(__name__)

SIGNALS = "shoal_signals"
POLL_SECONDS = 5.0
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 30.0
"""How often a worker looks for threads that have work and no job, as after a restore."""
GIVE_BACK_SECONDS = 3.0
"""How long a stopping worker tries to give a job back; afterwards the others find it by its silence."""

_AWAY = (psycopg.Error, JobError)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the process is frozen and while the machine sleeps."""


class EngineSettings(msgspec.Struct, frozen=True):
    """`heartbeat_seconds` is the pause between signs of life, `stalled_seconds` the silence that means death.

    With a `concurrency` of 0 the process only wakes and signals.
    """

    concurrency: int = 1000
    heartbeat_seconds: float = 2.0
    stalled_seconds: float = 10.0


class _Signal(msgspec.Struct, array_like=True):
    thread: str
    kind: SignalKind
    turn: str


_signal = msgspec.json.Decoder(_Signal)


class _Running(NamedTuple):
    """An advance under way: its job and the worker we were, its scope, and what is set when it has returned."""

    job: int
    worker: int
    scope: anyio.CancelScope
    over: anyio.Event


class PostgresEngine:
    """Implements `domain.ports.Engine`. The app runs the listener beside it."""

    def __init__(self, pool: Pool, listener: Listener, settings: EngineSettings) -> None:
        self._jobs = Jobs(pool)
        self._settings = settings
        self._handler: ThreadHandler | None = None
        self._running: dict[ThreadId, _Running] = {}
        self._taken: dict[int, _Running] = {}
        self._stir = anyio.Event()
        self._draining = self._missed = self._unsure = False
        self._serving = anyio.Event()
        self._alive_until = 0.0
        if settings.concurrency:
            listener.listen(CHANNEL, self._hear_job, self._stir_up)
            listener.listen(SIGNALS, self._hear_signal, self._hear_again)

    @property
    def running(self) -> int:
        """How many threads are being advanced here."""
        return len(self._running)

    @property
    def is_ready(self) -> bool:
        """Whether it is registered and its last sign of life counts; without slots, whether it runs."""
        is_alive = not self._settings.concurrency or self._is_alive()
        return self._serving.is_set() and not self._draining and is_alive

    async def started(self) -> None:
        """Wait until it is registered."""
        await self._serving.wait()

    async def confirm(self, thread: ThreadId) -> None:
        """Return while nobody else can have the thread: at once, or after a look at its job.

        Raises StaleEpoch when it was given to another worker, StoreUnavailable when that cannot be known.
        """
        running = self._running.get(thread)
        if running is not None and running.worker == self._jobs.worker and self._is_alive():
            return
        with _translated():
            if running is None or not await self._jobs.has(running.job):
                raise StaleEpoch(f"Thread {thread}: this worker was silent, and the thread was given to another.")

    async def wake(self, thread: ThreadId) -> None:
        """See to it that the thread is advanced soon, somewhere. Raises StoreError when the database is away."""
        with _translated():
            await self._jobs.wake(thread)

    async def woken(self, thread: ThreadId) -> None:
        """The store's transaction made the job already."""

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Tell the worker that advances the thread, wherever it is. Raises StoreError when the database is away."""
        signal = _Signal(thread, kind, turn)
        self._pass_on(signal)
        with _translated():
            await self._jobs.notify(SIGNALS, msgspec.json.encode(signal).decode())

    async def run(self, handler: ThreadHandler) -> None:
        """Serve until drained or cancelled; a cancelled one gives back what it runs."""
        self._handler = handler
        try:
            await self._register()
            self._serving.set()
            async with anyio.create_task_group() as tasks:
                if self._settings.concurrency:
                    tasks.start_soon(self._live)
                    tasks.start_soon(self._notice_standstill)
                await self._work(handler, tasks)
                await self._all_over()
                tasks.cancel_scope.cancel()
        finally:
            self._handler = None
            await self._leave()

    async def drain(self, seconds: float) -> None:
        """Fetch no more, wait for what runs, then cancel the rest; others go on with it at once."""
        self._draining = True
        self._stir_up()
        with anyio.move_on_after(seconds):
            await self._all_over()
        self._cancel_all()
        await self._all_over()

    # ---- fetching and advancing ----

    async def _work(self, handler: ThreadHandler, tasks: TaskGroup) -> None:
        while not self._draining:
            self._stir = anyio.Event()
            try:
                await self._catch_up()
                job = await self._jobs.fetch() if len(self._taken) < self._settings.concurrency else None
            except _AWAY as error:
                if not self._unsure:
                    log.warning("no work can be fetched while the database is away", extra={"why": why(error)})
                self._unsure = self._missed = True
                await anyio.sleep(RETRY_SECONDS)
                continue
            if job is not None:
                await self._take(handler, tasks, *job)
                continue
            with anyio.move_on_after(POLL_SECONDS):
                await self._stir.wait()

    async def _take(self, handler: ThreadHandler, tasks: TaskGroup, job: int, thread: ThreadId) -> None:
        if self._draining:
            await self._end(self._jobs.return_it, job)
            return
        mine = self._taken[job] = _Running(job, self._jobs.worker, anyio.CancelScope(), anyio.Event())
        tasks.start_soon(self._advance, handler, job, thread, mine)

    async def _advance(self, handler: ThreadHandler, job: int, thread: ThreadId, mine: _Running) -> None:
        again = False
        try:
            with mine.scope:
                while (before := self._running.get(thread)) is not None:  # one that was cancelled and still unwinds
                    await before.over.wait()
                self._running[thread] = mine
                await handler.advance(thread)
            again = mine.scope.cancelled_caught
        except StoreError as error:
            log.warning("the thread is tried again", extra={"thread_id": thread, "why": why(error)})
            again = True
            await anyio.sleep(RETRY_SECONDS)
        except anyio.get_cancelled_exc_class():
            again = True
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(self._jobs.return_it if again else self._ending(), job)
            if self._running.get(thread) is mine:
                del self._running[thread]
            del self._taken[job]
            mine.over.set()
            self._stir_up()

    def _ending(self) -> Callable[[int], Awaitable[None]]:
        """How a job that is done ends: without free slots the thread's next one should go to another worker."""
        is_full = len(self._taken) >= self._settings.concurrency
        return self._jobs.hand_over if self._draining or is_full else self._jobs.finish

    async def _end(self, end: Callable[[int], Awaitable[None]], job: int) -> None:
        while True:
            try:
                with anyio.fail_after(GIVE_BACK_SECONDS):
                    return await end(job)
            except (*_AWAY, TimeoutError) as error:
                log.warning("a finished job cannot be noted", extra={"job": job, "why": why(error)})
                if self._draining:
                    return None
                await anyio.sleep(RETRY_SECONDS)

    async def _all_over(self) -> None:
        while self._taken:
            await next(iter(self._taken.values())).over.wait()

    def _cancel_all(self) -> None:
        for running in self._taken.values():
            running.scope.cancel()

    # ---- being alive ----

    async def _register(self) -> None:
        while self._settings.concurrency:
            try:
                await self._enter()
                return
            except _AWAY as error:
                log.warning("this worker cannot register; trying again", extra={"why": why(error)})
                await anyio.sleep(RETRY_SECONDS)

    async def _enter(self) -> None:
        began = time.clock_gettime(_CLOCK)
        await self._jobs.register()
        self._alive_until = began + self._settings.stalled_seconds

    def _is_alive(self) -> bool:
        """Whether no other worker can have taken this one for dead."""
        return time.clock_gettime(_CLOCK) < self._alive_until

    async def _leave(self) -> None:
        if not self._settings.concurrency:
            return
        with anyio.move_on_after(GIVE_BACK_SECONDS, shield=True):
            try:
                await self._jobs.unregister()
            except _AWAY as error:
                log.warning("this worker leaves without a word", extra={"why": why(error)})

    async def _live(self) -> None:
        sweep_at = anyio.current_time()
        while True:
            try:
                if anyio.current_time() >= sweep_at:
                    await self._jobs.sweep()
                    sweep_at = anyio.current_time() + SWEEP_SECONDS
                await anyio.sleep(self._settings.heartbeat_seconds)
                await self._beat()
                for thread in await self._jobs.revive(self._settings.stalled_seconds):
                    log.warning("a worker fell silent; its thread is taken over", extra={"thread_id": thread})
                    self._stir_up()
            except _AWAY as error:
                log.log(self._weight(), "no sign of life could be given", extra={"why": why(error)})
                await anyio.sleep(RETRY_SECONDS)

    async def _notice_standstill(self) -> None:
        """After a standstill of this process, drop what it runs at once: others have gone on with it by now.

        What had passed `confirm` before, and was about to ask a model, is cancelled by this before it does.
        """
        while True:
            began = time.clock_gettime(_CLOCK)
            await anyio.sleep(self._settings.heartbeat_seconds / 4)
            stood = time.clock_gettime(_CLOCK) - began
            if stood > self._settings.stalled_seconds:
                log.warning("this process stood still; it drops what it runs", extra={"seconds": round(stood, 1)})
                self._cancel_all()

    def _weight(self) -> int:
        """A missed sign of life is of interest once others may take this worker for dead."""
        return logging.DEBUG if self._is_alive() else logging.WARNING

    async def _beat(self) -> None:
        began = time.clock_gettime(_CLOCK)
        if await self._jobs.beat():
            self._alive_until = began + self._settings.stalled_seconds
        else:
            await self._be_reborn()

    async def _be_reborn(self) -> None:
        log.warning("this worker was taken for dead; it drops what it runs", extra={"running": self.running})
        self._alive_until = 0.0
        self._cancel_all()
        await self._enter()
        self._stir_up()

    # ---- what is heard ----

    def _stir_up(self) -> None:
        self._stir.set()

    def _hear_job(self, payload: str) -> None:
        self._stir.set()

    def _hear_signal(self, payload: str) -> None:
        self._pass_on(_signal.decode(payload))

    def _hear_again(self) -> None:
        self._missed = self._unsure = True
        self._stir.set()

    def _pass_on(self, signal: _Signal) -> None:
        thread = ThreadId(signal.thread)
        if self._handler is not None and thread in self._running:
            self._handler.signal(thread, signal.kind, TurnId(signal.turn))

    async def _catch_up(self) -> None:
        """After an outage: give back what was fetched unnoticed, and read from the rows what signals were missed."""
        if self._unsure:
            await self._jobs.give_back_strays(list(self._taken))
            self._unsure = False
        if not self._missed:
            return
        self._missed = False
        for thread, turn, is_aborting, has_steers in await self._jobs.asked_of(list(self._running)):
            if has_steers:
                self._pass_on(_Signal(thread, "steer", turn))
            if is_aborting:
                self._pass_on(_Signal(thread, "abort", turn))


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except _AWAY as error:
        raise StoreUnavailable(f"The database cannot be reached: {error}. Is the server up?") from error
