"""The engine for many machines: one procrastinate job in PostgreSQL for each thread that has work.

event                                    effect in this worker
--------------------------------------   ------------------------------------------------------------------------
a job is queued (found by NOTIFY, or     The worker fetches it when a slot is free, and advances the thread. The
a check every POLL_SECONDS)              job's lock excludes all other workers.
work arrives while the thread runs       None. The store's transaction has created the next job, which is fetched
                                         afterwards.
a turn waits for a person                `advance` returns and the job ends. The decision creates a new job.
a signal arrives (NOTIFY)                The handler is called. Signals that were missed are read from rows after
                                         a reconnection.
another worker is silent too long        That worker's jobs are put back in the queue.
this worker was declared dead            The worker drops its threads and registers as a new worker. The journal
                                         rejects writes of the dropped threads.
this process was suspended too long      The worker drops its threads before it does anything else.
the last heartbeat is older than         The job is checked before each model call (`confirm`). Before that, no
`stalled_seconds`                        check is needed, because no other worker can run the thread.
the database is down                     Running turns continue until they must write, and then retry.
the worker drains                        The worker stops fetching, waits, cancels the rest and returns those jobs.

A thread has at most one `todo` job (`queueing_lock`) and one `doing` job (`lock`).

job before   job after      changed by
----------   ------------   -----------------------------------------------------------------------------
none         todo           `shoal_wake`, in the store's transactions or in `wake`
todo         doing          procrastinate's fetch
doing        deleted        _FINISH or _HAND_OVER, after the worker has advanced the thread
doing        a new `todo`   _RETURN, by a worker that stops
doing        a new `todo`   _REVIVE, by another worker, after too long without a heartbeat

If a live worker was declared dead, its next heartbeat (_BEAT) finds no row. It then no longer owns its earlier jobs
and cannot finish them.
"""

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import anyio
import msgspec
import psycopg
from anyio.abc import TaskGroup
from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.manager import JobManager

from shoal.engine.cluster import Listener, Pool, why
from shoal.kernel.errors import StaleEpoch, StoreError, StoreUnavailable
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.ports import SignalKind, ThreadHandler
from shoal.kernel.settings import EngineSettings
from shoal.net.connections import network_reason

log = logging.getLogger(__name__)

QUEUE = "shoal"
CHANNEL = f"procrastinate_queue_v1#{QUEUE}"
"""Channel on which procrastinate announces new jobs."""

SIGNALS = "shoal_signals"
POLL_SECONDS = 5.0
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 30.0
"""Seconds between checks for threads that have work but no job.

Threads can lose their jobs, for example when a database is restored.
"""
GIVE_BACK_SECONDS = 3.0
"""Maximum time in which a stopping worker returns a job. After that, other workers take over the job once the heartbeat
is overdue.
"""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock that also advances while the process is frozen or the machine is suspended."""

_AWAY = (psycopg.Error, ConnectorException)


# procrastinate's `JobManager` registers workers and fetches jobs. The statements below do what `JobManager` cannot.
# They use procrastinate's tables, and tests/contracts/test_engine_postgres_jobs.py fails if its schema changes.

_FINISH = b"delete from procrastinate_jobs where id = %s and worker_id = %s and status = 'doing' returning lock"
"""Finishes a job if this worker owns it. Procrastinate's `finish_job` ignores the owner, and fails if the job is
missing.
"""
_RETURN = b"with done as (%b) select shoal_wake(lock) from done" % _FINISH
"""Puts a job back in the queue. Procrastinate's `retry_job` fails if the thread's next job already exists."""
_HAND_OVER = b"""
with done as (%b) select pg_notify('%b', '') from done
where exists (select 1 from procrastinate_jobs todo where todo.lock = done.lock and todo.status = 'todo')
""" % (_FINISH, CHANNEL.encode())
"""Finishes a job and announces the next job of its thread. Procrastinate does not announce that job."""
_STRAYS = b"""
with strays as (
    delete from procrastinate_jobs where worker_id = %s and status = 'doing' and id <> all(%s) returning lock)
