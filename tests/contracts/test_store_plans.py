"""No named query may get slower as history grows. One rule checks the query plans of SQLite and PostgreSQL.

A query may read a growing table by its unique key, by an index that contains only waiting or running rows, or in an
index's order up to a limit. It must not scan or sort the table, except to sort rows that are equal in the index's
order. SQLITE_EXCEPTIONS and POSTGRES_EXCEPTIONS list the queries that break the rule, with the reason. Remove an
exception once its query follows the rule.
"""

import asyncio
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psycopg
import pytest
from tests.postgres import database

from shoal.store import sqlite as sqlite_store
from shoal.store.driver import PARAMETER, statements
from shoal.store.postgres import SCHEMA, address, migrate

pytestmark = pytest.mark.xdist_group("postgres")

GROWING = frozenset(
    {
        *("approvals", "artifacts", "audit", "budget", "chains", "events", "inbox", "occurrences", "outbox", "posted"),
        *("memory_changes", "processes", "prompts", "settings", "snapshots", "spend", "thread_steps", "threads"),
        *("search_events", "search_words", "recall_sources", "recall_pieces", "recall_vectors", "checkpoints"),
        "comparison_answers",
    }
)
SMALL = frozenset(
    {"agents", "bindings", "comparisons", "reservations", "spend_days", "staged_sets", "tokens", "triggers"}
)
"""Tables with as many rows as people created, calls are running, approvals are pending, or days have passed."""
WAITING = frozenset(
    {
        *(
            "approvals_pending",
            "checkpoints_undoing",
            "inbox_pending",
            "outbox_thread",
            "outbox_waiting",
            "processes_at_work",
        ),
        *("processes_running", "processes_untold", "recall_waiting", "threads_open", "threads_retry"),
    }
)
"""Indexes that hold only waiting or running rows, never the past."""
_AUDIT = "`audit verify` is there to read every chain"
_TIES = "a message's posts, or the results whose digests begin alike: a few"
_PAGE = "the keys of one page, which the query before it has read"
_DELETED = "the rows that it deletes, when a person deletes a thread"
_LOOKED_THROUGH = (
    "the messages and posts of the last weeks, or what people saved, looked through when a person deletes a thread"
)
EXCEPTIONS = {
    "answers_delete": "the rows that it deletes",
    "artifact_find": _TIES,
    "artifacts_expire": "the rows that it deletes",
    "audit_chains": _AUDIT,
    "budget_all": "the ceilings of one day",
    "posted_thread": _TIES,
    "processes_forget": "the rows that it deletes",
    **{f"{name}_delete_thread": _LOOKED_THROUGH for name in ("inbox", "outbox", "snapshots")},
    "snapshots_of_thread": _LOOKED_THROUGH,
    **{
        f"{name}_forget": _PAGE
        for name in ("approvals", "checkpoints", "inbox", "memory", "occurrences", "outbox", "steps")
    },
}
SQLITE_EXCEPTIONS = EXCEPTIONS | {
    "audit_orphans": _AUDIT,
    "event_types": "one thread, when a person begins a branch in it",
    "search_fork": "what it has just copied",
    "search_of_thread": _DELETED,
}
_SORTED = "where it takes reading so little for a sort to be cheaper than the index's order: "
POSTGRES_EXCEPTIONS = EXCEPTIONS | {
    "failures_of": f"{_SORTED}one thread, before it is told, once, what its model does not get",
    "child_one": f"{_SORTED}a subagent's first turn",
    "process_cause": f"{_SORTED}the open turn",
    "windows_of": f"{_SORTED}an agent's threads, up to 10,000",
    "steps_of_thread": f"{_SORTED}a thread's steps, which are all told",
    "threads_below": f"{_SORTED}a channel's subagents",
    "threads_of_channel": f"{_SORTED}a channel's subagents, which the server takes for fewer than they are",
}


# ---- SQLite -------------------------------------------------------------------------------------------------------

_TABLE = re.compile(r"\b(?:from|join|update|into)\s+(\w+)(?:\s+(?:as\s+)?(?!set\b|where\b|join\b|on\b|order\b)(\w+))?")
_ACCESS = re.compile(r"(SCAN|SEARCH) (\w+)(?:.*?(?:INDEX (\w+)|PRIMARY KEY)(?: \((.*)\))?)?")


@pytest.fixture(scope="module")
def lite() -> Generator[sqlite3.Connection]:
    """As in production, the planner has no statistics, because nothing runs `analyze`."""
    with closing(sqlite_store.connect(":memory:")) as connection:
        sqlite_store.migrate(connection, Path("shoal.db"))
        yield connection


