"""Behavior of the PostgreSQL driver beyond the store contract: wakes within a transaction, lock order, and lost
connections.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout
from tests.connections import listening
from tests.postgres import SCRIPT, database, empty, private_server

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.errors import Conflict, InvalidInput, StaleEpoch, StoreCorrupt, StoreError, StoreUnavailable
from shoal.kernel.events import AssistantSaid, TurnFinished, UserSaid
from shoal.kernel.ids import TurnId
from shoal.kernel.messages import Abort, Author, Usage
from shoal.kernel.records import Ceiling, Commit, Report, Reservation, Spend, Step
from shoal.store import postgres
from shoal.store.driver import Batch, Query, Row, Script, migrations, query, text
from shoal.store.postgres import (
    IDLE_SECONDS,
    Call,
    Pipeline,
    PoolSettings,
    PostgresDriver,
    address,
    make_pool,
    open_postgres,
    tables,
)
from shoal.store.sqlite import connect, migrate
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, PERSON, THREAD, closed, leased, opened, opening, post, prompt, steer
from shoal.testing.contracts.store_children import called

pytestmark = pytest.mark.xdist_group("postgres")

T = TypeVar("T")


@pytest.fixture
async def driver(postgres_database: str) -> AsyncIterator[PostgresDriver]:
    driver = await open_postgres(postgres_database, PoolSettings(connections_max=3))
    empty(postgres_database)
    yield driver
    await driver.close()


@pytest.fixture
async def store(driver: PostgresDriver) -> Store:
    return Store(driver, ManualClock())


@pytest.fixture
async def other(postgres_database: str, driver: PostgresDriver) -> AsyncIterator[AsyncConnection]:
    async with await AsyncConnection.connect(postgres_database, autocommit=True) as connection:
        await connection.execute("set search_path to shoal")
        yield connection


def put(key: str, value: str = "v") -> Script[list[Row]]:
    return query("setting_put", scope="s", key=key, value=value)


async def value(driver: PostgresDriver, key: str) -> str | None:
    rows = await driver.read(query("setting_get", scope="s", key=key))
    return text(rows[0][0]) if rows else None


async def jobs(connection: AsyncConnection) -> list[tuple[str, str]]:
    cursor = await connection.execute("select lock, status::text from procrastinate_jobs order by id")
    return [(str(row[0]), str(row[1])) for row in await cursor.fetchall()]


async def waiters(connection: AsyncConnection) -> int:
    cursor = await connection.execute(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def until_someone_waits(connection: AsyncConnection, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while await waiters(connection) < count:
            pass


# ---- waking ----


async def test_accepting_defers_one_job_per_thread(store: Store, other: AsyncConnection) -> None:
    await store.inbox.accept(prompt("a"), 5)
    await store.inbox.accept(prompt("b"), 5)
    await store.inbox.accept(prompt("c", OTHER), 5)
    assert await jobs(other) == [(THREAD, "todo"), (OTHER, "todo")]


async def test_a_refused_message_defers_nothing(store: Store, other: AsyncConnection) -> None:
    await store.inbox.accept(prompt("a"), 0)
    await store.inbox.accept_now(steer("s"))
    assert await jobs(other) == []


async def test_a_wake_while_the_job_runs_defers_another(store: Store, other: AsyncConnection) -> None:
    await store.inbox.accept(prompt("a"), 5)
    await other.execute(
        "select procrastinate_fetch_job_v2(null, (select worker_id from procrastinate_register_worker_v1()))"
    )
    await store.inbox.accept(prompt("b"), 5)
    assert await jobs(other) == [(THREAD, "doing"), (THREAD, "todo")]


# ---- locks ----


async def test_a_lease_sees_a_message_accepted_at_the_same_moment(store: Store, other: AsyncConnection) -> None:
    """A wake creates no job while the thread's job is running. The job that takes this lease may be the last one,
    so it must see the message.
    """
    await closed(store, await opened(store))
    async with other.transaction():
        await other.execute("update threads set updated_at = updated_at where thread = %s", [THREAD])
        lease = asyncio.ensure_future(store.journal.lease(THREAD))
        async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
            await until_someone_waits(watcher)
        await other.execute(
            "insert into inbox (platform, key, thread, lane, payload, at)"
            " select platform, 'late', thread, lane, payload, at from inbox limit 1"
        )
    taken = await lease
    assert taken is not None
    assert taken.prompt is not None


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_writers_are_serialized_at_any_default_isolation_level(
    postgres_database: str, driver: PostgresDriver, other: AsyncConnection, isolation: str
) -> None:
    options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    strict = await open_postgres(make_conninfo(postgres_database, options=options))
    await driver.write(put("a", "0"))
    async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
        async with other.transaction():
            await other.execute("update settings set value = '1'")
            writing = asyncio.ensure_future(strict.write(put("a", "2")))
            await until_someone_waits(watcher)
        await writing
    assert await value(driver, "a") == "2"
    await strict.close()


async def test_a_steer_at_the_end_of_the_turn_is_delivered(store: Store, other: AsyncConnection) -> None:
    lease = await opened(store)
    await store.inbox.accept_now(steer("s0"))
    await store.journal.take_steers(lease, TurnId("T1"))
    async with other.transaction():
        await other.execute("update threads set updated_at = updated_at where thread = %s", [THREAD])
        finishing = asyncio.ensure_future(closed(store, lease))
        async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
            await until_someone_waits(watcher)
        await other.execute("update inbox set state = 'pending' where key = 's0'")
    assert [event.type for event in (await finishing).events] == ["steered"]


class Held:
    """A driver that ends each transaction by updating a setting. A test can lock that setting to delay the commit."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver
        self.read = driver.read
        self.close = driver.close

    async def write(self, script: Script[T]) -> T:
        def held() -> Script[T]:
            try:
                batch = next(script)
                while True:
                    # never pass on `last`, because the update below must follow
                    batch = script.send((yield Batch(batch.queries)))
            except StopIteration as end:
                done = end.value
            yield from put("held")
            return done

        return await self._driver.write(held())


