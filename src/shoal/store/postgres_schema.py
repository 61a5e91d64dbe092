"""Makes and migrates the tables on PostgreSQL: Shoal's and procrastinate's, in a schema of their own.

Whoever starts first does it; others wait on an advisory lock. The table `migrations` tells what was done. What is there
already is not asked for again, so that a role does without the rights to make it.
"""

from importlib.resources import files

from psycopg import AsyncConnection

from shoal.domain.errors import StoreError, StoreNewer, StoreReadOnly
from shoal.store.statements import EARLY_TABLE, completion, migrations

SCHEMA = "shoal"
"""Shoal's tables have everyday names; a schema keeps them apart from whatever else the database holds."""
_LOCK = 0x73686F616C  # "shoal"
_MIGRATIONS = f"""
create table {SCHEMA}.migrations (
    part text collate "C" not null,
    name text collate "C" not null,
    done_at timestamptz not null default now(),
    primary key (part, name)
);
""".encode()
_RIGHTS = b"""
select current_user, current_database(), has_database_privilege(current_database(), 'create'),
    (select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = %(schema)s),
    (select relname from pg_class join pg_namespace on pg_namespace.oid = relnamespace
        where nspname = %(schema)s and relkind = 'r' and not (has_table_privilege(pg_class.oid, 'select')
            and has_table_privilege(pg_class.oid, 'insert') and has_table_privilege(pg_class.oid, 'update')
            and has_table_privilege(pg_class.oid, 'delete'))
        order by relname limit 1)
"""


async def migrate(address: str) -> None:
    """Bring the database up to date.

    Raises StoreNewer when it is ahead of this program, StoreReadOnly when the role lacks a right that it needs, and
    StoreError when the database cannot hold every text.
    """
    async with await AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute("select pg_advisory_lock(%s)", [_LOCK])
        try:
            if not await _has_schema(connection):
                await connection.execute(f"create schema {SCHEMA}".encode())
            await connection.execute(f"set search_path to {SCHEMA}".encode())
            if not await _has_list(connection):
                await connection.execute(_MIGRATIONS)
            await _migrate_jobs(connection)
            await _migrate_store(connection)
        finally:
            if not connection.closed:
                await connection.execute("select pg_advisory_unlock(%s)", [_LOCK])


async def missing(connection: AsyncConnection) -> list[str]:
    """The migrations that `migrate` would do; changes nothing. Raises what `migrate` raises."""
    if not await _has_schema(connection) or not await _has_list(connection):
        return [*_job_steps(), *(f"{number:04}" for number, _ in migrations("postgres"))]
    await connection.execute(f"set search_path to {SCHEMA}".encode())
    jobs = await _jobs_to_do(connection)
    return [*jobs, *(f"{number:04}" for number, _ in await _steps_to_do(connection))]


async def _has_schema(connection: AsyncConnection) -> bool:
    """Whether the schema is there. Raises what `migrate` raises for a database or a role that does not do."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"The database's encoding is {encoding}. Make one with `create database … encoding 'UTF8'`.")
    row = await (await connection.execute(_RIGHTS, {"schema": SCHEMA})).fetchone()
    role, database, may_create, may_use, unwritable = row or ("", "", False, None, None)
    if may_use is None and not may_create:
        raise StoreReadOnly(
            f"The role {role} may not make the schema {SCHEMA} in the database {database}."
            f" Do it as its owner: `create schema {SCHEMA} authorization {role}`."
        )
    if may_use is False or unwritable is not None:
        what = f"table {SCHEMA}.{unwritable}" if may_use else f"schema {SCHEMA}"
        raise StoreReadOnly(
            f"The role {role} may not use the {what} of the database {database}."
            f" Grant it usage of the schema, and select, insert, update and delete on all of its tables."
        )
    return may_use is not None


async def _has_list(connection: AsyncConnection) -> bool:
    row = await (await connection.execute("select to_regclass(%s)", [f"{SCHEMA}.migrations"])).fetchone()
    return row is not None and row[0] is not None


async def _done(connection: AsyncConnection, part: str) -> set[str]:
    cursor = await connection.execute("select name from migrations where part = %s", [part])
    return {str(row[0]) for row in await cursor.fetchall()}


async def _do(connection: AsyncConnection, part: str, names: list[str], script: str) -> None:
    async with connection.transaction():
        await connection.execute(script.encode())
        for name in names:
            await connection.execute("insert into migrations (part, name) values (%s, %s)", [part, name])


def _job_steps() -> dict[str, str]:
    """procrastinate's migrations, by name."""
    folder = files("procrastinate") / "sql" / "migrations"
    return {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}


async def _jobs_to_do(connection: AsyncConnection) -> list[str]:
    steps, done = _job_steps(), await _done(connection, "procrastinate")
    _refuse(sorted(done - steps.keys()))
    return sorted(steps.keys() - done)


async def _migrate_jobs(connection: AsyncConnection) -> None:
    """procrastinate's tables: the whole of its schema at first, later only what a newer version adds."""
    steps, todo = _job_steps(), await _jobs_to_do(connection)
    if len(todo) == len(steps):
        schema = files("procrastinate") / "sql" / "schema.sql"
        await _do(connection, "procrastinate", todo, schema.read_text("utf-8"))
        return
    for name in todo:
        await _do(connection, "procrastinate", [name], steps[name])


async def _steps_to_do(connection: AsyncConnection) -> list[tuple[int, str]]:
    steps, done = migrations("postgres"), await _done(connection, "store")
    _refuse(sorted(done - {f"{number:04}" for number, _ in steps}))
    return [(number, script) for number, script in steps if f"{number:04}" not in done]


async def _migrate_store(connection: AsyncConnection) -> None:
    row = await (await connection.execute("select to_regclass(%s)", [f"{SCHEMA}.{EARLY_TABLE}"])).fetchone()
    if await _done(connection, "store") and row == (None,):
        await _do(connection, "store", [], completion("postgres"))
    for number, script in await _steps_to_do(connection):
        await _do(connection, "store", [f"{number:04}"], script)


def _refuse(ahead: list[str]) -> None:
    if ahead:
        raise StoreNewer(
            f"The database was written by a newer Shoal (migration {ahead[-1]}). Install that version to use it."
        )


async def tables(connection: AsyncConnection) -> list[str]:
    """Shoal's own tables, for tests and for moving a home: all but procrastinate's and the list of migrations."""
    cursor = await connection.execute(
        "select tablename from pg_tables where schemaname = %s and tablename not like 'procrastinate%%' order by 1",
        [SCHEMA],
    )
    return [str(row[0]) for row in await cursor.fetchall() if row[0] != "migrations"]
