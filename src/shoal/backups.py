"""Backups: everything of a home directory in one file, made by hand or on schedule, checked, and kept in a place.

A backup is a tar.gz of the database (by SQLite's online backup, so that it is of one moment, also while others write),
`agents/`, `data/`, `template/` and the configuration without its secrets. A scheduled one is written under a name that
ends in .partial, read back from where it is kept, opened and checked, and only then gets its name: what is listed was
whole when it was made.
"""

import asyncio
import contextlib
import errno
import gzip
import io
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio.to_thread
import msgspec

from shoal.config import Config
from shoal.config.secrets import without_secrets
from shoal.files.deep_folders import walk
from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, Conflict, InvalidInput, ShoalError, StoreCorrupt, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ports import Settings
from shoal.kernel.regular_files import read_regular
from shoal.kernel.settings import BackupSettings
from shoal.store.driver import migrations
from shoal.store.sqlite import refuse_schema, schema_number
from shoal.store.sqlite_checks import check_file, connect_read_only, copy_connection

log = logging.getLogger(__name__)

FOLDERS = ("agents", "data", "template")
DATABASE = "shoal.db"
DUMP = "shoal.dump"
CONFIGURATION = "shoal.toml"
CHANGED_AT = "SHOAL.ctime_ns"
"""The header that keeps when a file was changed, by which the marks of untrusted content go (decision 028)."""
READ_WHOLE_BYTES_MAX = 67_108_864
"""Files up to this size are read before they are written to the archive, so that one that changes cannot tear it."""
LOOK_SECONDS_MAX = 3600.0
"""How seldom the schedule looks whether a backup is due, and how soon a failed one is tried again."""
NOT_SET = "backup.to is empty, so that there is no place for backups. Set it to a directory or s3://BUCKET/PREFIX."
PROBLEM = ("backup", "problem")
"""The setting that holds why the last scheduled backup failed; empty after one that did not."""

PLACE_CHARS_MAX = 80
_PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TMPDIR"})
_NAME = lazy_re.compile(r"shoal-(\d{8}T\d{6}Z)\.tar\.gz")
_TIME = "%Y%m%dT%H%M%SZ"

_T = TypeVar("_T")


class Backup(msgspec.Struct, frozen=True):
    """One that was whole when it was made. `size_bytes` is the archive's."""

    name: str
    at: datetime
    size_bytes: int


