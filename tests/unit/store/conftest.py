"""Access to the SQLite connections that the store tests open."""

import sqlite3

import pytest

from shoal.store.sqlite import connect


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The SQLite connections opened during the test, oldest first."""
    opened: list[sqlite3.Connection] = []

    def recorded(database: str) -> sqlite3.Connection:
        opened.append(connect(database))
        return opened[-1]

    monkeypatch.setattr("shoal.store.sqlite.connect", recorded)
    return opened