@pytest.mark.parametrize("ends", ["by itself", "stopped before it began"])
async def test_an_already_woken_parent_sees_its_childs_end(
    store: Store, driver: PostgresDriver, other: AsyncConnection, ends: str
) -> None:
    """The parent's job may start before the child's end is committed. A wake creates no job while that job is
    running, so the job itself must see the child's end.
    """
    await opened(store)
    child = called()
    await store.children.begin(child, 2)
    await driver.write(put("held"))
    slow = Store(Held(driver), ManualClock())
    if ends == "by itself":
        lease = await leased(store, child.thread)
        await store.journal.open_turn(lease, child, opening("C1", child))
        finished = Commit(TurnId("C1"), (TurnFinished("done", "seven"),), report=Report(THREAD))
        end = slow.journal.finish_turn(lease, finished)
    else:
        end = slow.inbox.abort(Abort(child.thread, PERSON, all_queued=True))
    async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
        async with other.transaction():
            await other.execute("select * from settings for update")
            ending = asyncio.ensure_future(end)
            await until_someone_waits(watcher)
            parent = asyncio.ensure_future(store.journal.lease(THREAD))
            await until_someone_waits(watcher, 2)
        await asyncio.gather(ending, parent)


NOTE = UserSaid("seven", PERSON, message_id="child", origin="system")


@pytest.mark.parametrize("report", [Report(THREAD), Report(THREAD, NOTE), Report(THREAD, NOTE, starts_turn=True)])
async def test_a_childs_end_locks_its_parent_before_the_shared_budget(
    store: Store, other: AsyncConnection, report: Report
) -> None:
    """In the opposite order they would deadlock: the child waits for the thread, and the parent for the budget."""
    await opened(store)
    child, clock = called(), ManualClock()
    await store.children.begin(child, 2)
    lease = await leased(store, child.thread)
    await store.journal.open_turn(lease, child, opening("C1", child))
    ceilings = (Ceiling("total", "", usd_max=10.0),)
    await store.budget.reserve(Reservation("r", ceilings, 1.0, 10, clock.now() + timedelta(hours=1)))
    spend = Spend("s", "main", "u1", "demo", Usage(5, 5), 0.5, reservation="r")
    finished = Commit(TurnId("C1"), (TurnFinished("done", "seven"),), spend=spend, report=report)
    async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
        async with other.transaction():
            await other.execute("select * from threads where thread = %s for update", [THREAD])
            ending = asyncio.ensure_future(store.journal.finish_turn(lease, finished))
            await until_someone_waits(watcher)
            await other.execute("update budget set usd = usd")
        await ending
    assert [standing.usd for standing in await store.budget.standings()] == [0.5]


