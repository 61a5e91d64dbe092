"""Migrations are added, never changed: homes that have done one keep what it made."""

import hashlib
import tomllib

from tests.tidy.source import ROOT

FOLDER = ROOT / "src" / "shoal" / "store" / "migrations"
DIGESTS = ROOT / "tests" / "tidy" / "migrations.toml"


def test_no_migration_is_changed_and_each_is_listed() -> None:
    found = {
        f"{path.parent.name}/{path.stem}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.glob("*/*.sql")
    }
    assert found == tomllib.loads(DIGESTS.read_text("utf-8"))["sha256"]
