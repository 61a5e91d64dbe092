"""Migrations may only be added, never changed, because existing databases have already run them."""

import hashlib
import tomllib

import pytest

from shoal.store.driver import FIRST_MIGRATION, in_dialect, migrations
from tests.tidy.source import ROOT

FOLDER = ROOT / "src" / "shoal" / "store" / "migrations"
DIGESTS = ROOT / "tests" / "tidy" / "migrations.toml"


def test_no_migration_is_changed_and_each_is_listed() -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()}
    assert digests == tomllib.loads(DIGESTS.read_text("utf-8"))["sha256"]


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_migrations_are_numbered_from_the_initial_schema(dialect: str) -> None:
    numbers = [number for number, _ in migrations(dialect)]
    assert numbers == sorted(numbers)
    assert numbers[0] == FIRST_MIGRATION


def test_a_shared_migration_marks_dialect_specific_parts() -> None:
    both = 'create table a (b text /*pg: collate "C" */ primary key) /*sqlite: without rowid */;'
    assert in_dialect(both, "postgres") == 'create table a (b text collate "C" primary key) ;'
    assert in_dialect(both, "sqlite") == "create table a (b text  primary key) without rowid;"
