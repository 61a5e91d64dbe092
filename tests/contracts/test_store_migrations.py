"""Upgrades of a database to the newest schema, and databases that Shoal refuses to open, on SQLite and PostgreSQL."""

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from tests.postgres import database

from shoal.kernel.errors import StoreError, StoreNewer, StoreReadOnly, StoreUnreleased
from shoal.store.driver import FIRST_MIGRATION, Driver, in_dialect, migrations, query
from shoal.store.postgres import SCHEMA, address, answering, migrate, open_postgres
from shoal.store.sqlite import SqliteDriver, connect
from shoal.store.sqlite import migrate as migrate_sqlite

NEXT = (
    migrations("sqlite")[-1][0] + 1,
    """\
-- Threads get a mood; a table of moods.
alter table threads add column mood text not null default 'calm';
create table moods (name text /*pg: collate "C" */ primary key) /*sqlite: without rowid */;
insert into moods (name) select key from settings;
""",
)
"""A migration that is in no release."""
SENTENCE = re.compile(
    r"[^ ]+.* is from before Shoal's first release: .* to start without history and keep your "
    r"agents, files and settings\.\Z"
)

Steps = Sequence[tuple[int, str]]


class Database(Protocol):
    dialect: str

    async def open(self) -> Driver:
        """Open the database for use, as at startup."""
        ...

    async def look(self) -> None:
        """Open the database for reading only."""
        ...

    async def migrate(self, steps: Steps) -> None: ...

    def claim(self, *numbers: int) -> None:
        """Record these migrations as applied."""
        ...

    def rows(self, statement: str) -> list[tuple[object, ...]]: ...


class InFile:
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    async def open(self) -> Driver:
        return SqliteDriver(self.path)

    async def look(self) -> None:
        await SqliteDriver(self.path, read_only=True).close()

    async def migrate(self, steps: Steps) -> None:
        with contextlib.closing(connect(self.path.as_uri())) as connection:
            migrate_sqlite(connection, self.path, steps)

    def claim(self, *numbers: int) -> None:
        self.rows(f"pragma user_version = {numbers[-1]}")

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()


class OnServer:
    dialect = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> Driver:
        return await open_postgres(self.url)

    async def look(self) -> None:
        await answering(self.url)

    async def migrate(self, steps: Steps) -> None:
        await migrate(address(self.url), steps)

    def claim(self, *numbers: int) -> None:
        self.rows("delete from migrations where part = 'store' returning name")
        for number in numbers:
            self.rows(f"insert into migrations (part, name) values ('store', '{number:04}') returning name")

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True, options=f"-c search_path={SCHEMA}") as connection:
            return connection.execute(statement.encode()).fetchall()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Database]:
    with contextlib.ExitStack() as stack:
        empty = (
            InFile(tmp_path / "shoal.db") if request.param == "sqlite" else OnServer(stack.enter_context(database()))
        )
        asyncio.run(_start(empty))
        yield empty


async def _start(made: Database) -> None:
    driver = await made.open()
    await driver.write(query("setting_put", scope="s", key="kept", value="v"))
    await driver.close()


def with_next(dialect: str) -> Steps:
    number, script = NEXT
    return [*migrations(dialect), (number, in_dialect(script, dialect))]


async def test_a_new_migration_runs_once_and_keeps_existing_data(made: Database) -> None:
    for _ in range(2):
        await made.migrate(with_next(made.dialect))
    assert made.rows("select name from moods") == [("kept",)]
    assert made.rows("select value from settings where key = 'kept'") == [("v",)]
    made.rows("insert into threads (thread, created_at, updated_at) values ('a:b:c', 1, 1) returning thread")
    assert made.rows("select mood from threads") == [("calm",)]


async def test_an_older_shoal_refuses_a_newer_schema_unchanged(made: Database) -> None:
    await made.migrate(with_next(made.dialect))
    for opening in (made.open, made.look):
        with pytest.raises(
            StoreNewer, match=rf"by a newer version of Shoal \(schema {NEXT[0]}\)\. Install that version"
        ):
            await opening()
    await made.migrate(with_next(made.dialect))
    assert made.rows("select name from moods") == [("kept",)]


async def test_a_failed_migration_leaves_the_database_unchanged(made: Database) -> None:
    steps = [*migrations(made.dialect), (NEXT[0], "create table moods (name text); create table moods (name text);")]
    with pytest.raises((sqlite3.Error, psycopg.Error, StoreError)):
        await made.migrate(steps)
    await made.migrate(with_next(made.dialect))
    assert made.rows("select name from moods") == [("kept",)]


@pytest.mark.parametrize("number", [1, 17, FIRST_MIGRATION - 1])
async def test_a_database_from_before_the_first_release_is_refused_in_one_sentence(made: Database, number: int) -> None:
    made.claim(number)
    for opening in (made.open, made.look):
        with pytest.raises(StoreUnreleased, match=SENTENCE):
            await opening()
    made.claim(*(number for number, _ in migrations(made.dialect)))
    await (await made.open()).close()
    assert made.rows("select value from settings where key = 'kept'") == [("v",)]


async def test_readers_migrate_an_older_schema_first(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shoal.db").close()
    with pytest.raises(StoreReadOnly, match=r"has an older schema\. Run `shoal migrate`"):
        SqliteDriver(tmp_path / "shoal.db", read_only=True)