def test_every_table_is_classified_as_growing_or_small(lite: sqlite3.Connection) -> None:
    names = {name for (name,) in lite.execute("select name from sqlite_master where type = 'table'")}
    assert {name for name in names if not re.match(r"search_words_|sqlite_", name)} == GROWING | SMALL


def test_waiting_rows_have_partial_indexes(lite: sqlite3.Connection) -> None:
    indexes = dict(lite.execute("select name, sql from sqlite_master where type = 'index' and sql is not null"))
    assert all(
        re.search(
            r"where (state|embedded = 0|ended_at is null|open_turn <> ''|retry_at is not null|told = 0)", indexes[name]
        )
        for name in WAITING
    )


@pytest.mark.parametrize("name", sorted(statements("sqlite")))
def test_only_the_listed_queries_scan_or_sort_old_rows_in_sqlite(lite: sqlite3.Connection, name: str) -> None:
    faults = [fault for body in _split(statements("sqlite")[name]) for fault in _sqlite_faults(lite, body)]
    assert bool(faults) == (name in SQLITE_EXCEPTIONS), f"{name}: {faults or 'keeps the rule: remove its exception'}"


def _split(body: str) -> list[str]:
    return [piece for piece in body.split(";") if piece.strip()]


def _sqlite_faults(lite: sqlite3.Connection, body: str) -> Iterator[str]:
    named = {alias or table: table for table, alias in _TABLE.findall(body)} | {t: t for t, _ in _TABLE.findall(body)}
    groups: dict[int, list[str]] = defaultdict(list)
    whole: dict[int, int] = {}
    asked = lite.execute(f"explain query plan {body}", dict.fromkeys(PARAMETER.findall(body)))
    rows: list[tuple[int, int, int, str]] = asked.fetchall()
    for node, parent, _, detail in rows:
        group = whole.get(parent, parent)
        groups[group].append(detail)
        if re.match(r"MULTI-INDEX OR|INDEX \d", detail):  # one access through several indexes
            whole[node] = group
    ranges: list[str] = []
    for details in groups.values():
        is_sorted = any(re.search(r"USE TEMP B-TREE FOR (?!RIGHT|LAST)", detail) for detail in details)
        for detail in details:
            access = _ACCESS.match(detail)
            if access is None or named.get(access[2], "") not in GROWING or access[3] in WAITING:
                continue
            equal = (access[4] or "").count("=?")
            if equal and equal == _unique_columns(lite, named[access[2]], access[3] or ""):
                continue
            if is_sorted:
                yield detail
            elif not equal:
                ranges.append(detail)
    if len(ranges) > body.count("limit"):  # each select that reads without a known key needs its own limit
        yield from ranges


def _unique_columns(lite: sqlite3.Connection, table: str, index: str) -> int:
    """Return the number of columns in a unique index, or -1 if the index is not unique. Without an index, use the
    primary key.
    """
    if not index:
        return sum(row[5] > 0 for row in lite.execute(f"pragma table_info({table})"))
    unique = {row[1]: row[2] for row in lite.execute(f"pragma index_list({table})")}
    return len(lite.execute(f"pragma index_info({index})").fetchall()) if unique.get(index) else -1


# ---- PostgreSQL ---------------------------------------------------------------------------------------------------

Plan: TypeAlias = Mapping[str, object]
ROWS = 20_000
THREADS = 200
VALUES = {
    "limit": "20",
    "types": "'{}'",
    "datas": "'{}'",
    "words": "'''word'''",
    "before": "15000",
    "after": "100",
    "archived": "0",
}
TEXTS = {
    "thread": "'web:c3:t7'",
    "parent": "'web:c3:t7'",
    "low": "'web:c3:'",
    "high": "'web:c3;'",
    "channel": "'web:c3:'",
    "agent": "'a1'",
    "scope": "'s1'",
}


@pytest.fixture(scope="module")
def served() -> Generator[psycopg.Connection]:
    """Yield a migrated database with statistics, in which all growing tables contain only finished rows."""
    with database() as url:
        asyncio.run(migrate(address(url)))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.prepare_threshold = None
            connection.execute(f"set search_path to {SCHEMA}")
            connection.execute("set enable_seqscan = off")
            connection.execute("set plan_cache_mode = force_custom_plan")
            for table in sorted(GROWING - {"search_events", "search_words"}):
                _fill(connection, table)
            connection.execute("analyze")
            yield connection


