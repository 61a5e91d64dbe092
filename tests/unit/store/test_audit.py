"""Every manipulation of a stored audit chain is detected."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.kernel.clock import to_micros
from shoal.kernel.records import CASES_CHAIN, GENESIS, AuditEntry, entry_hash
from shoal.store.audit import ChainCheck, anchor_line
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database

CHAIN = "web:lobby:a"
START = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
SHORT, LONG = 5, 4500


def entries(count: int) -> list[AuditEntry]:
    return [AuditEntry("check", f"tool:bash:command {n}", "allow", user="u") for n in range(1, count + 1)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store with a chain of five entries, followed by a longer chain."""
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), ManualClock())
    await store.audit.record(CHAIN, entries(SHORT))
    await store.audit.record("web:lobby:b", entries(LONG))
    yield store
    await store.close()


async def broken_by(store: Store, path: Path, *statements: str) -> list[tuple[str, int, str]]:
    """Return each broken chain with the entry and the reason, after running the statements on the file."""
    with sqlite3.connect(path / "shoal.db") as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0
    database.close()
    return [(one.chain, one.number, one.reason) for one in (await store.audit.verify()).broken]


async def test_intact_chains_verify(store: Store, tmp_path: Path) -> None:
    found = await store.audit.verify()
    assert (found.chains, found.entries, found.broken) == (2, SHORT + LONG, ())
    assert await broken_by(store, tmp_path, "insert into chains values ('web:lobby:c', 0, '" + GENESIS + "')") == []


@pytest.mark.parametrize(
    "change",
    [
        *(f"entry = json_set(entry, '$.{field}', 'other')" for field in ("kind", "action", "decision", "user")),
        "entry = json_set(entry, '$.rule', 'put in later')",
        "entry = json_set(entry, '$.nobody_knows_this', 1)",
        "entry = json_remove(entry, '$.decision')",
        "entry = entry || ' '",
        "entry = 'not json'",
        "entry = '[]'",
        "at = at + 1",
        "previous = hash",
        "hash = upper(hash)",
    ],
)
async def test_an_edited_entry_is_detected(store: Store, tmp_path: Path, change: str) -> None:
    where = f"where chain = '{CHAIN}' and number = 2"
    assert await broken_by(store, tmp_path, f"update audit set {change} {where}") == [(CHAIN, 2, "changed")]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("delete from audit where number = 1", [(CHAIN, 1, "missing"), ("web:lobby:b", 1, "missing")]),
        ("delete from audit where number = 3000", [("web:lobby:b", 3000, "missing")]),
        ("delete from audit where number > 4 and number < 10", [(CHAIN, 4, "end"), ("web:lobby:b", 5, "missing")]),
        (f"delete from audit where chain = '{CHAIN}'", [(CHAIN, 0, "end")]),
        (f"delete from chains where chain = '{CHAIN}'", [(CHAIN, 5, "end")]),
        (f"update chains set number = 4 where chain = '{CHAIN}'", [(CHAIN, 5, "end")]),
        (f"update chains set head = '{GENESIS}' where chain = '{CHAIN}'", [(CHAIN, 5, "end")]),
        (
            "insert into audit select 'web:lobby:0', number, at, entry, previous, hash from audit where number = 1"
            f" and chain = '{CHAIN}'",
            [("web:lobby:0", 1, "changed")],
        ),
        (
            "insert into audit select chain, 6, at, entry, hash, hash from audit"
            f" where number = 5 and chain = '{CHAIN}'",
            [(CHAIN, 6, "changed")],
        ),
        (
            f"update audit set chain = 'web:lobby:bb' where chain = '{CHAIN}' and number = 5",
            [(CHAIN, 4, "end"), ("web:lobby:bb", 1, "missing")],
        ),
    ],
)
async def test_removed_moved_or_inserted_entries_and_heads_are_found(
    store: Store, tmp_path: Path, statement: str, expected: list[tuple[str, int, str]]
) -> None:
    assert sorted(await broken_by(store, tmp_path, statement)) == sorted(expected)


@pytest.mark.parametrize(("number", "found"), [(2, (CHAIN, 3, "changed")), (SHORT, (CHAIN, SHORT, "end"))])
async def test_a_rehashed_edit_differs_from_the_next_entry_or_the_head(
    store: Store, tmp_path: Path, number: int, found: tuple[str, int, str]
) -> None:
    row, body = (await store.audit.tail(1000, chain_name=CHAIN))[number - 1], '{"kind":"other"}'
    digest = entry_hash(row.previous, CHAIN, number, to_micros(row.at), body)
    change = f"update audit set entry = '{body}', hash = '{digest}' where chain = '{CHAIN}' and number = {number}"
    assert await broken_by(store, tmp_path, change) == [found]


def stored(length: int) -> list[tuple[str, int, int, str, str, str]]:
    rows, previous = [], GENESIS
    for number in range(1, length + 1):
        digest = entry_hash(previous, CHAIN, number, number, f"{{{number}}}")
        rows.append((CHAIN, number, number, f"{{{number}}}", previous, digest))
        previous = digest
    return rows


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 8), st.data())
def test_any_reordering_removal_or_duplication_is_found(length: int, data: st.DataObject) -> None:
    rows = stored(length)
    order = data.draw(st.lists(st.integers(0, length - 1), max_size=length + 2))
    check = ChainCheck([(CHAIN, length, rows[-1][5])])
    for place in order:
        check.take(rows[place])
    assert bool(check.result().broken) == (order != list(range(length)))


def test_an_anchor_line_covers_every_head_in_any_order() -> None:
    heads = [("a", 3, "x" * 64), ("b", 1, "y" * 64)]
    line = anchor_line(START, heads)
    assert line.startswith("audit-anchor at=2026-01-02T03:04:05")
    assert "chains=2 entries=4 sha256=" in line
    assert anchor_line(START, reversed(heads)) == line
    for other in ([("a", 2, "x" * 64), heads[1]], [("a", 3, "z" * 64), heads[1]], heads[:1], []):
        assert anchor_line(START, other).split("sha256=")[1] != line.split("sha256=")[1]


async def test_checks_of_a_case_workspace_are_not_listed(store: Store) -> None:
    await store.audit.record(CASES_CHAIN, [AuditEntry("check", "tool:bash:rm -rf /workspace", "deny", user="check")])
    since = ManualClock().now() - timedelta(days=1)
    assert {check.decision for check in await store.audit.checks(since)} == {"allow"}
