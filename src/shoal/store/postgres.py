"""The PostgreSQL driver: each script runs in one transaction on a pooled connection. Needs the extra `postgres`.

Scripts cannot run twice, so deadlocks and serialization failures must not occur. Each script locks its thread's row
before the thread's other rows. Under READ COMMITTED, all later queries then see earlier commits. Scripts take locks in
the order thread, inbox, outbox, approval, job, audit chain. The pool checks a connection before a script begins, and
replaces it if a restart of the server has closed it.

A process that freezes inside a transaction would keep the thread's row locked. The server therefore ends a transaction
that is idle for IDLE_SECONDS. Later writes of the frozen process are rejected because its epoch is stale.

Statements are prepared once per connection and sent in libpq's pipeline mode, many per round trip, because most
statements take less time than a round trip. psycopg's own pipeline would send each statement separately.

The tables of Shoal and procrastinate are in one schema. The first process to start migrates the schema while others
wait for an advisory lock. The table `migrations` lists the completed migrations. If all objects exist, the role does
not need the privilege to create them.
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
    lacking = f"database.url needs the `postgres` extra: {error.name} is not installed."
    raise ConfigError([f"{lacking} {how_to_add('postgres')}"]) from error

_PARAMETER = re.compile(r"%\((\w+)\)s")
_ROWLESS = re.compile(r"$|select from |(insert|update|delete) (?!.*\breturning\b)", re.DOTALL)


class Statement(NamedTuple):
    """SQL with the names of its parameters in order from `$1`. `has_rows` is False if the statement returns no rows."""

    sql: bytes
    names: Sequence[str]
    has_rows: bool


Call: TypeAlias = tuple[Statement, Mapping[str, Param]]


def statement(body: str) -> Statement:
    """Convert named parameters, `%(name)s`, to numbered ones, `$1`."""
    names = list(dict.fromkeys(_PARAMETER.findall(body)))
    numbered = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", body).replace("%%", "%")
    return Statement(numbered.encode(), names, not _ROWLESS.match(body))


class Pipeline:
    """Runs statements in pipeline mode, and tracks the prepared statements of each connection."""

    def __init__(self) -> None:
        self._prepared: WeakKeyDictionary[AsyncConnection, dict[tuple[bytes, tuple[int, ...]], bytes]]
        self._prepared = WeakKeyDictionary()
        self._numbers = count()

    async def run(self, connection: AsyncConnection, calls: Sequence[Call]) -> list[list[Row]]:
        """Run statements in order, stop at the first that fails, and return the rows of each. Raises psycopg.Error.

        The statements form one transaction, unless a transaction is already open.
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
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