def _fill(connection: psycopg.Connection, table: str) -> None:
    columns = connection.execute(
        "select column_name, data_type from information_schema.columns where table_schema = %s and table_name = %s"
        " and is_generated = 'NEVER' and is_identity = 'NO'",
        [SCHEMA, table],
    ).fetchall()
    one_each = table in ("threads", "chains")
    meaning = {
        "thread": f"'web:c' || n % 4 || ':t' || {'n' if one_each else f'n % {THREADS}'}",
        "chain": f"'web:c3:t' || {'n' if one_each else f'n % {THREADS}'}",
        "parent": f"case when n % 2 = 0 then 'web:c' || n / 2 % 4 || ':t' || n % {THREADS} else '' end",
        "day": "case when n % 2 = 0 then 'x' || n % 30 else '' end",
        "data": """'{"text": "a word ' || n || '"}'""",
        "scope": "'s' || n % 5" if table == "settings" else "'turn:' || n",
        "agent": "'a' || n % 5",
        "platform": "'web'",
        "state": "'done'",
        "type": "'user_message'",
        "told": "1",
        **dict.fromkeys(("open_turn", "aborting"), "''"),
        **dict.fromkeys(("retry_at", "retry_set_at"), "null"),
        **dict.fromkeys(("pinned", "archived"), "0"),
    }
    values = ", ".join(meaning.get(name, "'x' || n" if kind == "text" else "n") for name, kind in columns)
    names = ", ".join(f'"{name}"' for name, _ in columns)
    rows = f"select {values} from generate_series(1, {ROWS}) n"
    connection.execute(f"insert into {table} ({names}) {rows}".encode())


@pytest.mark.parametrize("name", sorted(name for name, body in statements("postgres").items() if body))
def test_only_the_listed_queries_scan_or_sort_old_rows_in_postgresql(served: psycopg.Connection, name: str) -> None:
    faults = list(_postgres_faults(served, _plan(served, statements("postgres")[name])))
    assert bool(faults) == (name in POSTGRES_EXCEPTIONS), f"{name}: {faults or 'keeps the rule: remove its exception'}"


def _plan(served: psycopg.Connection, body: str) -> Plan:
    """Return the query plan for realistic values. The server infers the parameter types."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", body)))
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", body).replace("%%", "%")
    served.execute("deallocate all")
    served.execute(f"prepare asked as {numbered}".encode())
    row = served.execute("select parameter_types::text[] from pg_prepared_statements where name = 'asked'").fetchone()
    kinds: list[str] = row[0] if row else []
    values = [
        VALUES.get(name) or (TEXTS.get(name, "'x7'") if kind == "text" else "7")
        for name, kind in zip(names, kinds, strict=True)
    ]
    call = f"asked({', '.join(values)})" if values else "asked"
    (found,) = served.execute(f"explain (format json) execute {call}".encode()).fetchone() or ("",)
    return (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]


class _Above(NamedTuple):
    """Context of a plan node. `limited`: its rows stream into a limit. `sorted`: all of its rows are sorted."""

    limited: bool = False
    sorted: bool = False


NOTHING = _Above()


def _postgres_faults(served: psycopg.Connection, node: Plan, above: _Above = NOTHING) -> Iterator[str]:
    kind, inner = str(node["Node Type"]), node.get("Plans", ())
    if node.get("Parent Relationship") in ("InitPlan", "SubPlan"):
        above = NOTHING
    match kind:
        case "Limit":
            above = _Above(limited=True)
        case "Sort":
            above = _Above(sorted=True)
        case "Aggregate" | "Hash" | "Materialize" | "ModifyTable" | "SetOp" | "Bitmap Heap Scan":
            above = above._replace(limited=False)
        case _:
            pass
    if fault := _scan_fault(served, kind, node, above):
        yield fault
    for child in inner:  # pyrefly: ignore[not-iterable]
        yield from _postgres_faults(served, child, above)


def _scan_fault(served: psycopg.Connection, kind: str, node: Plan, above: _Above) -> str:
    index, cond = str(node.get("Index Name", "")), str(node.get("Index Cond", ""))
    if kind == "Seq Scan":
        return f"Seq Scan on {node['Relation Name']}" if node["Relation Name"] in GROWING else ""
    if not index or index in WAITING:
        return ""
    found = served.execute(
        "select indrelid::regclass::text, indisunique, array(select attname::text from pg_attribute"
        " where attrelid = indrelid and attnum = any (indkey)) from pg_index where indexrelid = %s::regclass",
        [index],
    ).fetchone()
    assert found is not None
    table, is_unique, columns = found
    equal = set(re.findall(r"(\w+)\)?(?:::text)? = ", cond))
    if table not in GROWING or (is_unique and equal.issuperset(columns)):
        return ""
    is_range = not equal and "@@" not in cond
    return f"{kind} of {index} {cond}" if above.sorted or (is_range and not above.limited) else ""
