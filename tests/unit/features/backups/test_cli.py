"""`shoal backup` and `shoal restore`: complete backups without secrets, confined to the home directory."""

import contextlib
import io
import json
import os
import sqlite3
import stat
import tarfile
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Ran, Shoal

from shoal.config.secrets import without_secrets
from shoal.kernel.home import Home
from shoal.store.driver import migrations
from shoal.store.lock import HomeLock
from shoal.store.store import Store
from shoal.surfaces.cli.context import CommandContext
from shoal.tools.tainted_files import MarkedFiles

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
    return tmp_path / "backup.tar.gz"


@pytest.fixture(autouse=True)
def worked(shoal: Shoal, home: Path) -> None:
    make_home(shoal, home)


def make_home(shoal: Shoal, home: Path) -> None:
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
    with tarfile.open(file) as archive:
        files = [archive.extractfile(entry) for entry in archive.getmembers() if entry.isreg()]
        return b"".join(file.read() for file in files if file is not None)


def test_a_backup_restores_everything(shoal: Shoal, home: Path, file: Path) -> None:
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


def test_secrets_are_excluded_unless_requested(shoal: Shoal, home: Path, file: Path) -> None:
    token = (home / "token").read_bytes().strip()
    ran = shoal("backup", str(file))
    assert "Omitted the secrets in shoal.toml" in ran.out
    assert CANARY.encode() not in content(file)
    assert token not in content(file)
    assert b'env = "GEMINI_API_KEY"' in content(file)
    assert b"steps_max = 7" in content(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shoal("backup", "--with-secrets", "--force", str(file))
    assert CANARY.encode() in content(file)
    assert token in content(file)


def test_missing_secrets_are_not_reported_as_left_out(shoal: Shoal, home: Path, file: Path) -> None:
    (home / "shoal.toml").write_text("[model]\nname = 'demo'\n")
    (home / "secrets" / "empty").mkdir(parents=True)
    assert "left out" not in shoal("backup", str(file)).out
    ran = restored(shoal, home, file)
    assert ran.code == 0
    assert "Turns and approvals that were open" in ran.out
    assert "does not contain these secrets" not in ran.out


def test_secret_files_are_included_only_on_request(shoal: Shoal, home: Path, file: Path) -> None:
    (home / "secrets").mkdir(mode=0o700)
    (home / "secrets" / "providers.x.api_key").write_text("a-key-of-mine")
    assert "Skipped the files in secrets/" in shoal("backup", str(file)).out
    with tarfile.open(file) as archive:
        assert not [name for name in archive.getnames() if name.startswith("secrets")]
    shoal("backup", "--with-secrets", "--force", str(file))
    assert restored(shoal, home, file).code == 0
    assert (home / "secrets" / "providers.x.api_key").read_text() == "a-key-of-mine"
    assert stat.S_IMODE((home / "secrets").stat().st_mode) == 0o700


def test_an_existing_file_is_replaced_only_on_request(shoal: Shoal, file: Path) -> None:
    file.write_text("of the year")
    ran = shoal("backup", str(file))
    assert (ran.code, file.read_text()) == (1, "of the year")
    assert ran.err == (
        f"shoal: {file} already exists. Specify another file, or use --force to replace the existing file.\n"
    )
    assert shoal("backup", "--force", str(file)).code == 0
    assert b"SQLite" in content(file)


def test_a_restored_home_has_a_new_token(shoal: Shoal, home: Path, file: Path) -> None:
    before = (home / "token").read_text()
    shoal("backup", str(file))
    restored(shoal, home, file)
    assert (home / "token").read_text() != before


def test_a_configuration_with_unseparable_secrets_is_excluded(shoal: Shoal, home: Path, file: Path) -> None:
    (home / "shoal.toml").write_text('[web]\ntoken = "a\\u0062c"\n')
    assert "Skipped shoal.toml" in shoal("backup", str(file)).out
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
        (f"a = {'[' * 60_000}", None),
        (f"a = {'9' * 5_000}", None),
    ],
)
def test_secrets_are_removed_from_a_configuration(text: str, redacted: str | None) -> None:
    assert without_secrets(text) == redacted


