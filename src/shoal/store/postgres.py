"""PostgreSQL: every script in one transaction on a pooled connection. Needs the extra `postgres`.

Scripts cannot be run twice, so they are written not to need it: each locks its thread's row before anything else of
the thread (READ COMMITTED then shows every later query what others committed before), all take what they lock in the
order thread, inbox, outbox, approval, job, audit chain, and so none can deadlock or fail to serialize. What is tried
again is only the beginning, on another connection, when one from the pool turns out to be dead (the server restarted).

A process that is frozen inside a transaction would hold the thread's row: the server ends such a transaction after
IDLE_SECONDS, and what the frozen process does later is refused by the thread's epoch.

Statements go in libpq's pipeline, many in one round trip, on connections that keep every statement prepared: to wake
the other side costs more than what PostgreSQL does about most of Shoal's statements. psycopg's own pipeline sends each
statement by itself.

Shoal's tables and procrastinate's are in a schema of their own. Whoever starts first migrates it; others wait on an
advisory lock. The table `migrations` tells what was done. What is there already is not asked for again, so that a role
does without the rights to make it.
"""

import contextlib
import logging
import re
import select
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from importlib.resources import files
from itertools import count
from typing import NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
import msgspec

from shoal.installation import how_to_add
from shoal.kernel.errors import (
    ConfigError,
    InvalidInput,
    ShoalError,
    StaleEpoch,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
)
from shoal.store.driver import Batch, Param, Row, Script, is_single, migrations, refuse_other_schemas, statements
from shoal.store.health import Health

try:
    import psycopg
    from psycopg import AsyncConnection, OperationalError, adapt, errors
    from psycopg.abc import Buffer, PQGen
    from psycopg.adapt import PyFormat
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
    from psycopg.pq.abc import PGconn, PGresult
    from psycopg.types.numeric import Int8Dumper
    from psycopg.waiting import Ready, Wait
    from psycopg_pool import AsyncConnectionPool
except ModuleNotFoundError as error:
    lacking = f"database.url needs the extra `postgres`: {error.name} is not installed."
    raise ConfigError([f"{lacking} {how_to_add('postgres')}"]) from error

_PARAMETER = re.compile(r"%\((\w+)\)s")
_ROWLESS = re.compile(r"$|select from |(insert|update|delete) (?!.*\breturning\b)", re.DOTALL)


class Statement(NamedTuple):
    """SQL with the names of its parameters, that of `$1` first, and whether it returns rows that say something."""

    sql: bytes
    names: Sequence[str]
    has_rows: bool


Call: TypeAlias = tuple[Statement, Mapping[str, Param]]


