"""`shoal audit`: the newest entries, and verification that detects any change."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


@pytest.fixture(autouse=True)
def asked(shoal: Shoal) -> None:
    for _ in range(4):
        assert shoal("ask", "--thread", "terminal:ask:mine", "what time is it?").code == 0


def change(home: Path, statement: str) -> None:
    connection = sqlite3.connect(home / "shoal.db")
    statement = statement.replace(" where ", " where chain = 'terminal:ask:mine' and ")
    with connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


def test_entries_are_listed_oldest_first(shoal: Shoal) -> None:
    every = json.loads(shoal("audit", "tail", "--json").out)
    assert [row["at"] for row in every] == sorted(row["at"] for row in every)
    rows = [row for row in every if row["chain"] == "terminal:ask:mine"]
    assert len(rows) >= 4
    assert [row["number"] for row in rows] == sorted(row["number"] for row in rows)
    assert rows[0]["entry"]["action"].startswith("tool:time:")
    assert len(json.loads(shoal("audit", "tail", "--json", "--limit", "2").out)) == 2
    assert "tool:time:" in shoal("audit", "tail").out


def test_an_intact_chain_is_ok(shoal: Shoal) -> None:
    ran = shoal("audit", "verify")
    assert ran.code == 0
    assert ran.out.startswith("ok: ")
    found = json.loads(shoal("audit", "verify", "--json").out)
    assert found["broken"] == []
    assert found["entries"] >= 4


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("update audit set entry = replace(entry, 'allow', 'deny') where number = 2", "entry 2 from "),
        ("update audit set at = at + 1 where number = 3", "entry 3 from "),
        ("update audit set hash = upper(hash) where number = 1", "entry 1 from "),
        ("update audit set previous = upper(hash) where number = 2", "entry 2 from "),
        ("delete from audit where number = 2", "entry 2 is missing"),
        (
            "delete from audit where number = (select max(number) from audit where 1)",
            "entries were removed or added at the end",
        ),
        ("update audit set number = number + 100 where number > 2", "entry 3 is missing"),
    ],
)
def test_any_change_is_detected(shoal: Shoal, home: Path, statement: str, problem: str) -> None:
    change(home, statement)
    ran = shoal("audit", "verify")
    assert ran.code == 1
    assert ran.out.startswith("broken: terminal:ask:mine")
    assert problem in ran.out