async def test_an_idle_transaction_is_ended(driver: PostgresDriver) -> None:
    async with driver.pool.connection() as connection:
        cursor = await connection.execute("show idle_in_transaction_session_timeout")
        assert await cursor.fetchone() == (f"{IDLE_SECONDS}s",)


# ---- round trips ----


async def test_a_turns_writes_take_few_round_trips(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round trip wakes both the server and this process, which is most of the cost of a turn."""
    run, trips, count = Pipeline.run, list[int](), 0

    async def counted(pipeline: Pipeline, connection: AsyncConnection, calls: Sequence[Call]) -> list[list[Row]]:
        nonlocal count
        count += 1
        return await run(pipeline, connection, calls)

    monkeypatch.setattr(Pipeline, "run", counted)

    def done() -> None:
        nonlocal count
        trips.append(count)
        count = 0

    await store.inbox.accept(prompt("a"), 5)
    done()
    lease = await store.journal.lease(THREAD)
    assert lease is not None
    done()
    await store.journal.open_turn(lease, prompt("a"), opening("T1", prompt("a")))
    done()
    step = Step(1, "model", ManualClock().now(), 7)
    await store.journal.commit(lease, Commit(TurnId("T1"), (AssistantSaid("so"),), steps=(step,)))
    done()
    await store.journal.finish_turn(lease, Commit(TurnId("T1"), (TurnFinished("done", "so"),), steps=(step,)))
    done()
    assert await store.journal.steps(THREAD)
    done()
    assert trips == [2, 1, 2, 1, 4, 1]


async def test_everything_in_a_stale_commit_is_rolled_back(store: Store) -> None:
    stale = await opened(store)
    await store.journal.lease(THREAD)
    step = Step(1, "model", ManualClock().now(), 7)
    with pytest.raises(StaleEpoch, match=THREAD):
        await store.journal.commit(stale, Commit(TurnId("T1"), (AssistantSaid("so"),), steps=(step,)))
    assert await store.journal.steps(THREAD) == []


async def test_a_statement_skipped_after_a_failure_works_when_it_runs_later(driver: PostgresDriver) -> None:
    def failing() -> Script[None]:
        known = Query("trigger_insert", {"id": "t", "spec": "", "next_at": 1, "now": 1})
        yield Batch((known, known, Query("setting_put", {"scope": "s", "key": "a", "value": "v"})), last=True)

    with pytest.raises(StoreError, match="duplicate key"):
        await driver.write(failing())
    assert await value(driver, "a") is None
    await driver.write(put("a"))
    assert await value(driver, "a") == "v"


# ---- connections ----


def terminate(url: str) -> int:
    """Terminate all other connections to this database, as an operator or a failover would, and return their number."""
    with psycopg.connect(url, autocommit=True) as connection:
        return len(
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchall()
        )


async def test_dropped_connections_are_replaced_unnoticed(driver: PostgresDriver, postgres_database: str) -> None:
    await asyncio.gather(*(driver.write(put(str(number))) for number in range(10)))
    for key in ("a", "b", "c"):
        assert terminate(postgres_database) >= 1
        await driver.write(put(key))
        assert terminate(postgres_database) >= 1
        assert await value(driver, key) == "v"


async def test_a_connection_lost_during_a_transaction_rolls_it_back(
    driver: PostgresDriver, postgres_database: str
) -> None:
    def script() -> Script[None]:
        yield from put("lost")
        assert terminate(postgres_database) >= 1
        yield from put("late")

    with pytest.raises(StoreUnavailable, match="Check that the server is running"):
        await driver.write(script())
    assert await value(driver, "lost") is None
    await driver.write(put("after"))
    assert await value(driver, "after") == "v"


async def test_a_failed_script_is_rolled_back_and_costs_no_connection(driver: PostgresDriver) -> None:
    def failing() -> Script[None]:
        yield from put("bad")
        raise Conflict("no")

    for _ in range(10):
        with pytest.raises(Conflict):
            await driver.write(failing())
    assert await value(driver, "bad") is None


async def test_a_cancelled_write_is_rolled_back_and_costs_no_connection(
    driver: PostgresDriver, other: AsyncConnection
) -> None:
    await driver.write(put("a"))
    for _ in range(5):
        async with other.transaction():
            await other.execute("select * from settings for update")
            writing = asyncio.ensure_future(driver.write(put("a", "changed")))
            async with await AsyncConnection.connect(other.info.dsn, autocommit=True) as watcher:
                await until_someone_waits(watcher)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
    assert await value(driver, "a") == "v"


async def test_callers_share_a_few_connections(driver: PostgresDriver) -> None:
    await asyncio.gather(*(driver.write(put(str(number))) for number in range(50)))
    assert driver.pool.get_stats()["pool_max"] == 3
    assert await value(driver, "49") == "v"


async def test_keys_that_cannot_be_stored_are_rejected(driver: PostgresDriver) -> None:
    for key in ("nul \0", "half \ud800"):
        with pytest.raises(InvalidInput):
            await driver.write(put(key))
    await driver.write(put("fine"))


async def test_an_unreachable_server_is_reported(postgres_database: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot reach the database"):
        await open_postgres(make_conninfo(postgres_database, host="127.0.0.1", port=1), PoolSettings(wait_seconds=1))
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await open_postgres(make_conninfo(postgres_database, dbname="absent"), PoolSettings(wait_seconds=1))


def test_an_invalid_address_is_reported() -> None:
    with pytest.raises(InvalidInput, match="postgresql://"):
        address("mysql://somewhere")


def test_an_address_keeps_its_parameters() -> None:
    assert "connect_timeout=60" in address("postgresql://shoal@db/shoal?connect_timeout=60")
    assert "connect_timeout=5" in address("postgresql://shoal@db/shoal")


async def test_another_database_behind_the_same_address_is_not_written_to() -> None:
    """The other database is a copy, so it resembles the original as closely as possible."""
    with database() as url:
        name = conninfo_to_dict(url)["dbname"]
        driver = await open_postgres(url, PoolSettings(connections_max=2, wait_seconds=5))
        await driver.write(put("before"))
        with psycopg.connect(make_conninfo(url, dbname="postgres"), autocommit=True) as admin:
            ending = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> 0"
            admin.execute(ending, (name,))
            admin.execute(f"alter database {name} rename to {name}_old".encode())
            try:
                admin.execute(f"create database {name} template {name}_old".encode())
                with pytest.raises(StoreCorrupt, match="points to a different database"):
                    await value(driver, "before")
                with pytest.raises(StoreCorrupt, match="points to a different database"):
                    await driver.write(put("after"))
                assert "points to a different database" in driver.health.damage
                with psycopg.connect(url) as fresh:
                    assert fresh.execute("select key from shoal.settings where scope = 's'").fetchall() == [("before",)]
                await driver.close()
                again = await open_postgres(url)
                assert await value(again, "before") == "v"
                await again.write(put("after"))
                await again.close()
            finally:
                admin.execute(f"drop database {name}_old with (force)".encode())


@pytest.mark.parametrize("state", ["XX001", "XX002"])
async def test_damage_reported_by_the_server_stops_writing(
    driver: PostgresDriver, other: AsyncConnection, state: str
) -> None:
    body = f"begin raise exception 'invalid page' using errcode = '{state}'; end"
    await other.execute(f"create function broken() returns trigger language plpgsql as $${body}$$".encode())
    await other.execute(b"create trigger broken before insert on settings execute function broken()")
    try:
        with pytest.raises(StoreCorrupt, match="invalid page"):
            await driver.write(put("a"))
    finally:
        await other.execute(b"drop function broken cascade")
    with pytest.raises(StoreCorrupt, match="invalid page"):
        await driver.write(put("a"))


@pytest.mark.slow
async def test_the_store_recovers_with_the_server() -> None:
    with private_server() as url:
        driver = await open_postgres(url, PoolSettings(connections_max=2, wait_seconds=2))
        await driver.write(put("before"))
        with psycopg.connect(url) as connection:
            (folder,) = connection.execute("show data_directory").fetchone() or ("",)
        server(str(folder), "stop")
        with pytest.raises(StoreUnavailable):
            await driver.write(put("down"))
        server(str(folder), "start")
        async with asyncio.timeout(60):
            while not await written(driver, "up"):
                pass
        assert [await value(driver, key) for key in ("before", "down", "up")] == ["v", None, "v"]
        await driver.close()


@pytest.mark.slow
async def test_a_long_outage_does_not_slow_down_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With exponential backoff, a server that was down for minutes would be retried only minutes later."""
    monkeypatch.setattr(postgres, "RECONNECT_SECONDS", 1.0)
    attempts = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1

    async with listening(refuse) as port, asyncio.timeout(14):
        pool = make_pool(f"host=127.0.0.1 port={port}", PoolSettings(wait_seconds=0.5))
        await pool.open(wait=False)
        # with two attempts per round and delays of 1, 2, 4, 8, … seconds, nine attempts would take 15 seconds
        while attempts < 9:
            with pytest.raises(PoolTimeout):
                await pool.getconn()
        await pool.close()


def server(folder: str, verb: str) -> None:
    subprocess.run([SCRIPT, verb, str(Path(folder).parent)], check=True, capture_output=True)


async def written(driver: PostgresDriver, key: str) -> bool:
    try:
        await driver.write(put(key))
    except StoreUnavailable:
        return False
    return True


# ---- tables ----


async def test_the_first_process_creates_the_tables() -> None:
    with database() as url:
        drivers = await asyncio.gather(*(open_postgres(url) for _ in range(4)))
        for number, driver in enumerate(drivers):
            await driver.write(put(str(number)))
        async with await AsyncConnection.connect(url) as connection:
            cursor = await connection.execute("select count(*) from shoal.migrations where part = 'store'")
            assert await cursor.fetchone() == (len(migrations("postgres")),)
        for driver in drivers:
            await driver.close()


SEARCH_COLUMN = "said"


async def test_both_dialects_have_the_same_tables(driver: PostgresDriver, other: AsyncConnection) -> None:
    """Full-text search is the exception: SQLite uses a virtual table, PostgreSQL a column."""
    columns: dict[str, list[str]] = {}
    for table in await tables(other):
        cursor = await other.execute(f"select * from {table} limit 0".encode())
        columns[table] = [column.name for column in cursor.description or () if column.name != SEARCH_COLUMN]
    with closing(connect(":memory:")) as lite:
        migrate(lite, Path("shoal.db"))
        names = lite.execute("select name from sqlite_master where type = 'table'").fetchall()
        expected = {
            name: [column[1] for column in lite.execute(f"pragma table_info({name})").fetchall()]
            for (name,) in names
            if not name.startswith(("search", "sqlite_"))
        }
    assert columns == expected


async def test_ids_are_ordered_by_their_bytes(driver: PostgresDriver, other: AsyncConnection) -> None:
    """The order must not depend on the server's locale, because SQLite compares bytes."""
    cursor = await other.execute(
        "select table_name || '.' || column_name from information_schema.columns"
        " where table_schema = 'shoal' and collation_name = 'C'"
    )
    assert {"threads.thread", "audit.chain", "spend.day", "triggers.id"} <= {row[0] for row in await cursor.fetchall()}


async def test_other_processes_are_notified_of_posts_and_triggers(store: Store, other: AsyncConnection) -> None:
    await other.execute("listen shoal_due")
    assert await store.outbox.put(post("a"))
    assert not await store.outbox.put(post("a"))
    await TriggerStore(store.driver, ManualClock()).add(
        NewTrigger("periodic", "0 * * * *", "look", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""),
        ManualClock().now(),
    )
    told = [told.payload async for told in other.notifies(timeout=20, stop_after=2)]
    assert told == ["web", "triggers"]


def test_missing_packages_are_reported() -> None:
    code = "import sys; sys.modules['psycopg'] = None; import shoal.store.postgres"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "ConfigError: database.url needs the `postgres` extra" in result.stderr
