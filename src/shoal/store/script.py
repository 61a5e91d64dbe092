"""Transactions as generators: one script serves every dialect.

A script yields batches of named queries and is sent the rows of each; what it returns is the transaction's result, and
what it raises rolls the transaction back. A driver runs it inside one transaction: SQLite's in its writer thread, where
many scripts share one durable commit, PostgreSQL's on a pooled connection.
"""

import inspect
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

Value: TypeAlias = str | int | float | None
Param: TypeAlias = Value | list[str]
"""Lists are PostgreSQL's arrays; no query of SQLite has one."""
Row: TypeAlias = tuple[Value, ...]
T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, gc=False):
    """A named query of queries/*.sql with its parameters."""

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


def query(name: str, **params: Value) -> Script[list[Row]]:
    """One query as a script: `rows = yield from query("thread_one", thread=thread)`."""
    return (yield Batch((Query(name, params),)))[0]


def is_single(script: Script[T]) -> bool:
    """Whether the script is one query and nothing more, so that it needs no transaction around it."""
    return inspect.isgenerator(script) and script.gi_code is query.__code__


def text(value: Value) -> str:
    """A text column."""
    assert isinstance(value, str)
    return value


def number(value: Value) -> int:
    """An integer column; NULL counts as 0 (sums over nothing)."""
    return int(value) if value is not None else 0
