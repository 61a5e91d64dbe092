"""Many statements in one round trip: libpq's pipeline, on connections that keep every statement prepared.

To wake the other side costs more than what PostgreSQL does about most of Shoal's statements. psycopg's own pipeline
sends each statement by itself.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from psycopg import AsyncConnection, OperationalError, adapt, errors
from psycopg.abc import Buffer, PQGen, Transformer
from psycopg.adapt import PyFormat
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from shoal.store.script import Param, Row

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
        bound = [(called.sql, *_bound(adapter, called, params)) for called, params in calls]
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
        return [_rows(adapter, results[place]) for place in answers]


def _bound(
    adapter: Transformer, called: Statement, params: Mapping[str, Param]
) -> tuple[Sequence[Buffer | None], tuple[int, ...], Sequence[Format] | None]:
    values = adapter.dump_sequence([params[name] for name in called.names], [PyFormat.AUTO] * len(called.names))
    return values, adapter.types or (), adapter.formats


def _rows(adapter: Transformer, result: PGresult) -> list[Row]:
    adapter.set_pgresult(result)
    return adapter.load_rows(0, result.ntuples, tuple)


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
