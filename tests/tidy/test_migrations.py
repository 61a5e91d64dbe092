"""Migrations are added, never changed: homes that have done one keep what it made."""

import hashlib
import tomllib

import pytest

from shoal.store.driver import in_dialect, migrations
from tests.tidy.source import ROOT

FOLDER = ROOT / "src" / "shoal" / "store" / "migrations"
DIGESTS = ROOT / "tests" / "tidy" / "migrations.toml"


def test_no_migration_is_changed_and_each_is_listed() -> None:
    found = {
        f"{dialect}/{path.stem}": hashlib.sha256(in_dialect(path.read_text("utf-8"), dialect).encode()).hexdigest()
        for dialect in ("postgres", "sqlite")
        for folder in (dialect, "both")
        for path in FOLDER.joinpath(folder).glob("*.sql")
    }
    assert found == tomllib.loads(DIGESTS.read_text("utf-8"))["sha256"]


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_migrations_of_both_databases_take_their_numbers_in_order(dialect: str) -> None:
    numbers = [number for number, _ in migrations(dialect)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1


def test_a_migration_for_both_says_what_is_for_one_alone() -> None:
    both = 'create table a (b text /*pg: collate "C" */ primary key) /*sqlite: without rowid */;'
    assert in_dialect(both, "postgres") == 'create table a (b text collate "C" primary key) ;'
    assert in_dialect(both, "sqlite") == "create table a (b text  primary key) without rowid;"
