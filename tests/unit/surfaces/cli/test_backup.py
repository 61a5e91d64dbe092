"""`shoal backup` and `restore`: everything comes back, no secret goes out, nothing lands outside."""

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Ran, Shoal

from shoal.config.redact import without_secrets
from shoal.store.statements import migrations

CANARY = "sk-canary-4711"
CONFIG = f"""\
[turns]
steps_max = 7
[providers.openai]
api_key = "{CANARY}"
headers = {{ X-Key = "{CANARY}-header" }}
# old_token = "{CANARY}-old"
[providers.gemini]
api_key = {{ env = "GEMINI_API_KEY" }}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the backup goes."""
    return tmp_path / "backup.tar.gz"


@pytest.fixture(autouse=True)
def worked(shoal: Shoal, home: Path) -> None:
    """A home directory with a conversation, a workspace with links, and secrets."""
    shoal("ask", "--thread", "terminal:ask:mine", "hello")
    workspace = home / "agents/main/workspace"
    (workspace / "notes.txt").write_text("tea")
    (workspace / "run.sh").write_text("#!/bin/sh\n")
    (workspace / "run.sh").chmod(0o755)
    (workspace / "inside").symlink_to("notes.txt")
    (workspace / "outside").symlink_to("/etc/hostname")
    os.mkfifo(workspace / "pipe")
    (home / "shoal.toml").write_text(CONFIG)


def restored(shoal: Shoal, home: Path, file: Path) -> Ran:
    home.rename(home.with_name("before"))
    return shoal("restore", str(file))


def content(file: Path) -> bytes:
    """All that stands in a backup, as one text."""
    with tarfile.open(file) as archive:
        files = [archive.extractfile(entry) for entry in archive.getmembers() if entry.isreg()]
        return b"".join(file.read() for file in files if file is not None)


def test_everything_comes_back(shoal: Shoal, home: Path, file: Path) -> None:
    before = json.loads(shoal("threads", "show", "terminal:ask:mine", "--json").out)
    assert shoal("backup", str(file)).code == 0
    assert restored(shoal, home, file).code == 0
    assert json.loads(shoal("threads", "show", "terminal:ask:mine", "--json").out) == before
    workspace = home / "agents/main/workspace"
    assert (workspace / "notes.txt").read_text() == "tea"
    assert os.access(workspace / "run.sh", os.X_OK)
    assert (workspace / "inside").readlink() == Path("notes.txt")
    assert (workspace / "outside").readlink() == Path("/etc/hostname")
    assert not (workspace / "pipe").exists()
    assert (home / "data/terminal/ask/mine/log.jsonl").exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {stat.S_IMODE((home / name).stat().st_mode) for name in ("shoal.toml", "shoal.db", "token")} == {0o600}
    assert shoal("ask", "hello").code == 0


def test_secrets_stay_at_home_unless_asked_for(shoal: Shoal, home: Path, file: Path) -> None:
    token = (home / "token").read_bytes().strip()
    ran = shoal("backup", str(file))
    assert "The secrets written in shoal.toml were left out" in ran.out
    assert CANARY.encode() not in content(file)
    assert token not in content(file)
    assert b'env = "GEMINI_API_KEY"' in content(file)
    assert b"steps_max = 7" in content(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shoal("backup", "--with-secrets", "--force", str(file))
    assert CANARY.encode() in content(file)
    assert token in content(file)


def test_a_file_that_is_there_is_replaced_only_when_asked(shoal: Shoal, file: Path) -> None:
    file.write_text("of the year")
    ran = shoal("backup", str(file))
    assert (ran.code, file.read_text()) == (1, "of the year")
    assert ran.err == f"shoal: {file} is there already. Name another file, or replace it with --force.\n"
    assert shoal("backup", "--force", str(file)).code == 0
    assert b"SQLite" in content(file)


def test_a_restored_home_has_a_token_of_its_own(shoal: Shoal, home: Path, file: Path) -> None:
    before = (home / "token").read_text()
    shoal("backup", str(file))
    restored(shoal, home, file)
    assert (home / "token").read_text() != before


def test_a_configuration_whose_secrets_cannot_be_told_apart_stays_at_home(shoal: Shoal, home: Path, file: Path) -> None:
    (home / "shoal.toml").write_text('[web]\ntoken = "a\\u0062c"\n')
    assert "shoal.toml was left out" in shoal("backup", str(file)).out
    with tarfile.open(file) as archive:
        assert "shoal.toml" not in archive.getnames()


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ('[web]\ntoken = "abc"\n', '[web]\ntoken = ""\n'),
        ("[web]\ntoken = 'abc'\n", '[web]\ntoken = ""\n'),
        ('[web]\ntoken = """abc"""\n', '[web]\ntoken = ""\n'),
        ('[web]\nhost = "h"\n', '[web]\nhost = "h"\n'),
        ('[[platforms.discord]]\ntoken = "abc"\n', '[[platforms.discord]]\ntoken = ""\n'),
        ('[platforms.irc]\npassword = "abc"\nserver = "s"\n', '[platforms.irc]\npassword = ""\nserver = "s"\n'),
        ('[web]\ntoken = "abc"\nhost = "host-abc"\n', None),
        ("[web\n", None),
    ],
)
def test_secrets_are_taken_out_of_a_configuration(text: str, redacted: str | None) -> None:
    assert without_secrets(text) == redacted


def test_a_home_that_is_in_use_is_not_overwritten(shoal: Shoal, home: Path, file: Path) -> None:
    shoal("backup", str(file))
    ran = shoal("restore", str(file))
    assert (ran.code, ran.err) == (1, f"shoal: {home} is not empty. Move it away, or name another with --home DIR.\n")


def archive_with(file: Path, *entries: tarfile.TarInfo) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for entry in entries:
            entry.size = 4 if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(b"evil"))


def named(name: str, kind: bytes = tarfile.REGTYPE, goal: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, goal
    return entry


@pytest.mark.parametrize("name", ["../evil", "/evil", "data/../../evil", "evil", "shoal.lock"])
def test_nothing_lands_outside(shoal: Shoal, home: Path, file: Path, name: str) -> None:
    archive_with(file, named("data/x"), named(name))
    ran = restored(shoal, home, file)
    assert ran.code == 1
    assert "is not a backup of Shoal" in ran.err
    assert not home.exists()
    assert list(home.parent.rglob("evil")) == []


def test_no_file_is_written_through_a_link(shoal: Shoal, home: Path, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    archive_with(file, named("data/link", tarfile.SYMTYPE, str(target)), named("data/link/evil"))
    restored(shoal, home, file)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_backup_is_told_and_makes_nothing(shoal: Shoal, home: Path, file: Path, damage: bytes | None) -> None:
    shoal("backup", str(file))
    file.write_bytes(file.read_bytes()[:-2000] if damage is None else damage)
    ran = restored(shoal, home, file)
    assert ran.code == 1
    assert ran.err.startswith(f"shoal: {file} is not a whole backup")
    assert not home.exists()


def test_a_damaged_database_is_not_restored(shoal: Shoal, home: Path, file: Path) -> None:
    archive_with(file, named("shoal.db"))
    ran = restored(shoal, home, file)
    assert ran.code == 1
    assert "is damaged" in ran.err
    assert not home.exists()


def test_migrate_says_which_schema_there_is(shoal: Shoal, home: Path) -> None:
    assert shoal("migrate").out == f"{home}/shoal.db has schema {len(migrations('sqlite'))}.\n"
    home.rename(home.with_name("before"))
    shoal("init")
    assert shoal("migrate").out == f"{home}/shoal.db: schema 0 → {len(migrations('sqlite'))}.\n"
