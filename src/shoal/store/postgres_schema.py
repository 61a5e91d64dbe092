"""Makes and migrates the tables on PostgreSQL: Shoal's and procrastinate's, in a schema of their own.

Whoever starts first does it; others wait on an advisory lock. The table `migrations` tells what was done.
"""

from importlib.resources import files

from psycopg import AsyncConnection

from shoal.domain.errors import StoreNewer
from shoal.store.statements import migrations

SCHEMA = "shoal"
"""Shoal's tables have everyday names; a schema keeps them apart from whatever else the database holds."""
_LOCK = 0x73686F616C  # "shoal"
_BEGIN = f"""
create schema if not exists {SCHEMA};
create table if not exists {SCHEMA}.migrations (
    part text collate "C" not null,
    name text collate "C" not null,
    done_at timestamptz not null default now(),
    primary key (part, name)
);
""".encode()


async def migrate(address: str) -> None:
    """Bring the database up to date. Raises StoreNewer when it is ahead of this program."""
    async with await AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute("select pg_advisory_lock(%s)", [_LOCK])
        try:
            await connection.execute(_BEGIN)
            await connection.execute(f"set search_path to {SCHEMA}".encode())
            await _migrate_jobs(connection)
            await _migrate_store(connection)
        finally:
            if not connection.closed:
                await connection.execute("select pg_advisory_unlock(%s)", [_LOCK])


async def _done(connection: AsyncConnection, part: str) -> set[str]:
    cursor = await connection.execute("select name from migrations where part = %s", [part])
    return {str(row[0]) for row in await cursor.fetchall()}


async def _do(connection: AsyncConnection, part: str, names: list[str], script: str) -> None:
    async with connection.transaction():
        await connection.execute(script.encode())
        for name in names:
            await connection.execute("insert into migrations (part, name) values (%s, %s)", [part, name])


async def _migrate_jobs(connection: AsyncConnection) -> None:
    """procrastinate's tables: the whole of its schema at first, later only what a newer version adds."""
    folder = files("procrastinate") / "sql"
    steps = {entry.name: entry for entry in (folder / "migrations").iterdir() if entry.name.endswith(".sql")}
    done = await _done(connection, "procrastinate")
    if not done:
        await _do(connection, "procrastinate", sorted(steps), (folder / "schema.sql").read_text("utf-8"))
        return
    for name in sorted(steps.keys() - done):
        await _do(connection, "procrastinate", [name], steps[name].read_text("utf-8"))


async def _migrate_store(connection: AsyncConnection) -> None:
    steps = migrations("postgres")
    done = await _done(connection, "store")
    ahead = sorted(done - {f"{number:04}" for number, _ in steps})
    if ahead:
        raise StoreNewer(
            f"The database was written by a newer Shoal (migration {ahead[-1]}). Install that version to use it."
        )
    for number, script in steps:
        if f"{number:04}" not in done:
            await _do(connection, "store", [f"{number:04}"], script)


async def tables(connection: AsyncConnection) -> list[str]:
    """Shoal's own tables, for tests and for moving a home: all but procrastinate's and the list of migrations."""
    cursor = await connection.execute(
        "select tablename from pg_tables where schemaname = %s and tablename not like 'procrastinate%%' order by 1",
        [SCHEMA],
    )
    return [str(row[0]) for row in await cursor.fetchall() if row[0] != "migrations"]