SCHEMA = "shoal"
"""PostgreSQL schema that contains Shoal's tables. The tables have common names, so they need their own schema."""
_LOCK = 0x73686F616C  # "shoal" in ASCII
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
    """Migrate the database. `store_steps` replaces Shoal's own migrations.

    Raises StoreNewer if a newer Shoal migrated it, StoreUnreleased if it predates the first release, StoreReadOnly
    if the database role lacks a privilege, and StoreError if the database's encoding is not UTF8.
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
            if len(lacking_jobs) == len(
                job_steps
            ):  # A new database gets procrastinate's complete schema. An older one gets only the missing migrations.
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
    """Return the names of the migrations that `migrate` would run. Read-only. Raises the same errors as `migrate`."""
    steps = migrations("postgres")
    if not await _has_schema(connection) or not await _has_list(connection):
        return [*_job_steps(), *(f"{number:04}" for number, _ in steps)]
    await connection.execute(f"set search_path to {SCHEMA}".encode())
    lacking = await _lacking_schema(connection, steps)
    return [*await _lacking_jobs(connection), *(f"{number:04}" for number, _ in lacking)]


async def _has_schema(connection: AsyncConnection) -> bool:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"The database's encoding is {encoding}. Create a database with `create database … encoding 'UTF8'`."
        )
    row = await (await connection.execute(_RIGHTS, {"schema": SCHEMA})).fetchone()
    role, database, may_create, may_use, unwritable = row or ("", "", False, None, None)
    if may_use is None and not may_create:
        raise StoreReadOnly(
            f"The role {role} may not create the schema {SCHEMA} in the database {database}. Run as the database "
            f"owner: `create schema {SCHEMA} authorization {role}`."
        )
    if may_use is False or unwritable is not None:
        what = f"table {SCHEMA}.{unwritable}" if may_use else f"schema {SCHEMA}"
        raise StoreReadOnly(
            f"The role {role} may not use the {what} of the database {database}. Grant the role usage on "
            "the schema, and select, insert, update and delete on all of its tables."
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
    folder = files("procrastinate") / "sql" / "migrations"
    return {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}


async def _lacking_jobs(connection: AsyncConnection) -> list[str]:
    steps, done = _job_steps().keys(), await _done(connection, "procrastinate")
    if ahead := sorted(done - steps):
        raise StoreNewer(
            f"The database was written by a newer version of Shoal (migration {ahead[-1]}). "
            "Install that version to use it."
        )
    return sorted(steps - done)


async def _lacking_schema(connection: AsyncConnection, steps: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    done = {int(name) for name in await _done(connection, "store")}
    for number in sorted(done):
        refuse_other_schemas(number, steps[-1][0], "The database", "set database.url to an empty database")
    return [step for step in steps if step[0] not in done]


async def tables(connection: AsyncConnection) -> list[str]:
    cursor = await connection.execute(
        "select tablename from pg_tables where schemaname = %s and tablename not like 'procrastinate%%' order by 1",
        [SCHEMA],
    )
    return [str(row[0]) for row in await cursor.fetchall() if row[0] != "migrations"]


log = logging.getLogger(__name__)

T = TypeVar("T")

STATEMENT_SECONDS = 30
IDLE_SECONDS = 5
"""Maximum time that a transaction may be idle. Only a frozen process reaches this limit, because scripts wait only for
the database.
"""
RECONNECT_SECONDS = 5.0
"""Seconds for which the pool tries to reconnect, with increasing delays. After that, it tries again whenever a
connection is requested.
"""
REPLACED = (
    "database.url now points to a different database than at startup. If this is intended, restart every Shoal "
    "process. Otherwise, correct the URL and restart."
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
    """Limits of the connections to one database. A caller waits up to `wait_seconds` for a connection."""

    connections_max: int = 10
    wait_seconds: float = 10.0


DEFAULT_POOL = PoolSettings()


class PostgresDriver:
    """Driver for a PostgreSQL database. Create it with `open_postgres`."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection], health: Health | None = None) -> None:
        self.pool = pool
        self.health = health or Health()
        self._pipeline = Pipeline()
        self._statements = {name: statement(body) for name, body in statements("postgres").items()}

    async def write(self, script: Script[T]) -> T:
        """Run a script in one transaction, which is durable when this returns. Cancellation rolls it back.

        Raises StoreUnavailable if the connection fails. If that happens during the commit, the outcome is unknown.
        Raises StoreCorrupt if `health` has recorded damage.
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
                    self.health.check()  # a new connection may have reached a different database
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
                with contextlib.suppress(psycopg.Error):  # the pool closes and replaces a broken connection
                    await self._pipeline.run(connection, [ROLLBACK])
            await self.pool.putconn(connection)

    async def _drive(self, connection: AsyncConnection, script: Script[T], batch: Batch, begin: Call) -> T:
        """Run a script.

        Statements without rows are sent together with the next statement that returns rows, or with the commit. A
        single batch needs no `begin`.
        """
        is_whole, has_begun, calls = is_single(script), False, list[Call]()
        try:
            while True:
                asked = [self._statements[step.name] for step in batch.queries]
                first_result = len(calls)
                calls += [
                    (statement, step.params)
                    for statement, step in zip(asked, batch.queries, strict=True)
                    if statement.sql
                ]
                rows, ends = iter(list[list[Row]]()), batch.last or is_whole
                if ends or any(statement.has_rows for statement in asked):
                    before = [] if ends or has_begun else [begin]
                    after = [COMMIT] if ends and has_begun else []
                    results = await self._pipeline.run(connection, [*before, *calls, *after])
                    rows = iter(results[len(before) + first_result :])
                    has_begun, calls = not ends, []
                batch = script.send([next(rows, list[Row]()) if statement.sql else [] for statement in asked])
        except StopIteration as done:
            if calls or has_begun:
                await self._pipeline.run(connection, [*calls, COMMIT] if has_begun else calls)
            return cast(T, done.value)


async def open_postgres(url: str, settings: PoolSettings = DEFAULT_POOL) -> PostgresDriver:
    """Connect to the database, create or migrate its tables, and return a driver.

    Raises StoreUnavailable if the server is unreachable, StoreNewer if a newer Shoal wrote the tables, StoreUnreleased
    if they predate the first release, StoreReadOnly if the database role lacks a privilege, and StoreError if the
    database's encoding is not UTF8.
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
    """Return values that identify this database. A replica has the same identity as its primary.

    The identity changes if a different database is restored in its place.
    """
    rows: list[Row | None] = []
    for question in _IDENTITY:
        with contextlib.suppress(errors.InsufficientPrivilege, errors.UndefinedFunction):
            rows.append(await (await connection.execute(question)).fetchone())
    return tuple(rows)


