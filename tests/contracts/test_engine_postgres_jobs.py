"""Behavior of the PostgreSQL engine beyond the contract: outages, silent workers, and leftover rows."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from importlib.resources import files

import anyio
import psycopg
import pytest
from tests.cluster import PostgresCluster
from tests.postgres import empty
from tests.waiting import until

from shoal.engine.cluster import Listener
from shoal.engine.postgres import PostgresEngine
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import StaleEpoch, StoreUnavailable
from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.kernel.messages import Abort
from shoal.kernel.records import Commit, NewApproval
from shoal.kernel.settings import EngineSettings
from shoal.store.postgres import PoolSettings, make_pool, open_postgres
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.engine import Recorder, named, quiet
from shoal.testing.contracts.steps import OTHER, PERSON, THREAD, closed, opened, prompt, steer

pytestmark = pytest.mark.xdist_group("postgres")

QUICK = EngineSettings(concurrency=10, heartbeat_seconds=0.1, stalled_seconds=60)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[Store]:
    driver = await open_postgres(postgres_database, PoolSettings(connections_max=3))
    empty(postgres_database)
    yield Store(driver, ManualClock())
    await driver.close()


@pytest.fixture
async def cluster(postgres_database: str, store: Store) -> AsyncIterator[PostgresCluster]:
    async with asyncio.TaskGroup() as tasks:
        cluster = PostgresCluster(postgres_database, tasks)
        yield cluster
        cluster.stop()


def ask(url: str, query: str, *values: object) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set search_path to shoal")
        cursor = connection.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []


def drop_connections(url: str) -> None:
    ask(url, "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()")  # fmt: skip


async def test_an_idle_thread_leaves_no_rows(cluster: PostgresCluster, postgres_database: str) -> None:
    recorder = Recorder()
    engine = await cluster.start(recorder)
    await engine.wake(named("a"))
    await quiet(engine, recorder)
    await engine.drain(1)
    assert ask(postgres_database, "select count(*) from procrastinate_jobs") == [(0,)]
    assert ask(postgres_database, "select count(*) from procrastinate_events") == [(0,)]


async def test_a_thread_woken_by_the_store_is_not_woken_again(cluster: PostgresCluster, postgres_database: str) -> None:
    engine = await cluster.start_with(Recorder(), EngineSettings(concurrency=0))
    await engine.woken(named("a"))
    assert ask(postgres_database, "select count(*) from procrastinate_jobs") == [(0,)]


async def test_a_process_without_slots_wakes_and_signals_others(cluster: PostgresCluster) -> None:
    idle, worker = Recorder(), Recorder()
    worker.hold(named("a"))
    serving = await cluster.start_with(idle, EngineSettings(concurrency=0))
    await cluster.start(worker)
    await serving.wake(named("a"))
    await worker.started(named("a"))
    await serving.signal(named("a"), "abort", TurnId("T1"))
    await worker.until(lambda: bool(worker.signals))
    worker.let_go(named("a"))
    await worker.ended(named("a"))
    assert idle.starts == []
    await serving.drain(1)


async def test_another_worker_immediately_takes_the_jobs_of_a_drained_one(cluster: PostgresCluster) -> None:
    first, second = Recorder(), Recorder()
    first.hold(named("a"))
    draining = await cluster.start(first)
    await draining.wake(named("a"))
    await first.started(named("a"))
    await cluster.start(second)
    await draining.drain(0)
    await second.ended(named("a"))
    assert first.cancelled == [named("a")]


async def test_dropped_connections_do_not_stop_work(cluster: PostgresCluster, postgres_database: str) -> None:
    recorder = Recorder()
    recorder.hold(named("a"))
    engine = await cluster.start_with(recorder, QUICK)
    await engine.wake(named("a"))
    await recorder.started(named("a"))
    drop_connections(postgres_database)
    recorder.let_go(named("a"))
    await recorder.ended(named("a"))
    await woken_by_anyone(postgres_database, named("b"))
    await recorder.ended(named("b"))
    assert recorder.starts.count(named("a")) == 1


async def woken_by_anyone(url: str, thread: ThreadId) -> None:
    ask(url, "select shoal_wake(%s)", thread)


async def test_signals_missed_in_an_outage_are_read_from_the_rows(
    cluster: PostgresCluster, store: Store, postgres_database: str
) -> None:
    recorder = Recorder()
    recorder.hold(THREAD)
    engine = await cluster.start_with(recorder, QUICK)
    await asyncio.to_thread(until, lambda: not engine.missed_signals)
    await opened(store)
    await recorder.started(THREAD)
    await store.inbox.accept_now(steer("s"))
    await store.inbox.abort(Abort(THREAD, PERSON))
    assert recorder.signals == []
    drop_connections(postgres_database)
    await recorder.until(lambda: {kind for _, kind, _ in recorder.signals} == {"steer", "abort"})
    assert {turn for _, _, turn in recorder.signals} == {"T1"}
    recorder.let_go(THREAD)


async def test_a_job_fetched_over_a_lost_connection_is_returned(
    cluster: PostgresCluster, store: Store, postgres_database: str
) -> None:
    recorder = Recorder()
    engine = await cluster.start_with(recorder, QUICK)
    await quiet(engine, recorder)
    (worker,) = ask(postgres_database, "select id from procrastinate_workers")[0]
    ask(
        postgres_database,
        "begin; lock table procrastinate_jobs in exclusive mode; select shoal_wake('web:lobby:lost');"
        f" update procrastinate_jobs set status = 'doing', worker_id = {worker}; commit",
    )
    drop_connections(postgres_database)
    await recorder.ended(ThreadId("web:lobby:lost"))


async def test_a_worker_declared_dead_drops_its_threads_and_continues(
    cluster: PostgresCluster, postgres_database: str
) -> None:
    recorder = Recorder()
    recorder.hold(named("a"))
    engine = await cluster.start_with(recorder, QUICK)
    await engine.wake(named("a"))
    await recorder.started(named("a"))
    ask(postgres_database, "delete from procrastinate_workers")
    await recorder.until(lambda: recorder.cancelled == [named("a")])
    recorder.let_go(named("a"))
    # the job no longer belongs to a worker, so any worker may claim it, including this one
    await recorder.ended(named("a"))
    assert recorder.most_at_once[named("a")] == 1


async def test_a_worker_with_recent_heartbeats_does_not_check_its_job(
    cluster: PostgresCluster, postgres_database: str
) -> None:
    recorder = Recorder()
    recorder.hold(named("a"))
    engine = await cluster.start_with(recorder, EngineSettings(heartbeat_seconds=60, stalled_seconds=60))
    await engine.wake(named("a"))
    await recorder.started(named("a"))
    with psycopg.connect(postgres_database) as other:
        other.execute("lock table shoal.procrastinate_jobs in access exclusive mode")
        await engine.confirm(named("a"))
    recorder.let_go(named("a"))
    await recorder.ended(named("a"))


async def test_a_silent_worker_notices_that_its_thread_was_reassigned(
    cluster: PostgresCluster, postgres_database: str
) -> None:
    recorder = Recorder()
    recorder.hold(named("a"))
    engine = await cluster.start_with(recorder, EngineSettings(heartbeat_seconds=60, stalled_seconds=0))
    await engine.wake(named("a"))
    await recorder.started(named("a"))
    await engine.confirm(named("a"))
    ask(postgres_database, "delete from procrastinate_jobs")
    with pytest.raises(StaleEpoch):
        await engine.confirm(named("a"))
    with pytest.raises(StaleEpoch):
        await engine.confirm(named("b"))
    recorder.let_go(named("a"))
    await recorder.ended(named("a"))


async def test_a_worker_declared_dead_refuses_to_continue_old_work(
    cluster: PostgresCluster, postgres_database: str
) -> None:
    recorder = Unwinding()
    recorder.hold(named("a"))
    engine = recorder.engine = await cluster.start_with(recorder, QUICK)
    await engine.wake(named("a"))
    await recorder.started(named("a"))
    ask(postgres_database, "delete from procrastinate_jobs; delete from procrastinate_workers")
    await woken_by_anyone(postgres_database, named("b"))
    await recorder.until(lambda: bool(recorder.refused))
    assert engine.is_ready, "it continues as a new worker"


async def test_a_frozen_process_drops_its_threads_and_continues(
    cluster: PostgresCluster, postgres_database: str
) -> None:
    recorder = Recorder()
    recorder.hold(named("a"))
    settings = EngineSettings(concurrency=10, heartbeat_seconds=0.02, stalled_seconds=0.1)
    engine = await cluster.start_with(recorder, settings)
    await engine.wake(named("a"))
    await recorder.started(named("a"))
    ask(postgres_database, "select pg_sleep(0.3)")  # blocks the event loop, as if the process were frozen
    await recorder.until(lambda: named("a") in recorder.cancelled)
    recorder.let_go(named("a"))
    await recorder.ended(named("a"))
    assert recorder.most_at_once[named("a")] == 1


class Unwinding(Recorder):
    """A handler that tries to continue after its cancellation, when the process is already a new worker."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: PostgresEngine | None = None
        self.refused: list[StaleEpoch] = []

    async def advance(self, thread: ThreadId) -> None:
        try:
            await super().advance(thread)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self.started(named("b"))
                await self._look(thread)
            raise

    async def _look(self, thread: ThreadId) -> None:
        assert self.engine is not None
        try:
            await self.engine.confirm(thread)
        except StaleEpoch as error:
            self.refused.append(error)
            await self._tell()