class BackupPlace(Protocol):
    """Where backups are kept. Calls block; they raise OSError."""

    def sizes(self) -> dict[str, int]:
        """The names of all files there, with their sizes in bytes."""
        ...

    def put(self, file: Path, name: str) -> None:
        """Store a file, durably on return."""
        ...

    def fetch(self, name: str, file: Path) -> None:
        """Copy one out. Raises FileNotFoundError."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...


class DirectoryPlace:
    """A directory, made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):
                    found |= {entry.name: entry.stat().st_size} if entry.is_file() else {}
        return found

    def put(self, file: Path, name: str) -> None:
        """Copied, closed to others, synced."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with file.open("rb") as source, os.fdopen(os.open(self._folder / name, flags, 0o600), "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())

    def fetch(self, name: str, file: Path) -> None:
        shutil.copyfile(self._folder / name, file)

    def rename(self, old: str, new: str) -> None:
        """Durable, too."""
        (self._folder / old).replace(self._folder / new)
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def backup_place(config: Config, home: Home) -> BackupPlace | None:
    """[backup] to; None where it is empty. Raises ConfigError for a directory that backups themselves contain."""
    where = config.backup.to
    if where.startswith("s3://"):
        from shoal.store.s3 import S3Place, S3Settings

        return S3Place(S3Settings.of(config.files, where))
    if "\0" in where:
        raise ConfigError(["backup.to contains a null character. Name a directory or s3://BUCKET/PREFIX."])
    folder = Path(os.path.realpath(home.root / os.path.expanduser(where)))
    if any(folder.is_relative_to(os.path.realpath(home.root / name)) for name in FOLDERS):
        raise ConfigError([f"backup.to: {folder} is itself part of each backup. Name a directory elsewhere."])
    return DirectoryPlace(folder) if where else None


@dataclass(eq=False, repr=False)
class Backups:
    """Makes backups, on schedule too, and keeps the newest. Without a `place` there are none.

    `tell` is awaited once when backups begin to fail.
    """

    home: Home
    place: BackupPlace | None
    clock: Clock
    settings: Settings
    tell: Callable[[str], Awaitable[None]]
    wanted: BackupSettings
    database_url: Callable[[], str]
    _making: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def change(self, place: BackupPlace | None, wanted: BackupSettings) -> None:
        """Keep backups elsewhere, or make them at another rhythm, from the next look on."""
        self.place, self.wanted = place, wanted
        self._changed.set()

    @property
    def is_scheduled(self) -> bool:
        """Whether they are made without being asked for."""
        return self.place is not None and bool(self.wanted.every_hours)

    async def listed(self) -> list[Backup]:
        """Those that are kept, newest first. Raises StoreError when their place cannot be read."""
        return await _blocking(partial(listed_in, self.place)) if self.place is not None else []

    async def problem(self) -> str:
        """Why the last one failed; empty if it did not. Raises StoreError."""
        return await self.settings.get(*PROBLEM) or ""

    async def make(self) -> Backup:
        """Make one now, check it, and delete those beyond `keep`.

        Raises Conflict where there is no place for it, StoreError when it fails; what there was stays then. Cancelled,
        it goes on in its thread.
        """
        if self.place is None:
            raise Conflict(NOT_SET)
        return await self._make(self.place, self.wanted.keep, StoreError)

    async def try_place(self, place: BackupPlace, keep: int) -> Backup:
        """Make one in a place that is not in use yet. Raises InvalidInput; the schedule stays as it is."""
        return await self._make(place, keep, InvalidInput)

    async def _make(self, place: BackupPlace, keep: int, failure: type[ShoalError]) -> Backup:
        work = partial(make_backup, self.home, place, self.clock.now(), keep, self.database_url())
        async with self._making:
            made = await _blocking(work, failure)
        if await self.problem():
            await self.settings.put(*PROBLEM, "")
        log.info("made a backup", extra={"backup": made.name, "bytes": made.size_bytes})
        return made

    async def run(self) -> None:
        """Make one whenever the newest is older than `every_hours`; for ever. Raises StoreError of the settings."""
        while True:
            if not self.is_scheduled:
                self._changed.clear()
                await self._changed.wait()
                continue
            every, wait = timedelta(hours=self.wanted.every_hours), LOOK_SECONDS_MAX
            try:
                now = self.clock.now()  # what is of later was made before the clock was set back
                newest = next((one for one in await self.listed() if one.at <= now), None)
                due = newest.at + every if newest is not None else self.clock.now()
                if due <= self.clock.now():
                    due = (await self.make()).at + every
                wait = min(wait, max(0.0, (due - self.clock.now()).total_seconds()))
            except StoreError as error:
                why = str(error)
                log.error("no backup could be made; `shoal doctor` tells of it until one can", extra={"why": why})
                if not await self.problem():
                    await self.settings.put(*PROBLEM, why)
                    await self.tell(f"I could not make a backup, and try again every hour. {why}")
            await self.clock.sleep(wait)


async def _blocking(work: Callable[[], _T], failure: type[ShoalError] = StoreError) -> _T:
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except (OSError, InvalidInput, tarfile.TarError, sqlite3.Error) as error:
        why: object = error
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        raise failure(f"Backups fail: {why}. Check backup.to, its room and its rights.") from error


def listed_in(place: BackupPlace) -> list[Backup]:
    """Those that are kept, newest first. Raises OSError when their place cannot be read."""
    found: list[Backup] = []
    for name, size_bytes in place.sizes().items():
        if match := _NAME.fullmatch(name):
            with contextlib.suppress(ValueError):  # of no time: somebody else's file
                found.append(Backup(name, datetime.strptime(match[1], _TIME).replace(tzinfo=UTC), size_bytes))
    return sorted(found, key=lambda one: one.at, reverse=True)


def make_backup(home: Home, place: BackupPlace, now: datetime, keep: int, database_url: str) -> Backup:
    """Make a backup, check it where it is kept, and delete all but it and the newest others, `keep` in all. Those that
    are of later than now go first: the clock was wrong when they were made.

    Raises OSError, StoreError, InvalidInput; what there was stays then.
    """
    name = f"shoal-{now.strftime(_TIME)}.tar.gz"
    unchecked = f"{name}.partial"
    for left in place.sizes():
        if left.startswith("shoal-") and left.endswith(".partial"):  # of a process that ended meanwhile
            place.remove(left)
    with tempfile.TemporaryDirectory(prefix="shoal-backup-") as folder:
        made, read = Path(folder) / name, Path(folder) / "read"
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
            notes = list[str]()
            write_archive(home, target, notes, with_secrets=False, database_url=database_url)
            for note in notes:
                log.warning("a backup is not of everything", extra={"what": note})
        try:
            place.put(made, unchecked)
            made.unlink()
            place.fetch(unchecked, read)
            check_archive(read)
        except (OSError, ShoalError):
            with contextlib.suppress(OSError, ShoalError):  # what cannot be removed goes with the next backup
                place.remove(unchecked)
            raise
        size_bytes = read.stat().st_size
    place.rename(unchecked, name)
    others = [one for one in listed_in(place) if one.name != name]
    for old in sorted(others, key=lambda one: one.at <= now, reverse=True)[keep - 1 :]:
        place.remove(old.name)
    return Backup(name, now.replace(microsecond=0), size_bytes)


@contextlib.contextmanager
def reading(file: Path) -> Generator[tarfile.TarFile]:
    """A backup's archive, in order. At its end the rest is read too, since only there the checksum stands. Raises
    InvalidInput for one that is not whole."""
    try:
        with gzip.open(file) as content:
            with tarfile.open(fileobj=content, mode="r:") as archive:
                yield archive
            while content.read(READ_WHOLE_BYTES_MAX):
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{file} is not a whole backup: {error}.") from error


def check_archive(file: Path) -> None:
    """Read a backup to its end and look through its database. Raises InvalidInput, StoreCorrupt."""
    with tempfile.TemporaryDirectory(prefix="shoal-check-") as folder:
        database = Path(folder) / DATABASE
        with reading(file) as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    with (database if entry.name == DATABASE else Path(os.devnull)).open("wb") as target:
                        shutil.copyfileobj(content, target)
        if database.exists():
            check_database(database, file)


def check_database(database: Path, file: Path) -> None:
    """Look through the database of a backup. Raises StoreCorrupt."""
    problem = check_file(database, "integrity_check").problem
    if problem:
        raise StoreCorrupt(f"The database in {file.name} is damaged: {problem}. Take an older backup.")


def write_archive(
    home: Home, target: io.BufferedIOBase, notes: list[str], *, with_secrets: bool, database_url: str = ""
) -> None:
    """Write a home directory, with the database at `database_url` where there is one, into a file.

    `notes` gets what the operator should know. Raises StoreError, StoreCorrupt, OSError.
    """
    with tarfile.open(fileobj=target, mode="w:gz") as archive, tempfile.TemporaryDirectory() as folder:
        if database_url:
            dump = Path(folder) / DUMP
            dump_server(database_url, dump)
            _add(archive, dump, DUMP)
        elif home.database_file.exists():
            copy = Path(folder) / DATABASE
            copy_database(home.database_file, copy)
            _add(archive, copy, DATABASE)
        left_out: list[OSError] = []
        for name in FOLDERS:
            for path in _below(home.root / name, left_out.append):
                if home.is_shown_artifact(path):
                    continue  # written again when a command names it
                _add(archive, path, path.relative_to(home.root).as_posix())
        if left_out:
            notes.append(_left_out(home, left_out))
        if home.config_file.exists():
            _add_configuration(archive, home, notes, with_secrets=with_secrets)
        if not with_secrets and any(path.is_file() for path in _below(home.secrets)):
            notes.append("The files of secrets/ were left out; --with-secrets keeps them.")
        for path in (home.token_file, *_below(home.secrets)) if with_secrets else ():
            if path.exists():
                _add(archive, path, path.relative_to(home.root).as_posix())


def copy_database(source: Path, target: Path) -> None:
    """SQLite's online backup: a consistent copy while others write.

    Raises StoreCorrupt, StoreNewer, StoreUnreleased.
    """
    try:
        with closing(connect_read_only(source)) as reading:
            refuse_schema(schema_number(reading), migrations("sqlite")[-1][0], source)
            copy_connection(reading, target)
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"{source} cannot be copied: {error}. `shoal doctor` says more.") from error


def dump_server(url: str, target: Path) -> None:
    """Dump a PostgreSQL database, and have the dump read again. Raises StoreError."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    if not shutil.which("pg_dump") or not shutil.which("pg_restore"):
        raise StoreError(
            "pg_dump is not installed, which the backup of a database on a server needs. Install PostgreSQL's client "
            "programs of the server's version, or have the server itself be backed up and leave backup.to empty."
        )
    parts = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("PG")}
    if "password" in parts:  # an argument could be read by everybody on the machine
        environment["PGPASSWORD"] = parts.pop("password")
    for command in (
        ["pg_dump", "--format=custom", f"--file={target}", f"--dbname={make_conninfo('', **parts)}"],
        ["pg_restore", "--list", str(target)],
    ):
        ran = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", env=environment)
        if ran.returncode:
            raise StoreError(f"{command[0]} failed: {' '.join(ran.stderr.split())[-300:]}")