async def answering(url: str) -> tuple[str, int]:
    """Return the server's version, such as `16.2`, and the number of outstanding migrations. Read-only.

    Raises the same errors as `open_postgres`.
    """
    with translated():
        async with await AsyncConnection.connect(address(url), autocommit=True) as connection:
            version = connection.info.server_version
            return f"{version // 10_000}.{version % 10_000}", len(await missing(connection))


def address(url: str) -> str:
    """Add Shoal's defaults to a database URL. Raises InvalidInput if the URL is malformed."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidInput("The database URL is malformed. Use the form postgresql://USER@HOST/DATABASE.") from error
    return make_conninfo("", **{**_ADDRESS_DEFAULTS, **given})


def make_pool(
    url: str, settings: PoolSettings, connected: Callable[[AsyncConnection], Awaitable[None]] | None = None
) -> AsyncConnectionPool[AsyncConnection]:
    """Create a pool of autocommit connections that use Shoal's schema. The caller must open it.

    `connected` is called with each new connection.
    """

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
    """Raise OperationalError if the server has closed the connection. An idle connection has data to read only in
    that case.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await connection.close()
        raise psycopg.OperationalError("the server closed the connection")


async def prepare(connection: AsyncConnection) -> None:
    connection.adapters.register_dumper(int, Int8Dumper)  # use one query plan for integers of any size
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
    try:
        yield
    except (psycopg.Error, UnicodeError, OverflowError) as error:
        raise _meaning(error) from error


def _meaning(error: Exception) -> ShoalError:
    match error:
        case psycopg.Error(sqlstate="SH001"):
            return StaleEpoch(_line(error))
        case psycopg.DataError() | UnicodeError() | OverflowError():
            return InvalidInput(f"Shoal cannot store this value: {_line(error)}. Send valid Unicode without NUL.")
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreFull(f"The database server has no space left: {_line(error)}. Free some space, then try again.")
        case errors.ReadOnlySqlTransaction() | errors.InsufficientPrivilege():
            return StoreReadOnly(f"The database rejects writes: {_line(error)}. Check the role's privileges.")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreCorrupt(
                f"The database is damaged: {_line(error)}. Stop every Shoal process, check the server, and restore a "
                "dump if necessary."
            )
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return StoreUnavailable("The database took too long to respond. Check the server for locks and high load.")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            reason = _line(error).partition(" Is the server running")[0]  # remove libpq's own question
            return StoreUnavailable(f"Shoal cannot reach the database: {reason}. Check that the server is running.")
        case _:
            return StoreError(f"The database returned an error: {_line(error)}.")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