async def test_threads_of_a_silent_worker_are_taken_over(cluster: PostgresCluster, postgres_database: str) -> None:
    ask(postgres_database, "insert into procrastinate_workers (last_heartbeat) values (now() - interval '1 hour')")
    ask(postgres_database, "select shoal_wake('web:lobby:left')")
    ask(
        postgres_database,
        "update procrastinate_jobs set status = 'doing', worker_id = (select id from procrastinate_workers)",
    )
    ask(postgres_database, "select shoal_wake('web:lobby:left')")  # a wake that arrives in the meantime
    recorder = Recorder()
    engine = await cluster.start_with(
        recorder, EngineSettings(concurrency=10, heartbeat_seconds=0.1, stalled_seconds=5)
    )
    await recorder.ended(ThreadId("web:lobby:left"))
    await quiet(engine, recorder)
    assert recorder.starts.count(ThreadId("web:lobby:left")) == 1


async def test_after_a_server_restart_no_worker_is_declared_dead(
    cluster: PostgresCluster, postgres_database: str
) -> None:
    """After a restart every worker gets time to reconnect. Here the server started more recently than
    `stalled_seconds` ago.
    """
    ask(postgres_database, "insert into procrastinate_workers (last_heartbeat) values (now() - interval '10 years')")
    recorder = Recorder()
    engine = await cluster.start_with(recorder, EngineSettings(heartbeat_seconds=0.01, stalled_seconds=86_400 * 1000.0))
    for number in range(5):
        await quiet(engine, recorder, f"probe{number}")
    assert ask(postgres_database, "select count(*) from procrastinate_workers") == [(2,)]


