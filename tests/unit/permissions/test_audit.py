"""Whatever is done to a stored chain is found."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.domain.records import AuditEntry, AuditRow
from shoal.permissions.audit import GENESIS, anchor_line, entry_hash, verify_chain

START = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def chain(length: int, name: str = "web:lobby:a") -> list[AuditRow]:
    """A chain as it should be."""
    rows: list[AuditRow] = []
    previous = GENESIS
    for number in range(1, length + 1):
        entry = AuditEntry("check", f"tool:bash:command {number}", "allow", "allow .*", user="u")
        at = START + timedelta(seconds=number)
        digest = entry_hash(previous, name, number, at, entry)
        rows.append(AuditRow(name, number, at, entry, previous, digest))
        previous = digest
    return rows


def head(rows: list[AuditRow]) -> tuple[int, str]:
    """Length and last hash, as stored apart."""
    return len(rows), rows[-1].hash


def test_a_whole_chain_holds() -> None:
    rows = chain(5)
    assert verify_chain(rows, head(rows)) is None
    assert verify_chain(rows) is None
    assert verify_chain([], (0, GENESIS)) is None


def test_a_chain_is_verified_piece_by_piece() -> None:
    rows = chain(6)
    assert verify_chain(rows[:3]) is None
    assert verify_chain(rows[3:], head(rows), after=(3, rows[2].hash)) is None
    found = verify_chain(rows[4:], head(rows), after=(3, rows[2].hash))
    assert found is not None
    assert (found.number, found.reason) == (4, "number")


@pytest.mark.parametrize("field", ["kind", "action", "decision", "rule", "user", "agent", "turn", "detail"])
def test_an_edited_field_is_found(field: str) -> None:
    rows = chain(4)
    entry = msgspec.structs.replace(rows[1].entry, **{field: "other"})
    changed = [rows[0], msgspec.structs.replace(rows[1], entry=entry), *rows[2:]]
    found = verify_chain(changed, head(rows))
    assert found is not None
    assert (found.number, found.reason) == (2, "hash")


def test_a_changed_time_is_found_to_the_microsecond() -> None:
    rows = chain(3)
    rows[2] = msgspec.structs.replace(rows[2], at=rows[2].at + timedelta(microseconds=1))
    found = verify_chain(rows)
    assert found is not None
    assert (found.number, found.reason) == (3, "hash")


def test_an_edit_with_its_hash_made_anew_is_found_at_the_next_entry() -> None:
    rows = chain(4)
    entry = AuditEntry("check", "something else")
    digest = entry_hash(rows[1].previous, rows[1].chain, 2, rows[1].at, entry)
    rows[1] = msgspec.structs.replace(rows[1], entry=entry, hash=digest)
    found = verify_chain(rows, head(rows))
    assert found is not None
    assert (found.number, found.reason) == (3, "previous")


def test_a_chain_made_anew_as_a_whole_differs_from_its_head() -> None:
    rows = chain(4)
    forged = chain(4)
    forged[3] = msgspec.structs.replace(forged[3], entry=AuditEntry("check", "other"))
    last = forged[3]
    digest = entry_hash(last.previous, last.chain, 4, last.at, last.entry)
    forged[3] = msgspec.structs.replace(last, hash=digest)
    assert verify_chain(forged) is None
    found = verify_chain(forged, head(rows))
    assert found is not None
    assert (found.number, found.reason) == (4, "head")


def test_a_cut_tail_is_found() -> None:
    rows = chain(5)
    found = verify_chain(rows[:3], head(rows))
    assert found is not None
    assert (found.number, found.reason) == (4, "missing")
    assert found.shown == "audit chain 'web:lobby:a', entry 4: entries at the end are gone."
    empty = verify_chain([], head(rows))
    assert empty is not None
    assert (empty.number, empty.reason) == (1, "missing")


def test_an_entry_put_on_top_is_found() -> None:
    rows = chain(5)
    found = verify_chain(rows, head(rows[:4]))
    assert found is not None
    assert (found.number, found.reason) == (5, "surplus")


def test_an_entry_of_another_chain_is_found() -> None:
    rows, others = chain(3), chain(3, "web:lobby:b")
    found = verify_chain([*rows[:2], others[2]])
    assert found is not None
    assert found.number == 3


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.data())
def test_any_reordering_removal_or_doubling_is_found(length: int, data: st.DataObject) -> None:
    rows = chain(length)
    order = data.draw(st.lists(st.integers(0, length - 1), max_size=length + 2))
    if order != list(range(length)):
        assert verify_chain([rows[place] for place in order], head(rows)) is not None


def test_an_anchor_line_covers_every_head_in_any_order() -> None:
    heads = [("a", 3, "x" * 64), ("b", 1, "y" * 64)]
    line = anchor_line(START, heads)
    assert line.startswith("audit-anchor at=2026-01-02T03:04:05")
    assert "chains=2 entries=4 sha256=" in line
    assert anchor_line(START, reversed(heads)) == line
    for other in ([("a", 2, "x" * 64), heads[1]], [("a", 3, "z" * 64), heads[1]], heads[:1], []):
        assert anchor_line(START, other).split("sha256=")[1] != line.split("sha256=")[1]
