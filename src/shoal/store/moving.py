"""Migration of a home from SQLite to PostgreSQL in one transaction, with checks before the commit."""

import sqlite3
from contextlib import closing

from psycopg import AsyncConnection, sql

from shoal.kernel.errors import Conflict, StoreCorrupt
from shoal.kernel.home import Home
from shoal.store.audit import ChainCheck
from shoal.store.lock import HomeLock
from shoal.store.postgres import SCHEMA, address, migrate, tables, translated
from shoal.store.sqlite import SqliteDriver

BATCH_ROWS = 1000


async def migrate_sqlite_to_postgres(home: Home, url: str) -> dict[str, int]:
    """Copy every row of the home's database and return the number of rows per table.

    A file with an older schema is migrated first, but its rows are not changed. Raises HomeLocked while Shoal uses
    the home, Conflict if the source is missing or the target is not empty, and StoreCorrupt if rows were lost or an
    audit chain is broken. On an error, no rows are copied.
    """
    lock = HomeLock(home.lock_file)
    lock.acquire()
    try:
        if not home.database_file.exists():
            raise Conflict(f"{home.database_file} does not exist, so there is nothing to move.")
        await SqliteDriver(home.database_file).close()  # migrates a file with an older schema
        with translated(), closing(sqlite3.connect(home.database_file)) as source:
            await migrate(address(url))
            async with await AsyncConnection.connect(address(url), autocommit=True) as target:
                await target.execute(f"set search_path to {SCHEMA}".encode())
                async with target.transaction():
                    moved = await _copy_tables(source, target)
                    row = await (await target.execute(_JOURNAL_WITH_A_GAP)).fetchone()
                    if row is not None:
                        raise StoreCorrupt(
                            f"The journal of {row[0]} has a gap, so nothing was moved. Run `shoal doctor`."
                        )
                    await _check_chains(target)
                    await target.execute(_WAKE)
                return moved
    finally:
        lock.release()


async def _copy_tables(source: sqlite3.Connection, target: AsyncConnection) -> dict[str, int]:
    moved: dict[str, int] = {}
    for table in await tables(target):
        await target.execute(sql.SQL("lock table {} in exclusive mode").format(sql.Identifier(table)))
        if await _count(target, table):
            raise Conflict(
                f"The target database already contains Shoal's data (table {table}). Choose an empty database."
            )
    for table in await tables(target):
        await _copy(source, target, table)
        moved[table] = await _count(target, table)
        expected = source.execute(f'select count(*) from "{table}"').fetchone()[0]  # noqa: S608 (our own names)
        if moved[table] != expected:
            raise StoreCorrupt(f"Only {moved[table]} of {expected} rows of {table} arrived. Nothing was moved.")
    return moved


_JOURNAL_WITH_A_GAP = b"""
select t.thread from threads t left join events e on e.thread = t.thread
group by t.thread, t.last_seq having count(e.seq) <> t.last_seq or coalesce(max(e.seq), 0) <> t.last_seq limit 1
"""

_WAKE = b"""
select shoal_wake(thread) from (select thread from threads where open_turn <> ''
    union select thread from inbox where state = 'pending' and lane = 'prompt') as waiting
"""


async def _count(target: AsyncConnection, table: str) -> int:
    row = await (await target.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(table)))).fetchone()
    return int(row[0]) if row else 0


async def _copy(source: sqlite3.Connection, target: AsyncConnection, table: str) -> None:
    cursor = await target.execute(
        "select column_name, is_identity from information_schema.columns"
        " where table_schema = %s and table_name = %s and is_generated = 'NEVER' order by ordinal_position",
        [SCHEMA, table],
    )
    found = await cursor.fetchall()
    columns = [str(row[0]) for row in found]
    names = sql.SQL(", ").join(sql.Identifier(column) for column in columns)
    into = sql.SQL("copy {} ({}) from stdin").format(sql.Identifier(table), names)
    async with target.cursor() as cursor, cursor.copy(into) as copy:
        quoted = '", "'.join(columns)
        rows = source.execute(f'select "{quoted}" from "{table}"')  # noqa: S608 (our own names)
        while page := rows.fetchmany(BATCH_ROWS):
            for row in page:
                await copy.write_row([value.replace("\0", "") if isinstance(value, str) else value for value in row])
    # continue each identity column after the copied values
    for counter in [str(row[0]) for row in found if row[1] == "YES"]:
        await target.execute(
            sql.SQL("select setval(pg_get_serial_sequence({}, {}), coalesce(max({}), 0) + 1, false) from {}").format(
                sql.Literal(table), sql.Literal(counter), sql.Identifier(counter), sql.Identifier(table)
            )
        )


async def _check_chains(target: AsyncConnection) -> None:
    check = ChainCheck(await (await target.execute(b"select chain, number, head from chains")).fetchall())
    async with target.cursor("audit_rows") as cursor:
        await cursor.execute(b"select chain, number, at, entry, previous, hash from audit order by chain, number")
        async for row in cursor:
            check.take(row)
    for broken in check.result().broken[:1]:
        raise StoreCorrupt(f"An audit chain is broken. {broken.shown} Nothing was moved.")