class Refusing(Recorder):
    """A handler whose first turn fails as if the database were down."""

    async def advance(self, thread: ThreadId) -> None:
        await super().advance(thread)
        if self.starts.count(thread) == 1:
            raise StoreUnavailable("gone")


async def test_a_thread_is_retried_after_a_database_outage(cluster: PostgresCluster) -> None:
    recorder = Refusing()
    engine = await cluster.start(recorder)
    await engine.wake(named("a"))
    await recorder.ended(named("a"), 2)


async def test_a_wake_without_a_database_fails(postgres_database: str) -> None:
    pool = make_pool("postgresql://127.0.0.1:1/none", PoolSettings(wait_seconds=0.2))
    await pool.open()
    engine = PostgresEngine(pool, Listener(""), QUICK)
    with pytest.raises(StoreUnavailable):
        await engine.wake(named("a"))
    with pytest.raises(StoreUnavailable):
        await engine.signal(named("a"), "abort", TurnId("T1"))
    await pool.close()


async def test_a_job_fetched_while_draining_is_returned(cluster: PostgresCluster, postgres_database: str) -> None:
    recorder = Recorder()
    engine = await cluster.start(recorder)
    await quiet(engine, recorder)
    with psycopg.connect(postgres_database) as other:
        other.execute("set search_path to shoal")
        other.execute("lock table procrastinate_jobs in exclusive mode")
        ask(postgres_database, "select pg_notify('procrastinate_queue_v1#shoal', '')")
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(ask, postgres_database, WAITING):
                pass
        other.execute("select shoal_wake('web:lobby:late')")
        draining = asyncio.gather(engine.drain(10))
        await asyncio.sleep(0)
    await draining
    second = Recorder()
    await cluster.start(second)
    await second.ended(ThreadId("web:lobby:late"))
    assert recorder.starts == [named("probe")]


WAITING = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


async def test_threads_without_their_job_are_found(
    cluster: PostgresCluster, store: Store, postgres_database: str
) -> None:
    lease = await opened(store, "T1")
    await closed(store, lease)
    await opened(store, "T2", key="open")
    await store.inbox.accept(prompt("queued", OTHER), 5)
    await parked(store)
    ask(postgres_database, "delete from procrastinate_jobs")
    recorder = Recorder()
    engine = await cluster.start_with(recorder, QUICK)
    await recorder.ended(THREAD)
    await recorder.ended(OTHER)
    await quiet(engine, recorder)
    assert set(recorder.starts) == {THREAD, OTHER, named("probe")}


async def parked(store: Store) -> None:
    lease = await opened(store, "T3", named("parked"))
    expires_at = SystemClock().now()
    approval = NewApproval(ApprovalId("A"), CallId("c"), "bash", ("x",), "d", "rm", "u1", expires_at)
    await store.journal.commit(lease, Commit(TurnId("T3"), approvals=(approval,)))


async def test_a_process_without_slots_never_becomes_a_worker(cluster: PostgresCluster, postgres_database: str) -> None:
    settings = EngineSettings(concurrency=0, heartbeat_seconds=0.01)
    serving = await cluster.start_with(Recorder(), settings)
    worker = Recorder()
    engine = await cluster.start_with(worker, QUICK)
    for number in range(5):
        await serving.wake(named(f"t{number}"))
        await quiet(engine, worker, f"probe{number}")
    assert ask(postgres_database, "select count(*) from procrastinate_workers") == [(1,)]


SCHEMA_DIGEST = "c70ec4b400a60ad9592787653aae5ae77ae41bf801d56b5bd2712751a07f2009"
"""Digest of procrastinate's schema.sql that `shoal_wake` and the statements of engine/postgres.py were written for."""


def test_procrastinates_schema_matches_our_statements() -> None:
    schema = files("procrastinate") / "sql" / "schema.sql"
    digest = hashlib.sha256(schema.read_bytes()).hexdigest()
    assert digest == SCHEMA_DIGEST, "read the changes, adapt the statements, then update the digest"