select shoal_wake(lock) from strays
"""
"""Puts jobs back in the queue if the response to their fetch was lost. Procrastinate cannot list the jobs of a worker.
"""
_HAS = b"select 1 from procrastinate_jobs where id = %s and worker_id = %s and status = 'doing'"
"""Returns a row if this worker still owns the job. Procrastinate's `get_job_status` does not return the owner."""
_BEAT = b"update procrastinate_workers set last_heartbeat = now() where id = %s returning id"
"""Sends a heartbeat, and returns a row if the worker is still registered. Procrastinate's `update_heartbeat` returns
nothing.
"""
_REVIVE = b"""
with dead as (
    delete from procrastinate_workers
    where id <> %(worker)s and last_heartbeat < now() - make_interval(secs => %(seconds)s)
        and pg_postmaster_start_time() < now() - make_interval(secs => %(seconds)s)
    returning id),
stalled as (
    delete from procrastinate_jobs
    where queue_name = %(queue)s and status = 'doing' and (worker_id is null or worker_id in (select id from dead))
    returning lock)
select lock, shoal_wake(lock) from stalled
"""
"""Puts the jobs of workers that were silent for too long back in the queue.

Procrastinate's `get_stalled_jobs` and `prune_stalled_workers` are two statements, so a worker may come back between
them. Neither gives workers time to reconnect after the database server restarts.
"""
_SWEEP = b"""
select shoal_wake(waiting.thread) from (
    select thread from threads where open_turn <> '' and not exists (select 1 from approvals
        where approvals.thread = threads.thread and approvals.turn = threads.open_turn and approvals.state = 'pending')
    union select inbox.thread from inbox join threads on threads.thread = inbox.thread
        where inbox.state = 'pending' and inbox.lane = 'prompt' and threads.open_turn = '') as waiting
where not exists (select 1 from procrastinate_jobs
    where procrastinate_jobs.lock = waiting.thread and procrastinate_jobs.status in ('todo', 'doing'))
"""
"""Creates jobs for threads that have work but no job. A thread that waits for a person has no work."""
_ASKED = b"""
select thread, open_turn, aborting = open_turn, exists (select 1 from inbox
    where inbox.thread = threads.thread and state = 'pending' and lane = 'steer')
from threads where thread = any(%s) and open_turn <> ''
"""
"""Returns each thread's open turn, whether it must be aborted, and whether steering messages wait for it."""


class _Signal(msgspec.Struct, array_like=True):
    thread: str
    kind: SignalKind
    turn: str


_signal = msgspec.json.Decoder(_Signal)


class _Advance(NamedTuple):
    """A thread that is being advanced.

    `worker` is the id that this worker had when it fetched the job. `over` is set at the end.
    """

    job: int
    worker: int
    scope: anyio.CancelScope
    over: anyio.Event


