"""The jobs "advance this thread" in procrastinate's tables, and the workers that run them.

   a job                                                    by
   ------------------------------------------------------   ---------------------------------------------------------
   todo      at most one a thread (queueing_lock)            shoal_wake, in the store's transactions, or `wake` here
   doing     at most one a thread (lock), has a worker       procrastinate's fetch
   gone      its thread was advanced                         `finish` or `hand_over`, only by the worker that has it
   gone, and a new one todo                                  `return_it`, by a worker that stops
   gone, and a new one todo                                  `revive`, when its worker gave no sign of life for long

A worker that was taken for dead and is not finds its row gone at the next sign of life (`beat` says so), and what it
still finishes is no longer its own.
"""

from typing import TypeAlias

from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.manager import JobManager
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from shoal.domain.ids import ThreadId

QUEUE = "shoal"
CHANNEL = f"procrastinate_queue_v1#{QUEUE}"
"""Where procrastinate tells of new jobs."""

Pool: TypeAlias = AsyncConnectionPool[AsyncConnection]
JobError = ConnectorException


def why(error: Exception) -> str:
    """What went wrong with the database, in one line for the log."""
    return " ".join(str(error).split()) or type(error).__name__


_FINISH = b"delete from procrastinate_jobs where id = %s and worker_id = %s and status = 'doing' returning lock"
_RETURN = b"with done as (" + _FINISH + b") select shoal_wake(lock) from done"
_HAND_OVER = (
    b"with done as ("
    + _FINISH
    + b""")
select pg_notify('"""
    + CHANNEL.encode()
    + b"""', '') from done
where exists (select 1 from procrastinate_jobs todo where todo.lock = done.lock and todo.status = 'todo')
"""
)
_STRAYS = b"""
with strays as (
    delete from procrastinate_jobs where worker_id = %s and status = 'doing' and id <> all(%s) returning lock)
select shoal_wake(lock) from strays
"""
_HAS = b"select 1 from procrastinate_jobs where id = %s and worker_id = %s and status = 'doing'"
_BEAT = b"update procrastinate_workers set last_heartbeat = now() where id = %s"
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


_SWEEP = b"""
select shoal_wake(waiting.thread) from (
    select thread from threads where open_turn <> '' and not exists (select 1 from approvals
        where approvals.thread = threads.thread and approvals.turn = threads.open_turn and approvals.state = 'pending')
    union select inbox.thread from inbox join threads on threads.thread = inbox.thread
        where inbox.state = 'pending' and inbox.lane = 'prompt' and threads.open_turn = '') as waiting
where not exists (select 1 from procrastinate_jobs
    where procrastinate_jobs.lock = waiting.thread and procrastinate_jobs.status in ('todo', 'doing'))
"""


class Jobs:
    """The jobs as one worker sees them. Every method raises psycopg.Error or JobError when the database is away."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._connector = PsycopgConnector()
        self._manager = JobManager(self._connector)
        self.worker = 0

    async def register(self) -> None:
        """Become a (new) worker."""
        await self._connector.open_async(self._pool)
        self.worker = await self._manager.register_worker()

    async def unregister(self) -> None:
        """Be none any more; jobs it still has go to others at once."""
        await self._manager.unregister_worker(self.worker)

    async def fetch(self) -> tuple[int, ThreadId] | None:
        """Take the oldest job that may run, as (its id, its thread)."""
        try:
            job = await self._manager.fetch_job([QUEUE], self.worker)
        except UniqueViolation:  # another worker took a job of the same thread in this moment
            return None
        return None if job is None or job.id is None else (job.id, ThreadId(job.lock or ""))

    async def finish(self, job: int) -> None:
        """The job is done, and this worker looks for the next itself. Nothing when it is no longer ours."""
        await self._end(_FINISH, job)

    async def hand_over(self, job: int) -> None:
        """The job is done, and others are told when there is a next one of its thread."""
        await self._end(_HAND_OVER, job)

    async def return_it(self, job: int) -> None:
        """The job is not done: make it todo again for whoever comes first."""
        await self._end(_RETURN, job)

    async def _end(self, query: bytes, job: int) -> None:
        async with self._pool.connection() as connection:
            await connection.execute(query, [job, self.worker])

    async def give_back_strays(self, known: list[int]) -> None:
        """Make jobs todo again that are ours without our knowing: the answer to a fetch was lost."""
        async with self._pool.connection() as connection:
            await connection.execute(_STRAYS, [self.worker, known])

    async def has(self, job: int) -> bool:
        """Whether the job is still ours."""
        async with self._pool.connection() as connection:
            return await (await connection.execute(_HAS, [job, self.worker])).fetchone() is not None

    async def beat(self) -> bool:
        """Give a sign of life; False when this worker was taken for dead before."""
        async with self._pool.connection() as connection:
            return (await connection.execute(_BEAT, [self.worker])).rowcount == 1

    async def revive(self, stalled_seconds: float) -> list[ThreadId]:
        """Make the jobs of workers that were silent for so long todo again; returns their threads.

        After a start of the server everybody is given that time to come back.
        """
        values = {"worker": self.worker, "seconds": float(stalled_seconds), "queue": QUEUE}
        async with self._pool.connection() as connection:
            return [ThreadId(str(row[0])) for row in await (await connection.execute(_REVIVE, values)).fetchall()]

    async def sweep(self) -> None:
        """Make jobs for threads that have work and none; those that wait for a person have no work."""
        async with self._pool.connection() as connection:
            await connection.execute(_SWEEP)

    async def wake(self, thread: ThreadId) -> None:
        """Make a job, unless one is todo."""
        async with self._pool.connection() as connection:
            await connection.execute(b"select shoal_wake(%s)", [thread])

    async def notify(self, channel: str, payload: str) -> None:
        """Tell every process that listens."""
        async with self._pool.connection() as connection:
            await connection.execute(b"select pg_notify(%s, %s)", [channel, payload])

    async def asked_of(self, threads: list[ThreadId]) -> list[tuple[ThreadId, str, bool, bool]]:
        """Of threads with an open turn: the turn, whether it is to be aborted, and whether messages wait for it."""
        query = b"""
            select thread, open_turn, aborting = open_turn, exists (select 1 from inbox
                where inbox.thread = threads.thread and state = 'pending' and lane = 'steer')
            from threads where thread = any(%s) and open_turn <> ''
        """
        async with self._pool.connection() as connection:
            rows = await (await connection.execute(query, [threads])).fetchall()
        return [(ThreadId(str(row[0])), str(row[1]), bool(row[2]), bool(row[3])) for row in rows]
