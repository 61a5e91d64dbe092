"""What the store is written against: transactions as generators, the named queries of
`queries/*.sql` and of features, and migrations.

A script yields batches of named queries and is sent the rows of each; what it returns is the transaction's result, and
what it raises rolls the transaction back. A driver runs it inside one transaction: SQLite's in its writer thread, where
many scripts share one durable commit, PostgreSQL's on a pooled connection. So every operation is written once for both.
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
"""Lists are PostgreSQL's arrays; no query of SQLite has one."""
Row: TypeAlias = tuple[Value, ...]
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", bound=msgspec.Struct)


class Query(msgspec.Struct, frozen=True, gc=False):
    """A named query with its parameters."""

    name: str
    params: Mapping[str, Param]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Queries that do not need each other's rows, in the order in which they are executed.

    A script's `last` one may be committed before the script sees its rows: what it raises afterwards undoes nothing.
    """

    queries: Sequence[Query]
    last: bool = False


Script: TypeAlias = Generator[Batch, Sequence[list[Row]], T]


class Driver(Protocol):
    """Runs scripts against a database."""

    async def write(self, script: Script[T]) -> T:
        """Run it in one transaction, durable on return. Safe to cancel: it is done whole or not at all."""
        ...

    async def read(self, script: Script[T]) -> T:
        """Run a script of reads on a consistent snapshot."""
        ...

    async def close(self) -> None:
        """Finish what was handed in, then close."""
        ...


def query(name: str, /, **params: Param | datetime) -> Script[list[Row]]:
    """One query as a script: `rows = yield from query("thread_one", thread=thread)`."""
    return (yield Batch((asked(name, params),)))[0]


def asked(name: str, params: Mapping[str, Param | datetime]) -> Query:
    """A query with its times in microseconds and truth values as numbers, as columns hold them."""
    columns: dict[str, Param] = {}
    for key, value in params.items():
        if isinstance(value, datetime):
            columns[key] = to_micros(value)
        else:
            columns[key] = int(value) if isinstance(value, bool) else value
    return Query(name, columns)


def is_single(script: Script[T]) -> bool:
    """Whether the script is one query and nothing more, so that it needs no transaction around it."""
    return inspect.isgenerator(script) and script.gi_code is query.__code__


class StorePart:
    """Operations of one concern over either database. What a method writes is durable on return.

    An operation of several queries is a script under `@writes`, `@writes_at` or `@reads`; one of a single query awaits
    `_read` or `_write`, which need no transaction around them.
    """

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    def _read(self, name: str, /, **params: Param | datetime) -> Coroutine[object, None, list[Row]]:
        return self._driver.read(query(name, **params))

    async def _one(self, read: Callable[[Row], T], name: str, /, **params: Param | datetime) -> T | None:
        """The one row of a query, read; None when there is none."""
        rows = await self._read(name, **params)
        return read(rows[0]) if rows else None

    def _write(self, name: str, /, **params: Param | datetime) -> Coroutine[object, None, list[Row]]:
        return self._driver.write(query(name, **params))


Part = TypeVar("Part", bound=StorePart)


def writes(
    script: Callable[Concatenate[Part, P], Script[T]],
) -> Callable[Concatenate[Part, P], Coroutine[object, None, T]]:
    """Turn a method that is a script into one that runs it in one transaction."""

    @wraps(script)
    def run(self: Part, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        return self._driver.write(script(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


def writes_at(
    script: Callable[Concatenate[Part, datetime, P], Script[T]],
) -> Callable[Concatenate[Part, P], Coroutine[object, None, T]]:
    """Do the same, and give the script the time of the call first: it may run some moments later, in another thread."""

    @wraps(script)
    def run(self: Part, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        now = self._clock.now()  # pyright: ignore[reportPrivateUsage]
        return self._driver.write(script(self, now, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


def reads(
    script: Callable[Concatenate[Part, P], Script[T]],
) -> Callable[Concatenate[Part, P], Coroutine[object, None, T]]:
    """Turn a method that is a script of reads into one that runs it on one snapshot."""

    @wraps(script)
    def run(self: Part, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        return self._driver.read(script(self, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return run


# ---- columns ------------------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()


def dump(record: object) -> str:
    return _encoder.encode(record).decode()


LAST = "~"
"""After every id."""


def first_after(within: str) -> str:
    """The first thread id after all that are or begin with `within`."""
    if not within:
        return "\U0010ffff"
    if within.endswith(":"):
        return f"{within[:-1]};"
    return f"{within}\x01"


def reader(record: type[R], columns: str = "", **decoders: Callable[[str], object]) -> Callable[[Row], R]:
    """How rows of these columns (none named: all fields, in order) are read as records, by the types of the fields;
    JSON columns by their decoders."""
    fields = {field.name: field.type for field in msgspec.structs.fields(record)}
    names = columns.split() or [*fields]
    readers: list[Callable[..., object] | None]
    readers = [decoders.get(name) or _READERS.get(fields[name]) for name in names]

    def read(row: Row) -> R:
        cells = zip(names, readers, row, strict=True)
        return record(**{name: value if change is None else change(value) for name, change, value in cells})

    return read


def readable(read: Callable[[Row], R], rows: Sequence[Row]) -> list[R]:
    """The rows as records, without those that cannot be read."""
    found: list[R] = []
    for row in rows:
        with suppress(*UNREADABLE):
            found.append(read(row))
    return found


def text(value: Value) -> str:
    assert isinstance(value, str)
    return value


def number(value: Value) -> int:
    """An integer column; NULL counts as 0 (sums over nothing)."""
    return int(value) if value is not None else 0


def time(value: Value) -> datetime:
    return from_micros(number(value))


def moment(value: Value) -> datetime | None:
    return None if value is None else from_micros(number(value))


def real(value: Value) -> float:
    """A column of fractions; NULL counts as 0."""
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
"""The number of the initial schema. Lower ones were those of versions that were never released."""


@cache
def statements(dialect: str) -> dict[str, str]:
    """All queries by name in the words of a dialect, `sqlite` or `postgres`.

    Parameters are written `:name` and become `%(name)s` for PostgreSQL; `/*pg: … */` counts there only, and
    `/*sqlite: … */` for SQLite only, where a query may be several statements, the last of which has the rows, or none.
    """
    found: dict[str, str] = {}
    own, features = _HERE.joinpath("queries").glob("*.sql"), _HERE.parent.glob("features/*/queries.sql")
    for source in sorted((*own, *features)):
        pieces = _NAME.split(source.read_text("utf-8"))
        for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
            sql = in_dialect(_COMMENT.sub("", body).strip().rstrip(";"), dialect).strip()
            found[name] = sql if dialect == "sqlite" else PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
    return found


def in_dialect(sql: str, dialect: str) -> str:
    """Of a text for both databases what is for this one: `/*pg: … */` and `/*sqlite: … */` count in their own alone."""
    own, other = (_SQLITE_ONLY, _POSTGRES_ONLY) if dialect == "sqlite" else (_POSTGRES_ONLY, _SQLITE_ONLY)
    return own.sub(r"\1", other.sub("", sql))


def migrations(dialect: str) -> list[tuple[int, str]]:
    """The migrations of a dialect as (number, SQL), in order: `NUMBER_NAME.sql` and `NUMBER_NAME.DIALECT.sql`.

    They are only added, never changed: databases have run them.
    """
    found: list[tuple[int, str]] = []
    for path in sorted(_HERE.joinpath("migrations").glob("*.sql")):
        name, _, only = path.stem.partition(".")
        if only in ("", dialect):
            found.append((int(name.partition("_")[0]), in_dialect(path.read_text("utf-8"), dialect)))
    assert len({number for number, _ in found}) == len(found), "two migrations have the same number"
    return found


def refuse_other_schemas(number: int, newest: int, what: str, how: str) -> None:
    """Raise StoreUnreleased or StoreNewer unless this program can use the schema of `what`; 0 is an empty database.

    `how` says how to start over where the schema was never released.
    """
    if 0 < number < FIRST_MIGRATION:
        raise StoreUnreleased(
            f"{what} is from before Shoal's first release: {how}; Shoal then starts with your agents, files and "
            "settings, and no history."
        )
    if number > newest:
        raise StoreNewer(f"{what} was written by a newer Shoal (schema {number}). Install that version to use it.")