class PostgresEngine:
    """Implements `Engine`. The app runs the listener.

    If `concurrency` is 0, this process wakes and signals threads but runs none.
    """

    def __init__(self, pool: Pool, listener: Listener, settings: EngineSettings) -> None:
        self._pool = pool
        self._connector = PsycopgConnector()
        self._workers = JobManager(self._connector)
        self._worker = 0
        self._settings = settings
        self._handler: ThreadHandler | None = None
        self._running: dict[ThreadId, _Advance] = {}
        self._taken: dict[int, _Advance] = {}
        self._stir = anyio.Event()
        self._draining = self.missed_signals = self._unsure = False
        self._serving = anyio.Event()
        self._alive_until = 0.0
        if settings.concurrency:
            listener.listen(CHANNEL, self._stir_up, self._stir_up)
            listener.listen(SIGNALS, lambda payload: self._pass_on(_signal.decode(payload)), self._reconnected)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_ready(self) -> bool:
        """True if the worker is registered and its last heartbeat is recent. If `concurrency` is 0, True while
        `run` is active.
        """
        is_alive = not self._settings.concurrency or self._is_alive()
        return self._serving.is_set() and not self._draining and is_alive

    async def started(self) -> None:
        await self._serving.wait()

    async def confirm(self, thread: ThreadId) -> None:
        """Return if no other worker can be running the thread. Checks the thread's job if the last heartbeat is not
        recent.

        Raises StaleEpoch if another worker has taken over the thread, and StoreUnavailable if the check fails.
        """
        running = self._running.get(thread)
        if running is not None and running.worker == self._worker and self._is_alive():
            return
        with _translated():
            if running is None or not await self._execute(_HAS, [running.job, self._worker]):
                raise StaleEpoch(f"Thread {thread}: this worker stopped responding, so another one took over.")

    async def wake(self, thread: ThreadId) -> None:
        """Create a job for the thread unless it has one. Raises StoreUnavailable."""
        with _translated():
            await self._execute(b"select shoal_wake(%s)", [thread])

    async def woken(self, thread: ThreadId) -> None:
        """Do nothing, because the store's transaction has created the job."""

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Notify the worker that is advancing the thread. Raises StoreUnavailable."""
        signal = _Signal(thread, kind, turn)
        self._pass_on(signal)
        with _translated():
            await self._execute(b"select pg_notify(%s, %s)", [SIGNALS, msgspec.json.encode(signal).decode()])

    async def run(self, handler: ThreadHandler) -> None:
        """Serve until drained or cancelled. On cancellation, running jobs are returned to the queue."""
        self._handler = handler
        try:
            while self._settings.concurrency:
                try:
                    await self._register()
                    break
                except _AWAY as error:
                    log.warning("worker registration failed, trying again", extra={"why": why(error)})
                    await anyio.sleep(RETRY_SECONDS)
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
            if self._settings.concurrency:
                with anyio.move_on_after(GIVE_BACK_SECONDS, shield=True):
                    try:
                        await self._workers.unregister_worker(self._worker)  # This frees the worker's remaining jobs.
                    except _AWAY as error:
                        log.warning("worker deregistration failed", extra={"why": why(error)})

    async def drain(self, seconds: float) -> None:
        """Stop fetching, wait up to `seconds` for running jobs, then cancel the rest. Other workers continue the
        cancelled jobs immediately.
        """
        self._draining = True
        self._stir.set()
        with anyio.move_on_after(seconds):
            await self._all_over()
        self._cancel_all()
        await self._all_over()

    # ---- fetching and advancing ----

    async def _work(self, handler: ThreadHandler, tasks: TaskGroup) -> None:
        while not self._draining:
            self._stir = anyio.Event()
            try:
                # After an outage, return jobs whose fetch response was lost, and read missed signals.
                if self._unsure:
                    await self._execute(_STRAYS, [self._worker, list(self._taken)])
                    self._unsure = False
                if self.missed_signals:
                    self.missed_signals = False
                    for thread, turn, is_aborting, has_steers in await self._execute(_ASKED, [list(self._running)]):
                        if has_steers:
                            self._pass_on(_Signal(str(thread), "steer", str(turn)))
                        if is_aborting:
                            self._pass_on(_Signal(str(thread), "abort", str(turn)))
                job = None
                if len(self._taken) < self._settings.concurrency:
                    with suppress(UniqueViolation):  # another worker just took a job of the same thread
                        job = await self._workers.fetch_job([QUEUE], self._worker)
            except _AWAY as error:
                if not self._unsure:
                    log.warning("work paused: database unavailable", extra={"why": why(error)})
                self._unsure = self.missed_signals = True
                await anyio.sleep(RETRY_SECONDS)
                continue
            if job is None or job.id is None:
                with anyio.move_on_after(POLL_SECONDS):
                    await self._stir.wait()
            elif self._draining:
                await self._end(_RETURN, job.id)
            else:
                mine = self._taken[job.id] = _Advance(job.id, self._worker, anyio.CancelScope(), anyio.Event())
                tasks.start_soon(self._advance, handler, ThreadId(job.lock or ""), mine)

    async def _advance(self, handler: ThreadHandler, thread: ThreadId, mine: _Advance) -> None:
        again = False
        try:
            with mine.scope:
                # a cancelled run of the thread may not have ended yet
                while (before := self._running.get(thread)) is not None:
                    await before.over.wait()
                self._running[thread] = mine
                await handler.advance(thread)
            again = mine.scope.cancelled_caught
        except StoreError as error:
            log.warning("retrying thread", extra={"thread_id": thread, "why": why(error)})
            again = True
            await anyio.sleep(RETRY_SECONDS)
        except anyio.get_cancelled_exc_class():
            again = True
            raise
        finally:
            with anyio.CancelScope(shield=True):
                no_slot = self._draining or len(self._taken) >= self._settings.concurrency
                await self._end(_RETURN if again else _HAND_OVER if no_slot else _FINISH, mine.job)
            if self._running.get(thread) is mine:
                del self._running[thread]
            del self._taken[mine.job]
            mine.over.set()
            self._stir.set()

    async def _end(self, statement: bytes, job: int) -> None:
        """End a job with `_FINISH`, `_HAND_OVER` or `_RETURN`, which have no effect on another worker's job.

        Retries until the database responds. While draining, tries only once.
        """
        while True:
            try:
                with anyio.fail_after(GIVE_BACK_SECONDS):
                    await self._execute(statement, [job, self._worker])
                    return
            except (*_AWAY, TimeoutError) as error:
                log.warning("recording finished job failed", extra={"job": job, "why": why(error)})
                if self._draining:
                    return
                await anyio.sleep(RETRY_SECONDS)

    async def _all_over(self) -> None:
        while self._taken:
            await next(iter(self._taken.values())).over.wait()

    def _cancel_all(self) -> None:
        for running in self._taken.values():
            running.scope.cancel()

    # ---- heartbeat ----

    async def _register(self) -> None:
        began = time.clock_gettime(_CLOCK)
        await self._connector.open_async(self._pool)
        self._worker = await self._workers.register_worker()
        self._alive_until = began + self._settings.stalled_seconds

    def _is_alive(self) -> bool:
        """Return True until other workers may consider this one dead."""
        return time.clock_gettime(_CLOCK) < self._alive_until

    async def _live(self) -> None:
        sweep_at = anyio.current_time()
        while True:
            try:
                if anyio.current_time() >= sweep_at:
                    await self._execute(_SWEEP)
                    sweep_at = anyio.current_time() + SWEEP_SECONDS
                await anyio.sleep(self._settings.heartbeat_seconds)
                began = time.clock_gettime(_CLOCK)
                if await self._execute(_BEAT, [self._worker]):
                    self._alive_until = began + self._settings.stalled_seconds
                else:
                    log.warning("worker declared dead, dropping its threads", extra={"running": self.running})
                    self._alive_until = 0.0
                    self._cancel_all()
                    await self._register()
                    self._stir.set()
                stalled = {"worker": self._worker, "seconds": float(self._settings.stalled_seconds), "queue": QUEUE}
                for thread, *_ in await self._execute(_REVIVE, stalled):
                    log.warning("worker stopped responding, taking over its thread", extra={"thread_id": thread})
                    self._stir.set()
            except _AWAY as error:
                # Log a warning once other workers may consider this one dead.
                level = logging.DEBUG if self._is_alive() else logging.WARNING
                log.log(level, "heartbeat failed", extra={"why": why(error)})
                await anyio.sleep(RETRY_SECONDS)

    async def _notice_standstill(self) -> None:
        """Drop this process's threads immediately after a suspension, because other workers continue them.

        This also cancels a turn that has passed `confirm` and was about to call a model.
        """
        while True:
            began = time.clock_gettime(_CLOCK)
            await anyio.sleep(self._settings.heartbeat_seconds / 4)
            stood = time.clock_gettime(_CLOCK) - began
            if stood > self._settings.stalled_seconds:
                log.warning("process suspended, dropping its threads", extra={"seconds": round(stood, 1)})
                self._cancel_all()

    # ---- notifications ----

    def _stir_up(self, _: str = "") -> None:
        self._stir.set()

    def _reconnected(self) -> None:
        self.missed_signals = self._unsure = True
        self._stir.set()

    def _pass_on(self, signal: _Signal) -> None:
        thread = ThreadId(signal.thread)
        if self._handler is not None and thread in self._running:
            self._handler.signal(thread, signal.kind, TurnId(signal.turn))

    async def _execute(
        self, query: bytes, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[tuple[object, ...]]:
        async with self._pool.connection() as connection:
            return await (await connection.execute(query, values)).fetchall()


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except _AWAY as error:
        raise StoreUnavailable(
            f"Shoal cannot connect to the database: {network_reason(error)}. Check that the server is running."
        ) from error
