"""Loads the named queries of queries/*.sql."""

import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_POSTGRES_ONLY = re.compile(r"/\*pg: (.*?) \*/")
EARLY_TABLE = "agents"
"""Made by the first migration since it is final; a home with that migration done and without this table is older."""
_CREATE = re.compile(r"^create (table|virtual table|index|trigger) ", re.MULTILINE)
_SQLITE_ONLY = re.compile(r"/\*sqlite: (.*?) \*/")
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


@cache
def statements(dialect: str) -> dict[str, str]:
    """All queries by name in the words of a dialect, `sqlite` or `postgres`.

    Parameters are written `:name` and become `%(name)s` for PostgreSQL; `/*pg: … */` counts there only, and
    `/*sqlite: … */` for SQLite only, where a query may be several statements, the last of which has the rows, or none.
    """
    found: dict[str, str] = {}
    for source in sorted(_HERE.joinpath("queries").iterdir(), key=lambda entry: entry.name):
        pieces = _NAME.split(source.read_text("utf-8"))
        for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
            if name in found:
                raise ValueError(f"Query {name} is defined twice.")
            if not body.lstrip().startswith("-- "):
                raise ValueError(f"Query {name} does not say what it is for.")
            found[name] = _translate(_COMMENT.sub("", body).strip().rstrip(";"), dialect)
    return found


def _translate(body: str, dialect: str) -> str:
    if dialect == "sqlite":
        return _POSTGRES_ONLY.sub("", _SQLITE_ONLY.sub(r"\1", body))
    body = _SQLITE_ONLY.sub("", body).strip()
    return PARAMETER.sub(r"%(\1)s", _POSTGRES_ONLY.sub(r"\1", body.replace("%", "%%")))


def completion(dialect: str) -> str:
    """What gives a home from before `EARLY_TABLE` all that the first migration makes since it is final.

    Such a home has some of the first migration's tables, and the first migration counts as done there.
    """
    lacking = _HERE.joinpath("early", f"{dialect}.sql").read_text("utf-8")
    first = migrations(dialect)[0][1].replace("\ncreate function", "\ncreate or replace function")
    return lacking + _CREATE.sub(r"create \1 if not exists ", first)


def migrations(dialect: str) -> list[tuple[int, str]]:
    """The migrations of a dialect as (number, SQL), in order; numbers count from 1 without gaps."""
    folder = _HERE.joinpath("migrations", dialect)
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name)
    found = [(int(entry.name.split("_")[0]), entry.read_text("utf-8")) for entry in entries]
    assert [number for number, _ in found] == list(range(1, len(found) + 1)), "migrations have a gap"
    return found
