"""Homes made before the first migration was final: today's program completes them, on both databases.

`earlier/` holds that migration as it was at first and as it was last before.
"""

import sqlite3
from pathlib import Path

import psycopg
import pytest
from tests.postgres import database

from shoal.domain.events import UserSaid, encode_data
from shoal.domain.messages import Author
from shoal.store.driver import Driver, migrations
from shoal.store.postgres import SCHEMA, open_postgres
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, leased, prompt

EARLIER = Path(__file__).with_name("earlier")
SAID = encode_data(UserSaid("where herring swim 潮汐", Author("ada", trusted=True))).decode()
ROWS = f"""
insert into threads (thread, last_seq, created_at, updated_at) values ('{THREAD}', 1, 1, 1);
insert into events (thread, seq, turn, type, at, data) values ('{THREAD}', 1, '', 'user_message', 1, '{SAID}');
insert into outbox (id, platform, thread, payload, due_at, created_at)
values ('p', 'web', '{THREAD}', '{{"id":"p","thread":"{THREAD}","text":"hello"}}', 1, 1);
"""
"""A home's content: something that was said, and a post that is still to be made."""
SPENT = """
insert into spend values ('1', 't', 'T', '2026-01-06', 'main', 'ada', 'a', 10, 1, 0, 0, 0, 0.5, 1);
insert into spend values ('2', 't', 'T', '2026-01-06', 'main', 'ada', 'a', 20, 1, 0, 0, 0, null, 1);
insert into spend values ('3', 't', 'T', '2026-01-05', 'main', 'ada', 'a', 40, 1, 0, 0, 0, null, 1);
"""
BOUND = """
insert into bindings (platform, channel, agent, bound_by, created_at) values ('discord', '7', 'main', 'web:owner', 1);
"""
GONE = (
    "drop table spend_days",
    "alter table spend drop column estimated",
    "drop index events_said_at, threads_recent, threads_agent, threads_channel, threads_parent, approvals_thread",
    "drop index approvals_call, approvals_shown, audit_at, processes_started, processes_at_work, processes_told",
    "drop index artifacts_newest",
    "create index spend_day on spend (day)",
    "create index threads_updated on threads (updated_at)",
    "create index threads_parent on threads (parent) where parent <> ''",
    "create index approvals_thread on approvals (thread, call_digest)",
    "create index approvals_shown on approvals (shown_in) where shown_in <> ''",
    "create index audit_at on audit (at)",
)
"""What takes a PostgreSQL database back to before the sums were kept."""
COLUMNS = """
select table_name || ' ' || column_name || ' ' || data_type || ' ' || is_nullable || coalesce(column_default, '')
    || coalesce(generation_expression, '')
from information_schema.columns where table_schema = %s
"""


@pytest.mark.parametrize("made", ["first", "last"])
async def test_an_early_sqlite_home_becomes_one_of_today(tmp_path: Path, made: str) -> None:
    path = tmp_path / "shoal.db"
    with sqlite3.connect(path) as older:
        older.create_function("spread", 1, str)
        older.executescript((EARLIER / f"sqlite_{made}.sql").read_text("utf-8"))
        older.execute("pragma user_version = 1")
        older.executescript(ROWS)
    older.close()
    await check_life(SqliteDriver(path))
    await SqliteDriver(tmp_path / "fresh.db").close()
    assert sqlite_schema(path) == sqlite_schema(tmp_path / "fresh.db")


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("made", ["first", "last"])
async def test_an_early_postgres_home_becomes_one_of_today(made: str) -> None:
    with database() as url, database() as fresh:
        for address in (url, fresh):
            await (await open_postgres(address)).close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"set search_path to {SCHEMA}".encode())
            for table in connection.execute("select tablename from pg_tables where schemaname = 'shoal'").fetchall():
                if table[0] != "migrations" and not table[0].startswith("procrastinate"):
                    connection.execute(f"drop table {table[0]}".encode())
            for name in ("shoal_wake", "shoal_append", "shoal_hold"):
                connection.execute(f"drop function {name}".encode())
            connection.execute("delete from migrations where part = 'store' and name <> '0001'")
            connection.execute((EARLIER / f"postgres_{made}.sql").read_bytes())
            connection.execute(ROWS.encode())
        await check_life(await open_postgres(url))
        assert postgres_schema(url) == postgres_schema(fresh)


async def check_life(driver: Driver) -> None:
    """What was there is there, and new work is taken in."""
    store = Store(driver, ManualClock())
    assert [event.seq for event in await store.search.said("潮")] == [1]
    (row,) = await store.outbox.claim(["web"], 5, 60)
    assert (row.post.text, row.claims) == ("hello", 1)
    await store.inbox.accept(prompt("k0"), 5)
    assert (await leased(store)).prompt == prompt("k0")
    await store.close()


def sqlite_schema(path: Path) -> dict[str, set[str]]:
    """The columns of each table, and what makes everything else."""
    connection = sqlite3.connect(path)
    found: dict[str, set[str]] = {}
    for kind, name, sql in connection.execute("select type, name, sql from sqlite_master").fetchall():
        columns = connection.execute(f"pragma table_info({name})").fetchall() if kind == "table" else [("", sql)]
        found[name] = {str(column[1:]) for column in columns}
    connection.close()
    return found


def postgres_schema(url: str) -> set[str]:
    """The columns of all tables, the indexes and the functions."""
    with psycopg.connect(url) as connection:
        found = connection.execute(COLUMNS, [SCHEMA]).fetchall()
        found += connection.execute("select indexdef from pg_indexes where schemaname = %s", [SCHEMA]).fetchall()
        found += connection.execute(
            "select pg_get_functiondef(oid) from pg_proc where pronamespace = %s::regnamespace", [SCHEMA]
        ).fetchall()
        return {str(row[0]) for row in found}


async def test_the_past_of_a_home_is_found_and_summed_once_it_has_the_migrations_for_that(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    with sqlite3.connect(path) as older:
        older.create_function("spread", 1, str)
        for _, script in migrations("sqlite")[:5]:
            older.executescript(script)
        older.execute("pragma user_version = 5")
        older.executescript(ROWS + SPENT + BOUND)
    older.close()
    driver = SqliteDriver(path)
    await check_past(driver)
    await driver.close()


@pytest.mark.xdist_group("postgres")
async def test_the_same_in_postgresql() -> None:
    with database() as url:
        await (await open_postgres(url)).close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"set search_path to {SCHEMA}".encode())
            connection.execute(b"delete from migrations where part = 'store' and name in ('0006', '0016')")
            for statement in GONE:
                connection.execute(statement.encode())
            connection.execute((ROWS + SPENT + BOUND).encode())
        driver = await open_postgres(url)
        await check_past(driver)
        await driver.close()


async def check_past(driver: Driver) -> None:
    """What was said and spent before is found, and who answers where does so as before."""
    store = Store(driver, ManualClock())
    for within in ("", THREAD, f"{THREAD.rpartition(':')[0]}:"):
        assert [event.seq for event in await store.search.said("潮汐 herring", within=within)] == [1]
    rows = await store.ledger.usage(10_000)
    assert [(row.day, row.model, row.calls, row.usage.input_tokens, row.usd) for row in rows] == [
        ("2026-01-06", "a", 2, 30, 0.5),
        ("2026-01-05", "a", 1, 40, None),
    ]
    assert [(one.place, one.listen) for one in await store.registry.bindings()] == [("discord:7", "threads")]