def _below(folder: Path, unread: Callable[[OSError], object] = lambda _: None) -> Iterator[Path]:
    """A folder and all that is in it, links not followed; `unread` gets why a folder could not be looked into."""
    if not folder.is_dir():
        return
    yield folder
    for parent, folders, files in walk(folder, unread):
        yield from (parent / name for name in sorted(folders + files))


def _left_out(home: Home, errors: list[OSError]) -> str:
    first = errors[0]
    place = os.path.relpath(os.fsdecode(first.filename), home.root)
    shown = place if len(place) <= PLACE_CHARS_MAX else f"{place[:PLACE_CHARS_MAX]}…"
    return f"Folders that could not be read were left out: {len(errors)}. The first is {shown}: {first.strerror}."


class _Padded(io.RawIOBase):
    """A file as long as it was when it was measured: what is missing of one that shrank reads as zeros."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.is_short = False

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.is_short = self.is_short or len(content) < size
        return content.ljust(size, b"\0")


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, folder or link; one that has vanished, and sockets and devices, are left out."""
    try:
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            with path.open("rb") as file:
                whole = file.read() if found.st_size <= READ_WHOLE_BYTES_MAX else None
                entry = archive.gettarinfo(path, name, file)
                entry.type, entry.linkname = tarfile.REGTYPE, ""
                entry.size = found.st_size if whole is None else len(whole)
                entry.pax_headers = {CHANGED_AT: str(found.st_ctime_ns)}
                padded = _Padded(file)
                archive.addfile(entry, padded if whole is None else io.BytesIO(whole))
                if padded.is_short:
                    log.warning("a file shrank while it was backed up", extra={"path": name})
        elif stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode):
            archive.add(path, name, recursive=False)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise


def _add_configuration(archive: tarfile.TarFile, home: Home, notes: list[str], *, with_secrets: bool) -> None:
    text = read_regular(home.config_file, READ_WHOLE_BYTES_MAX).decode("utf-8", "surrogateescape")
    if not with_secrets:
        redacted = without_secrets(text)
        if redacted is None:
            notes.append(f"{CONFIGURATION} was left out: its secrets could not be told apart. Keep it by yourself.")
            return
        if redacted != text:
            notes.append(f"The secrets written in {CONFIGURATION} were left out; --with-secrets keeps them.")
        text = redacted
    content = text.encode("utf-8", "surrogateescape")
    entry = tarfile.TarInfo(CONFIGURATION)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(home.config_file.stat().st_mtime)
    archive.addfile(entry, io.BytesIO(content))