def statement(body: str) -> Statement:
    """Make one of SQL whose parameters are written `%(name)s`."""
    names = list(dict.fromkeys(_PARAMETER.findall(body)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", body).replace("%%", "%")
    return Statement(numbered.encode(), names, not _ROWLESS.match(body))


class Pipeline:
    """Runs statements, and knows what is prepared on which connection."""

    def __init__(self) -> None:
        self._prepared: WeakKeyDictionary[AsyncConnection, dict[tuple[bytes, tuple[int, ...]], bytes]]
        self._prepared = WeakKeyDictionary()
        self._numbers = count()

    async def run(self, connection: AsyncConnection, calls: Sequence[Call]) -> list[list[Row]]:
        """Run them one after another, up to the first that fails; returns the rows of each.

        They are a transaction of their own unless one has begun. Raises psycopg.Error.
        """
        pgconn, adapter = connection.pgconn, adapt.Transformer(connection)
        prepared = self._prepared.setdefault(connection, {})
        new: list[tuple[bytes, tuple[int, ...]]] = []
        answers: list[int] = []
        bound: list[tuple[bytes, Sequence[Buffer | None], tuple[int, ...], Sequence[Format] | None]] = []
        for called, params in calls:
            values = adapter.dump_sequence([params[name] for name in called.names], [PyFormat.AUTO] * len(called.names))
            bound.append((called.sql, values, adapter.types or (), adapter.formats))
        pgconn.enter_pipeline_mode()
        try:
            for sql, values, types, formats in bound:
                name = prepared.get((sql, types))
                if name is None:
                    name = prepared[sql, types] = b"shoal_%d" % next(self._numbers)
                    new.append((sql, types))
                    pgconn.send_prepare(name, sql, types)
                pgconn.send_query_prepared(name, values, formats)
                answers.append(len(answers) + len(new))
            pgconn.pipeline_sync()
            results = await connection.wait(_results(pgconn))
            for result in results:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise errors.error_from_result(result)
        except BaseException:
            for key in new:
                del prepared[key]
            raise
        finally:
            if pgconn.status == ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        found: list[list[Row]] = []
        for place in answers:
            adapter.set_pgresult(results[place])
            found.append(adapter.load_rows(0, results[place].ntuples, tuple))
        return found


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Send what was queued, and read the result of each."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    found: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return found
        else:
            found.append(result)


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


async def migrate(address: str, store_steps: Sequence[tuple[int, str]] = ()) -> None:
    """Bring the database up to date, with these `store_steps` in place of Shoal's own.

    Raises StoreNewer when it is ahead of this program, StoreUnreleased when it is from before the first release,
    StoreReadOnly when the role lacks a right that it needs, and StoreError when the database cannot hold every text.
    """
    async with await AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute("select pg_advisory_lock(%s)", [_LOCK])
        try:
            if not await _has_schema(connection):
                await connection.execute(f"create schema {SCHEMA}".encode())
            await connection.execute(f"set search_path to {SCHEMA}".encode())
            if not await _has_list(connection):
                await connection.execute(_MIGRATIONS)
            lacking = await _lacking_schema(connection, store_steps or migrations("postgres"))
            job_steps, lacking_jobs = _job_steps(), await _lacking_jobs(connection)
            if len(lacking_jobs) == len(job_steps):  # procrastinate's whole schema first, later what a newer one adds
                schema = files("procrastinate") / "sql" / "schema.sql"
                await _do(connection, "procrastinate", lacking_jobs, schema.read_text("utf-8"))
            else:
                for name in lacking_jobs:
                    await _do(connection, "procrastinate", [name], job_steps[name])
            for number, script in lacking:
                await _do(connection, "store", [f"{number:04}"], script)
        finally:
            if not connection.closed:
                await connection.execute("select pg_advisory_unlock(%s)", [_LOCK])


async def missing(connection: AsyncConnection) -> list[str]:
    """The migrations that `migrate` would do; changes nothing. Raises what `migrate` raises."""
    steps = migrations("postgres")
    if not await _has_schema(connection) or not await _has_list(connection):
        return [*_job_steps(), *(f"{number:04}" for number, _ in steps)]
    await connection.execute(f"set search_path to {SCHEMA}".encode())
    lacking = await _lacking_schema(connection, steps)
    return [*await _lacking_jobs(connection), *(f"{number:04}" for number, _ in lacking)]


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


async def _lacking_jobs(connection: AsyncConnection) -> list[str]:
    """procrastinate's migrations that were not done yet, in order. Raises StoreNewer."""
    steps, done = _job_steps().keys(), await _done(connection, "procrastinate")
    if ahead := sorted(done - steps):
        raise StoreNewer(
            f"The database was written by a newer Shoal (migration {ahead[-1]}). Install that version to use it."
        )
    return sorted(steps - done)


async def _lacking_schema(connection: AsyncConnection, steps: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Shoal's migrations that were not done yet, in order. Raises StoreNewer, StoreUnreleased."""
    done = {int(name) for name in await _done(connection, "store")}
    for number in sorted(done):
        refuse_other_schemas(number, steps[-1][0], "The database", "set database.url to an empty one")
    return [step for step in steps if step[0] not in done]


async def tables(connection: AsyncConnection) -> list[str]:
    """Shoal's own tables, for tests and for moving a home: all but procrastinate's and the list of migrations."""
    cursor = await connection.execute(
        "select tablename from pg_tables where schemaname = %s and tablename not like 'procrastinate%%' order by 1",
        [SCHEMA],
    )
    return [str(row[0]) for row in await cursor.fetchall() if row[0] != "migrations"]


log = logging.getLogger(__name__)

T = TypeVar("T")

STATEMENT_SECONDS = 30
"""How long a statement may take, or wait for a lock."""
IDLE_SECONDS = 5
"""How long a transaction may stand still: no script waits for anything but the database."""
RECONNECT_SECONDS = 5.0
"""How long the pool itself tries to reconnect, ever more seldom; after that whoever wants a connection has it try."""
REPLACED = (
    "Another database answers at database.url than the one Shoal was started with. If it was replaced on purpose, "
    "restart all of Shoal; else have the address lead to the right one, then restart."
)
_DAMAGE = (errors.DataCorrupted, errors.IndexCorrupted)
_IDENTITY = (
    b"select oid, 0 from pg_database where datname = current_database()",
    b"select system_identifier, 1 from pg_control_system()",
)
BEGIN: Call = (statement("begin"), {})
BEGIN_READING: Call = (statement("begin isolation level repeatable read read only"), {})
COMMIT: Call = (statement("commit"), {})
ROLLBACK: Call = (statement("rollback"), {})
_ADDRESS_DEFAULTS = {
    "application_name": "shoal",
    "connect_timeout": "5",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


class PoolSettings(msgspec.Struct, frozen=True):
    """Bounds of the connections to one database; `wait_seconds` is how long a caller waits for one."""

    connections_max: int = 10
    wait_seconds: float = 10.0


DEFAULT_POOL = PoolSettings()


class PostgresDriver:
    """Runs scripts against a PostgreSQL database. Made by `open_postgres`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection], health: Health | None = None) -> None:
        self.pool = pool
        self.health = health or Health()
        self._pipeline = Pipeline()
        self._statements = {name: statement(body) for name, body in statements("postgres").items()}

    async def write(self, script: Script[T]) -> T:
        """Run it in one transaction, durable on return. Cancelled before that, it is undone.

        Raises StoreUnavailable when the server is gone; when that happens while it commits, the outcome is unknown.
        Raises StoreCorrupt once `health` knows of damage.
        """
        self.health.check()
        return await self._run(script, BEGIN)

    async def read(self, script: Script[T]) -> T:
        return await self._run(script, BEGIN_READING)

    async def close(self) -> None:
        await self.pool.close()

    async def _run(self, script: Script[T], begin: Call) -> T:
        try:
            with translated():
                try:
                    first = next(script)
                except StopIteration as done:
                    return cast(T, done.value)
                connection = await self.pool.getconn()
                try:
                    self.health.check()  # the connection may be one to another database
                    return await self._drive(connection, script, first, begin)
                finally:
                    await self._give_back(connection)
        except StoreCorrupt as error:
            if isinstance(error.__cause__, _DAMAGE):
                raise self.health.report(str(error)) from error
            raise

    async def _give_back(self, connection: AsyncConnection) -> None:
        with anyio.CancelScope(shield=True):
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                with contextlib.suppress(psycopg.Error):  # then it is closed, and the pool makes another
                    await self._pipeline.run(connection, [ROLLBACK])
            await self.pool.putconn(connection)

    async def _drive(self, connection: AsyncConnection, script: Script[T], batch: Batch, begin: Call) -> T:
        """Send what has no rows with what has, or with the end; what is all of a script needs no `begin`."""
        is_whole, has_begun, calls = is_single(script), False, list[Call]()
        try:
            while True:
                asked = [self._statements[step.name] for step in batch.queries]
                kept = len(calls)
                calls += [(one, step.params) for one, step in zip(asked, batch.queries, strict=True) if one.sql]
                rows, ends = iter(list[list[Row]]()), batch.last or is_whole
                if ends or any(one.has_rows for one in asked):
                    before = [] if ends or has_begun else [begin]
                    after = [COMMIT] if ends and has_begun else []
                    found = await self._pipeline.run(connection, [*before, *calls, *after])
                    rows = iter(found[len(before) + kept :])
                    has_begun, calls = not ends, []
                batch = script.send([next(rows, list[Row]()) if one.sql else [] for one in asked])
        except StopIteration as done:
            if calls or has_begun:
                await self._pipeline.run(connection, [*calls, COMMIT] if has_begun else calls)
            return cast(T, done.value)


async def open_postgres(url: str, settings: PoolSettings = DEFAULT_POOL) -> PostgresDriver:
    """Connect, make or migrate the tables, and return a driver.

    Raises StoreUnavailable when the server cannot be reached, StoreNewer when a newer Shoal wrote the tables,
    StoreReadOnly when the role lacks a right, StoreError when the database's encoding is not UTF8.
    """
    with translated():
        await migrate(address(url))
    health = Health()
    with translated():
        async with await AsyncConnection.connect(address(url), autocommit=True) as connection:
            identity = await _identity(connection)

    async def compare(connection: AsyncConnection) -> None:
        if await _identity(connection) != identity:
            health.report(REPLACED)

    pool = make_pool(url, settings, compare)
    with translated():
        await pool.open(wait=True, timeout=settings.wait_seconds)
    return PostgresDriver(pool, health)


async def _identity(connection: AsyncConnection) -> tuple[Row | None, ...]:
    """What tells this database from any other, also from one restored in its place; a replica has its server's."""
    found: list[Row | None] = []
    for question in _IDENTITY:
        with contextlib.suppress(errors.InsufficientPrivilege, errors.UndefinedFunction):
            found.append(await (await connection.execute(question)).fetchone())
    return tuple(found)


async def answering(url: str) -> tuple[str, int]:
    """The version of the server that answers there, `16.2`, and how many migrations a start would do; changes nothing.

    Raises what `open_postgres` raises.
    """
    with translated():
        async with await AsyncConnection.connect(address(url), autocommit=True) as connection:
            version = connection.info.server_version
            return f"{version // 10_000}.{version % 10_000}", len(await missing(connection))


def address(url: str) -> str:
    """The address with Shoal's defaults for what it leaves open. Raises InvalidInput when it is not one."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidInput("The database address is malformed. Write postgresql://USER@HOST/DATABASE.") from error
    return make_conninfo("", **{**_ADDRESS_DEFAULTS, **given})


def make_pool(
    url: str, settings: PoolSettings, connected: Callable[[AsyncConnection], Awaitable[None]] | None = None
) -> AsyncConnectionPool[AsyncConnection]:
    """A closed pool of autocommitting connections whose search path is Shoal's schema; each is given to `connected`."""

    async def configure(connection: AsyncConnection) -> None:
        await prepare(connection)
        if connected is not None:
            await connected(connection)

    return AsyncConnectionPool(
        address(url),
        kwargs={"autocommit": True},
        min_size=1,
        max_size=settings.connections_max,
        check=_see_that_it_lives,
        timeout=settings.wait_seconds,
        reconnect_timeout=RECONNECT_SECONDS,
        configure=configure,
        open=False,
        name="shoal",
    )


async def _see_that_it_lives(connection: AsyncConnection) -> None:
    """Nothing is to be read from a connection that rests, but its end: the server restarted, or has ended it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await connection.close()
        raise psycopg.OperationalError("the connection was ended")


async def prepare(connection: AsyncConnection) -> None:
    """Give a fresh connection Shoal's schema, isolation and limits."""
    connection.adapters.register_dumper(int, Int8Dumper)  # one plan a query, whatever the number's size
    limits = {
        "search_path": SCHEMA,
        "default_transaction_isolation": "read committed",
        "statement_timeout": f"{STATEMENT_SECONDS}s",
        "lock_timeout": f"{STATEMENT_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
    }
    names = ", ".join(f"set_config('{name}', %({name})s, false)" for name in limits)
    await connection.execute(f"select {names}".encode(), limits)


@contextlib.contextmanager
def translated() -> Generator[None]:
    """Turn the driver's errors into Shoal's."""
    try:
        yield
    except (psycopg.Error, UnicodeError, OverflowError) as error:
        raise _meaning(error) from error


def _meaning(error: Exception) -> ShoalError:
    match error:
        case psycopg.Error(sqlstate="SH001"):
            return StaleEpoch(_line(error))
        case psycopg.DataError() | UnicodeError() | OverflowError():
            return InvalidInput(f"This cannot be stored: {_line(error)}. Send valid Unicode without NUL.")
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreFull(f"The database server has no room left: {_line(error)}. Free some space, then try again.")
        case errors.ReadOnlySqlTransaction() | errors.InsufficientPrivilege():
            return StoreReadOnly(f"The database refuses writes: {_line(error)}. Check the server's role and rights.")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreCorrupt(
                f"The database is damaged: {_line(error)}. Stop all of Shoal, see to the server, and restore a dump if "
                "need be."
            )
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreUnavailable("The database took too long to answer. Look for what blocks or loads it.")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            reason = _line(error).partition(" Is the server running")[0]  # libpq's own question
            return StoreUnavailable(f"The database cannot be reached: {reason}. Is the server up?")
        case _:
            return StoreError(f"The database failed: {_line(error)}.")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
