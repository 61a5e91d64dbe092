"""A migration of a home to PostgreSQL happens completely and once, or not at all."""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from tests.postgres import database

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.errors import Conflict, HomeLocked, StoreCorrupt
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CallId, TurnId
from shoal.kernel.messages import Author, Usage
from shoal.kernel.records import AuditEntry, Commit, NewApproval, Spend
from shoal.store.lock import HomeLock
from shoal.store.moving import migrate_sqlite_to_postgres
from shoal.store.postgres import open_postgres
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, closed, leased, opened, opening, post, prompt, steer

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
def target() -> Generator[str]:
    with database() as url:
        yield url


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    clock = ManualClock()
    store = Store(SqliteDriver(home.database_file, synchronous="OFF"), clock)
    lease = await opened(store, "T0", OTHER)
    for number in range(3):
        audit = (AuditEntry("action", f"tool:bash:{number}", "allow"),)
        spend = Spend(f"s{number}", "main", "u1", "demo", Usage(10, 5), 0.1)
        await store.journal.commit(
            lease, Commit(TurnId("T0"), audit=audit, spend=spend, posts=(post(f"p{number}", OTHER),))
        )
    await closed(store, lease, "T0")
    lease = await opened(store, "T1")
    approval = NewApproval(
        ApprovalId("A1"), CallId("c"), "bash", ("x",), "d", "rm", "u1", clock.now() + timedelta(hours=1)
    )
    await store.journal.commit(
        lease, Commit(TurnId("T1"), approvals=(approval,), audit=(AuditEntry("action", "b", "ask"),))
    )
    await store.inbox.accept(prompt("waiting", text="nul \0 and ☃"), 5)
    await store.inbox.accept_now(steer("s"))
    await TriggerStore(store.driver, clock).add(
        NewTrigger("periodic", "0 * * * *", "look", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""),
        clock.now(),
    )
    await store.settings.put("web", "offset", "7")
    (row,) = await store.outbox.claim(["web"], 1, 60)
    await store.outbox.posted(row, 0, "m0", last=True)
    await store.close()
    return home


async def contents(store: Store) -> list[object]:
    return [
        await store.journal.threads(),
        *[await store.journal.events(thread) for thread in (THREAD, OTHER)],
        await store.approvals.search(),
        await store.audit.chains(),
        await store.audit.tail(),
        await TriggerStore(store.driver, ManualClock()).all(),
        await store.ledger.usage(),
        await store.settings.get("web", "offset"),
        await store.outbox.depth(),
        await store.outbox.posted_ids("p0"),
        sorted(await store.inbox.waiting()),
        await store.inbox.backlog(),
    ]


async def test_a_moved_store_keeps_its_content_and_continues_its_work(home: Home, target: str) -> None:
    moved = await migrate_sqlite_to_postgres(home, target)
    assert (moved["threads"], moved["inbox"], moved["audit"], moved["chains"]) == (2, 4, 4, 2)
    clock = ManualClock()
    before = Store(SqliteDriver(home.database_file), clock)
    after = Store(await open_postgres(target), clock)
    assert await contents(after) == await contents(before)
    lease = await leased(after)
    assert lease.steers
    assert lease.prompt == prompt("waiting", text="nul \0 and ☃")
    assert (await after.inbox.accept(prompt("waiting"), 5)).status == "duplicate"
    assert (await after.inbox.accept(prompt("new"), 5)).status == "accepted"
    await after.journal.take_steers(lease, TurnId("T1"))
    committed = await closed(after, lease, "T1")
    assert committed.prompt is not None
    await after.journal.open_turn(lease, committed.prompt, opening("T2", committed.prompt))
    await before.close()
    await after.close()


async def test_every_table_arrives_row_by_row(home: Home, target: str) -> None:
    with closing(sqlite3.connect(home.database_file)) as source:
        names = [name for (name,) in source.execute(TABLES)]
        for name in names:
            fill(source, name)
        source.commit()
        moved = await migrate_sqlite_to_postgres(home, target)
        assert sorted(moved) == sorted(names), "a table exists in only one of the two dialects"
        assert min(moved.values()) > 0
        with psycopg.connect(target) as connection:
            connection.execute("set search_path to shoal")
            for name in names:
                columns = ", ".join(plain_columns(source, name))
                arrived = connection.execute(f"select {columns} from {name}".encode()).fetchall()
                assert sorted(map(repr, arrived)) == sorted(
                    repr(tuple(v.replace("\0", "") if isinstance(v, str) else v for v in row))
                    for row in source.execute(f"select {columns} from {name}")
                )


TABLES = """
select name from sqlite_master where type = 'table' and name not like 'sqlite_%' and name not like 'search%'
"""


def plain_columns(source: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in source.execute(f"pragma table_xinfo({table})") if row[6] == 0]


def fill(source: sqlite3.Connection, table: str) -> None:
    if source.execute(f"select count(*) from {table}").fetchone()[0]:
        return
    values = {"text": "x", "integer": 1, "bigint": 1, "real": 0.5, "double precision": 0.5, "blob": b"x"}
    types = {row[1]: row[2].lower() for row in source.execute(f"pragma table_info({table})")}
    columns = plain_columns(source, table)
    marks = ", ".join("?" for _ in columns)
    row = [values[types[column]] for column in columns]
    source.execute(f"insert into {table} ({', '.join(columns)}) values ({marks})", row)


async def test_threads_with_pending_work_are_woken(home: Home, target: str) -> None:
    await migrate_sqlite_to_postgres(home, target)
    assert jobs(target) == [(THREAD,)]


def jobs(url: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("select lock from shoal.procrastinate_jobs").fetchall()


def is_untouched(url: str) -> bool:
    with psycopg.connect(url) as connection:
        counts = connection.execute("select (select count(*) from shoal.threads) + (select count(*) from shoal.audit)")
        return counts.fetchone() == (0,)


async def test_a_home_moves_only_once(home: Home, target: str) -> None:
    await migrate_sqlite_to_postgres(home, target)
    with pytest.raises(Conflict, match="empty database"):
        await migrate_sqlite_to_postgres(home, target)


async def test_a_running_shoal_is_not_moved(home: Home, target: str) -> None:
    lock = HomeLock(home.lock_file)
    lock.acquire()
    with pytest.raises(HomeLocked):
        await migrate_sqlite_to_postgres(home, target)
    lock.release()
    await migrate_sqlite_to_postgres(home, target)


async def test_a_home_without_a_database_is_reported(tmp_path: Path, target: str) -> None:
    with pytest.raises(Conflict, match="nothing to move"):
        await migrate_sqlite_to_postgres(Home(tmp_path), target)
    assert not (tmp_path / "shoal.db").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("update audit set entry = replace(entry, 'bash', 'bosh') where number = 2", "entry 2 .* was changed"),
        ("delete from audit where chain = 'web:lobby:two' and number = 3", "two ends at entry 2 instead of 3"),
        ("delete from chains where chain = 'web:lobby:two'", "two ends at entry 3 instead of 0"),
        ("delete from events where seq = 1 and thread = 'web:lobby:two'", "has a gap"),
    ],
)
async def test_damage_is_reported_and_nothing_is_moved(home: Home, target: str, damage: str, words: str) -> None:
    with sqlite3.connect(home.database_file) as connection:
        assert connection.execute(damage).rowcount == 1
    connection.close()
    with pytest.raises(StoreCorrupt, match=words):
        await migrate_sqlite_to_postgres(home, target)
    assert is_untouched(target)
    assert jobs(target) == []
