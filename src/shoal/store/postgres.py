"""PostgreSQL: every script in one transaction on a pooled connection. Needs the extra `postgres`.

Scripts cannot be run twice, so they are written not to need it: each locks its thread's row before anything else of
the thread (READ COMMITTED then shows every later query what others committed before), all take what they lock in the
order thread, inbox, outbox, approval, job, audit chain, and so none can deadlock or fail to serialize. What is tried
again is only the beginning, on another connection, when one from the pool turns out to be dead (the server restarted).

A process that is frozen inside a transaction would hold the thread's row: the server ends such a transaction after
IDLE_SECONDS, and what the frozen process does later is refused by the thread's epoch.
"""

import contextlib
import logging
import select
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar, cast

import anyio
import msgspec

from shoal.domain.errors import (
    ConfigError,
    InvalidInput,
    ShoalError,
    StaleEpoch,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from shoal.store.health import Health
from shoal.store.script import Batch, Row, Script, is_single
from shoal.store.statements import statements

try:
    import psycopg
    from psycopg import AsyncConnection, errors
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
    from psycopg.types.numeric import Int8Dumper
    from psycopg_pool import AsyncConnectionPool

    from shoal.store.postgres_pipeline import Call, Pipeline, statement
    from shoal.store.postgres_schema import SCHEMA, migrate, missing
except ModuleNotFoundError as error:
    lacking = f"database.url needs the extra `postgres`: {error.name} is not installed."
    raise ConfigError([f"{lacking} Install it (pip install 'shoal[postgres]'), or leave the key out."]) from error

log = logging.getLogger(__name__)

T = TypeVar("T")

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
    """Bounds of the connections to one database.

    `statement_seconds` ends a query that takes too long; `wait_seconds` is how long a caller waits for a connection.
    """

    connections_min: int = 1
    connections_max: int = 10
    statement_seconds: float = 30.0
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
        """Run a script of reads on one snapshot."""
        return await self._run(script, BEGIN_READING)

    async def close(self) -> None:
        """Wait for what runs, then close every connection."""
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
        await prepare(connection, settings.statement_seconds)
        if connected is not None:
            await connected(connection)

    return AsyncConnectionPool(
        address(url),
        kwargs={"autocommit": True},
        min_size=settings.connections_min,
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


async def prepare(connection: AsyncConnection, statement_seconds: float) -> None:
    """Give a fresh connection Shoal's schema, isolation and limits."""
    connection.adapters.register_dumper(int, Int8Dumper)  # one plan a query, whatever the number's size
    limits = {
        "search_path": SCHEMA,
        "default_transaction_isolation": "read committed",
        "statement_timeout": f"{round(statement_seconds * 1000)}ms",
        "lock_timeout": f"{round(statement_seconds * 1000)}ms",
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
            return StoreUnavailable(f"The database cannot be reached: {_line(error)}. Is the server up?")
        case _:
            return StoreError(f"The database failed: {_line(error)}.")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
