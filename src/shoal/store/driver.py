"""The database interface of the store: scripts that run as transactions, named queries and migrations.

Named queries are in `queries/*.sql` and in the features' `queries.sql`. A script is a generator that yields batches
of queries and receives their rows. Its return value is the result of the transaction, and an exception rolls the
transaction back. A driver runs each script in one transaction. SQLite uses its writer thread, where many scripts
share one commit, and PostgreSQL uses a pooled connection. Each operation is therefore written once for both
databases.
"""

import inspect
import re
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock, from_micros, to_micros
from shoal.kernel.errors import StoreNewer, StoreUnreleased
from shoal.kernel.untrusted import UNREADABLE

Value: TypeAlias = str | int | float | None
Param: TypeAlias = Value | list[str]
"""A query parameter. Lists become PostgreSQL arrays. SQLite does not accept lists."""
Row: TypeAlias = tuple[Value, ...]
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", bound=msgspec.Struct)


class Query(msgspec.Struct, frozen=True, gc=False):
    """A named query with its parameters."""

    name: str
    params: Mapping[str, Param]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Queries that do not depend on each other's rows, in execution order.

    The driver may commit a script's `last` batch before the script receives its rows. A later exception then rolls
    nothing back.
    """

    queries: Sequence[Query]
    last: bool = False


Script: TypeAlias = Generator[Batch, Sequence[list[Row]], T]


class Driver(Protocol):
    """Runs scripts on a database."""

    async def write(self, script: Script[T]) -> T:
        """Run a script in one transaction, which is durable when this returns.

        Cancellation is safe: the script runs completely or not at all.
        """
        ...

    async def read(self, script: Script[T]) -> T:
        """Run a read-only script on a consistent snapshot."""
        ...

    async def close(self) -> None:
        """Finish all submitted scripts, then close the connections."""
        ...


def query(name: str, /, **params: Param | datetime) -> Script[list[Row]]:
    """Run a named query within a script: `rows = yield from query("thread_one", thread=thread)`."""
    return (yield Batch((asked(name, params),)))[0]


def asked(name: str, params: Mapping[str, Param | datetime]) -> Query:
    """Create a query with parameters in storage format: times as microseconds, booleans as integers."""
    columns: dict[str, Param] = {}
    for key, value in params.items():
        if isinstance(value, datetime):
            columns[key] = to_micros(value)
        else:
            columns[key] = int(value) if isinstance(value, bool) else value
    return Query(name, columns)


def is_single(script: Script[T]) -> bool:
    return inspect.isgenerator(script) and script.gi_code is query.__code__


class StorePart:
    """Operations of one part of the store, for SQLite and PostgreSQL. Writes are durable when a method returns.

    An operation with several queries is a script decorated with `@writes`, `@writes_at` or `@reads`. An operation
    with a single query awaits `_read` or `_write`, which need no explicit transaction.
    """

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    def _read(self, name: str, /, **params: Param | datetime) -> Coroutine[object, None, list[Row]]:
        return self._driver.read(query(name, **params))

    async def _one(self, read: Callable[[Row], T], name: str, /, **params: Param | datetime) -> T | None:
        rows = await self._read(name, **params)
        return read(rows[0]) if rows else None

    def _write(self, name: str, /, **params: Param | datetime) -> Coroutine[object, None, list[Row]]:
        return self._driver.write(query(name, **params))


Part = TypeVar("Part", bound=StorePart)


def writes(
    script: Callable[Concatenate[Part, P], Script[T]],
) -> Callable[Concatenate[Part, P], Coroutine[object, None, T]]:
    """Turn a script into a method that runs it in one transaction."""

    @wraps(script)
    def run(self: Part, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        return self._driver.write(script(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


def writes_at(
    script: Callable[Concatenate[Part, datetime, P], Script[T]],
) -> Callable[Concatenate[Part, P], Coroutine[object, None, T]]:
    """Like `writes`, but pass the time of the call to the script, which may run later."""

    @wraps(script)
    def run(self: Part, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        now = self._clock.now()  # pyright: ignore[reportPrivateUsage]
        return self._driver.write(script(self, now, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


def reads(
    script: Callable[Concatenate[Part, P], Script[T]],
) -> Callable[Concatenate[Part, P], Coroutine[object, None, T]]:
    """Turn a read-only script into a method that runs it on one snapshot."""

    @wraps(script)
    def run(self: Part, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        return self._driver.read(script(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


# ---- columns ------------------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()


def dump(record: object) -> str:
    return _encoder.encode(record).decode()


LAST = "~"
"""String that sorts after every id."""


def first_after(within: str) -> str:
    """Return the exclusive upper bound of the thread ids in a scope: one thread, a prefix that ends with a colon,
    or all.
    """
    if not within:
        return "\U0010ffff"
    if within.endswith(":"):
        return f"{within[:-1]};"
    return f"{within}\x01"


def reader(record: type[R], columns: str = "", **decoders: Callable[[str], object]) -> Callable[[Row], R]:
    """Return a function that decodes rows into records, according to the types of the record's fields.

    `columns` lists the columns of the rows. By default, these are all fields in order. `decoders` decode JSON columns.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(record)}
    names = columns.split() or [*fields]
    readers: list[Callable[..., object] | None]
    readers = [decoders.get(name) or _READERS.get(fields[name]) for name in names]

    def read(row: Row) -> R:
        cells = zip(names, readers, row, strict=True)
        return record(**{name: value if change is None else change(value) for name, change, value in cells})

    return read