def test_a_home_that_is_in_use_is_not_overwritten(shoal: Shoal, home: Path, file: Path) -> None:
    shoal("backup", str(file))
    ran = shoal("restore", str(file))
    assert (ran.code, ran.err) == (
        1,
        f"shoal: {home} is not empty. Move the directory away, or specify another directory with --into DIR.\n",
    )


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
def test_restoring_writes_nothing_outside_the_home(shoal: Shoal, home: Path, file: Path, name: str) -> None:
    archive_with(file, named("data/x"), named(name))
    ran = restored(shoal, home, file)
    assert ran.code == 1
    assert "is not a Shoal backup" in ran.err
    assert not home.exists()
    assert list(home.parent.rglob("evil")) == []


def test_no_file_is_written_through_a_link(shoal: Shoal, home: Path, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    archive_with(file, named("data/link", tarfile.SYMTYPE, str(target)), named("data/link/evil"))
    restored(shoal, home, file)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_backup_is_reported_and_restores_nothing(
    shoal: Shoal, home: Path, file: Path, damage: bytes | None
) -> None:
    shoal("backup", str(file))
    file.write_bytes(file.read_bytes()[:-2000] if damage is None else damage)
    ran = restored(shoal, home, file)
    assert ran.code == 1
    assert ran.err.startswith(f"shoal: {file} is not a complete backup")
    assert not home.exists()


def test_a_damaged_database_is_not_restored(shoal: Shoal, home: Path, file: Path) -> None:
    archive_with(file, named("shoal.db"))
    ran = restored(shoal, home, file)
    assert ran.code == 1
    assert "is damaged" in ran.err
    assert not home.exists()


def set_schema(database: Path, number: int) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(f"pragma user_version = {number}")


def backup_with_schema(shoal: Shoal, home: Path, file: Path, number: int) -> None:
    shoal("backup", str(file))
    folder = home.with_name("unpacked")
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="tar")
    set_schema(folder / "shoal.db", number)
    with tarfile.open(file, "w:gz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)


def test_a_backup_of_a_newer_version_is_reported_and_restores_nothing(shoal: Shoal, home: Path, file: Path) -> None:
    backup_with_schema(shoal, home, file, 9999)
    ran = restored(shoal, home, file)
    assert (ran.code, "was written by a newer version of Shoal" in ran.err) == (2, True)
    assert not home.exists()


def is_one_line(ran: Ran) -> bool:
    return (ran.code, ran.out, ran.err.count("\n"), ran.err.count(". ") <= 1) == (2, "", 1, True)


@pytest.mark.parametrize(
    "words",
    [
        "threads list", "ask hello", "run", "migrate", "migrate --to postgresql:///x", "backup b.tar.gz",
        "restore --accept-loss",
    ],
)  # fmt: skip
def test_a_home_from_before_the_first_release_is_refused_in_one_line(
    shoal: Shoal, home: Path, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    set_schema(home / "shoal.db", 17)
    ran = shoal(*words.split())
    assert is_one_line(ran), ran
    assert ran.err.startswith(
        f"shoal: {home}/shoal.db is from before Shoal's first release: move it and shoal.db-* to "
    )
    assert not (tmp_path / "b.tar.gz").exists()


def test_a_home_from_before_the_first_release_starts_over_with_its_files(shoal: Shoal, home: Path) -> None:
    set_schema(home / "shoal.db", 17)
    (home / "shoal.toml").write_text("[turns]\nno_such_key = 1\n")
    assert "is from before Shoal's first release" in shoal("threads", "list").err, "what explains unknown keys"
    (home / "shoal.toml").write_text(CONFIG)
    assert "fail  database: " in shoal("doctor").out
    for path in home.glob("shoal.db*"):
        path.rename(home.parent / path.name)
    assert shoal("migrate").code == 0
    assert (home / "agents/main/workspace/notes.txt").read_text() == "tea"
    assert "terminal:ask:mine" not in shoal("threads", "list").out


def test_migrate_prints_the_schema_version(shoal: Shoal, home: Path) -> None:
    assert shoal("migrate").out == f"{home}/shoal.db has schema {migrations('sqlite')[-1][0]}.\n"
    home.rename(home.with_name("before"))
    shoal("init")
    assert shoal("migrate").out == f"{home}/shoal.db: schema 0 → {migrations('sqlite')[-1][0]}.\n"


def test_taint_marks_survive_a_backup(shoal: Shoal, home: Path, file: Path) -> None:
    """A restore recreates each file, which would normally clear its taint."""
    workspace = home / "agents/main/workspace"
    (home / "data/MEMORY.md").write_text("- obey")

    async def sources(store: Store) -> list[str]:
        marked = MarkedFiles(store.settings, Home(home))
        paths = (home / "data/MEMORY.md", home / "data/IDENTITY.md", workspace / "notes.txt", workspace / "run.sh")
        home_source, source = await marked.sources([home]), await marked.sources([workspace])
        return [home_source(path) for path in paths[:2]] + [source(path) for path in paths[2:]]

    async def mark(store: Store) -> None:
        marked = MarkedFiles(store.settings, Home(home))
        await marked.note(home, [home / "data/MEMORY.md"], "a page")
        await marked.note(workspace, [workspace / "notes.txt"], "a letter")

    assert shoal("threads", "list").code == 0  # takes longer than the resolution of file timestamps
    for name in ("data/MEMORY.md", "agents/main/workspace/notes.txt"):
        os.utime(home / name)
    CommandContext(home).write(mark)
    before = CommandContext(home).read(sources)
    assert before == ["a page", "", "a letter", ""]
    shoal("backup", str(file))
    assert restored(shoal, home, file).code == 0
    assert CommandContext(home).read(sources) == before


# ---- backup.to ----


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    (home / "shoal.toml").write_text(f'{CONFIG}[backup]\nto = "{folder}"\n')
    return folder


def test_a_backup_in_the_default_folder_is_listed_and_restored_next_to_the_home(
    shoal: Shoal, home: Path, kept: Path
) -> None:
    assert shoal("restore").out == ("backup.to contains no backup. Restore from a file with 'shoal restore FILE'.\n")
    made = shoal("backup")
    assert (made.code, made.out.startswith("Created and checked shoal-2")) == (0, True)
    (file,) = kept.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert CANARY.encode() not in content(file)
    assert file.name in shoal("backup", "--list").out
    fresh = home.with_name("home.restored")
    assert f"shoal --home {home} restore {file.name} --into {fresh}" in shoal("restore").out
    before = json.loads(shoal("threads", "show", "terminal:ask:mine", "--json").out)
    assert shoal("restore", file.name, "--into", str(fresh)).code == 0
    home.rename(home.with_name("before"))
    fresh.rename(home)
    assert json.loads(shoal("threads", "show", "terminal:ask:mine", "--json").out) == before
    assert shoal("ask", "hello").code == 0


def test_restoring_into_a_running_home_is_refused(shoal: Shoal, home: Path, file: Path) -> None:
    shoal("backup", str(file))
    other = home.with_name("other")
    other.mkdir()
    lock = HomeLock(other / "shoal.lock")
    lock.acquire()
    ran = shoal("restore", str(file), "--into", str(other))
    lock.release()
    assert (ran.code, "Stop Shoal first" in ran.err) == (1, True)


def test_a_backup_into_itself_is_refused(shoal: Shoal, home: Path) -> None:
    (home / "shoal.toml").write_text('[backup]\nto = "data/backups"\n')
    ran = shoal("backup")
    assert (ran.code, "is inside the data that is backed up" in ran.err) == (1, True)


def test_a_lost_wal_is_reported_and_can_be_accepted(shoal: Shoal, home: Path) -> None:
    with contextlib.closing(sqlite3.connect(home / "shoal.db")) as connection:
        connection.execute("pragma application_id = 4711")
    ran = shoal("migrate")
    assert (ran.code, "shoal restore --accept-loss" in ran.err) == (1, True)
    assert "lacks the latest writes" in shoal("doctor").out
    assert shoal("restore", "--accept-loss").code == 0
    assert shoal("migrate").code == 0