def readable(read: Callable[[Row], R], rows: Sequence[Row]) -> list[R]:
    """Decode rows into records, skipping unreadable ones."""
    results: list[R] = []
    for row in rows:
        with suppress(*UNREADABLE):
            results.append(read(row))
    return results


def text(value: Value) -> str:
    assert isinstance(value, str)
    return value


def number(value: Value) -> int:
    """Return an integer column. NULL, such as the sum of zero rows, becomes 0."""
    return int(value) if value is not None else 0


def time(value: Value) -> datetime:
    return from_micros(number(value))


def moment(value: Value) -> datetime | None:
    return None if value is None else from_micros(number(value))


def real(value: Value) -> float:
    """Return a floating-point column. NULL becomes 0."""
    return float(value or 0.0)


_READERS: dict[object, Callable[..., object]] = {
    int: number, bool: bool, float: real, datetime: time, datetime | None: moment
}  # fmt: skip


# ---- the SQL files ------------------------------------------------------------------------------------------------

_HERE = Path(__file__).parent
_NAME = lazy_re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_POSTGRES_ONLY = lazy_re.compile(r"/\*pg: (.*?) \*/")
_SQLITE_ONLY = lazy_re.compile(r"/\*sqlite: (.*?) \*/")
_COMMENT = lazy_re.compile(r"^--.*\n?", re.MULTILINE)
PARAMETER = lazy_re.compile(r"(?<![:\w]):(\w+)")
FIRST_MIGRATION = 100
"""Number of the initial schema. Lower numbers belong to unreleased versions."""


@cache
def queries() -> Mapping[str, str]:
    """Return the SQL of all named queries, as written in the files.

    Parameters are written `:name` and become `%(name)s` for PostgreSQL. `/*pg: … */` applies to PostgreSQL only, and
    `/*sqlite: … */` to SQLite only. In SQLite a query may consist of several statements. Its rows are those of the
    last statement.
    """
    written: dict[str, str] = {}
    own, features = _HERE.joinpath("queries").glob("*.sql"), _HERE.parent.glob("features/*/queries.sql")
    for source in sorted((*own, *features)):
        pieces = _NAME.split(source.read_text("utf-8"))
        written.update(zip(pieces[1::2], pieces[2::2], strict=True))
    return written


def statement(name: str, dialect: str) -> str:
    sql = in_dialect(_COMMENT.sub("", queries()[name]).strip().rstrip(";"), dialect).strip()
    return sql if dialect == "sqlite" else PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


@cache
def statements(dialect: str) -> dict[str, str]:
    return {name: statement(name, dialect) for name in queries()}


def in_dialect(sql: str, dialect: str) -> str:
    own, other = (_SQLITE_ONLY, _POSTGRES_ONLY) if dialect == "sqlite" else (_POSTGRES_ONLY, _SQLITE_ONLY)
    return own.sub(r"\1", other.sub("", sql))


def migrations(dialect: str) -> list[tuple[int, str]]:
    """Return the migrations of a dialect as (number, SQL), in order.

    Files are named `NUMBER_NAME.sql`, or `NUMBER_NAME.DIALECT.sql` for one dialect. Never change an existing
    migration, because databases have already run it.
    """
    migrations: list[tuple[int, str]] = []
    for path in sorted(_HERE.joinpath("migrations").glob("*.sql")):
        name, _, only = path.stem.partition(".")
        if only in ("", dialect):
            migrations.append((int(name.partition("_")[0]), in_dialect(path.read_text("utf-8"), dialect)))
    assert len({number for number, _ in migrations}) == len(migrations), "two migrations have the same number"
    return migrations


def refuse_other_schemas(number: int, newest: int, what: str, how: str) -> None:
    """Raise StoreUnreleased or StoreNewer if this version cannot use schema `number`. 0 means an empty database.

    `what` is the name of the database in error messages. `how` says how to start over with an empty one.
    """
    if 0 < number < FIRST_MIGRATION:
        raise StoreUnreleased(
            f"{what} is from before Shoal's first release: {how} to start without history and keep your "
            "agents, files and settings."
        )
    if number > newest:
        raise StoreNewer(
            f"{what} was written by a newer version of Shoal (schema {number}). Install that version to use it."
        )
