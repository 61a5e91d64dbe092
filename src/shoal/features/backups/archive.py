"""Write, verify and unpack backup archives.

An archive is a tar.gz of the database, `agents/`, `data/`, `template/` and the configuration. It includes secrets only
on request. SQLite's online backup API copies the database consistently while other processes write to it.
"""

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
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath

from shoal.config.secrets import without_secrets
from shoal.features.backups.storage import FOLDERS
from shoal.files.deep_folders import walk
from shoal.kernel.errors import InvalidInput, StoreCorrupt, StoreError
from shoal.kernel.home import Home
from shoal.kernel.phrases import counted
from shoal.kernel.regular_files import read_regular
from shoal.store.driver import migrations
from shoal.store.sqlite import refuse_schema, schema_number
from shoal.store.sqlite_checks import check_file, connect_read_only, copy_connection

log = logging.getLogger(__name__)

DATABASE = "shoal.db"
DUMP = "shoal.dump"
CONFIGURATION = "shoal.toml"
CHANGED_AT = "SHOAL.ctime_ns"
"""Tar header that stores the change time of a file, on which taint marks depend (decision 010)."""
READ_WHOLE_BYTES_MAX = 67_108_864
"""Maximum size of a file that is read completely before it is archived, so a concurrent change cannot corrupt the copy.
"""
PATH_BYTES_MAX = 4096
"""The kernel's PATH_MAX, including the terminating null byte."""
PLACE_CHARS_MAX = 80
FAILURES = (OSError, InvalidInput, tarfile.TarError, sqlite3.Error)
"""Errors other than StoreError that writing or checking an archive can raise."""
_PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TMPDIR"})


@contextlib.contextmanager
def reading(file: Path) -> Generator[tarfile.TarFile]:
    """Open a backup archive for sequential reading.

    On exit, reads the rest of the file, because gzip stores the checksum at the end. Raises InvalidInput if the archive
    is incomplete.
    """
    try:
        with gzip.open(file) as content:
            with tarfile.open(fileobj=content, mode="r:") as archive:
                yield archive
            while content.read(READ_WHOLE_BYTES_MAX):
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{file} is not a complete backup: {error}.") from error


def check_archive(file: Path) -> None:
    """Read the complete archive and check the integrity of its database. Raises InvalidInput, StoreCorrupt."""
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
    problem = check_file(database, "integrity_check").problem
    if problem:
        raise StoreCorrupt(f"The database in {file.name} is damaged: {problem}. Use an older backup.")


def write_archive(
    home: Home, target: io.BufferedIOBase, notes: list[str], *, with_secrets: bool, database_url: str = ""
) -> None:
    """Write a home directory to `target` as a tar.gz.

    If `database_url` is set, the archive contains a dump of that PostgreSQL database instead of the SQLite database.
    Appends messages for the operator to `notes`. Raises StoreError, StoreCorrupt, OSError.
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
                    continue  # shown artifacts are recreated when a command needs them
                _add(archive, path, path.relative_to(home.root).as_posix())
        if left_out:
            notes.append(_left_out(home, left_out))
        if home.config_file.exists():
            _add_configuration(archive, home, notes, with_secrets=with_secrets)
        if not with_secrets and any(path.is_file() for path in _below(home.secrets)):
            notes.append("Skipped the files in secrets/. Use --with-secrets to include them.")
        for path in (home.token_file, *_below(home.secrets)) if with_secrets else ():
            if path.exists():
                _add(archive, path, path.relative_to(home.root).as_posix())


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database consistently while other processes write to it.

    Raises StoreCorrupt, StoreNewer, StoreUnreleased.
    """
    try:
        with closing(connect_read_only(source)) as reading:
            refuse_schema(schema_number(reading), migrations("sqlite")[-1][0], source)
            copy_connection(reading, target)
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"Shoal cannot copy {source}: {error}. Run `shoal doctor` for details.") from error


def dump_server(url: str, target: Path) -> None:
    """Dump a PostgreSQL database with pg_dump and verify that the dump is readable. Raises StoreError."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    if not shutil.which("pg_dump") or not shutil.which("pg_restore"):
        raise StoreError(
            "Backing up a PostgreSQL database needs pg_dump and pg_restore. Install the PostgreSQL client programs "
            "that match the server's version, or back up the server and the home directory with other tools."
        )
    parts = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("PG")}
    if "password" in parts:  # command-line arguments are visible to other users of the machine
        environment["PGPASSWORD"] = parts.pop("password")
    for command in (
        ["pg_dump", "--format=custom", f"--file={target}", f"--dbname={make_conninfo('', **parts)}"],
        ["pg_restore", "--list", str(target)],
    ):
        ran = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", env=environment)
        if ran.returncode:
            raise StoreError(f"{command[0]} failed: {' '.join(ran.stderr.split())[-300:]}")


def _below(folder: Path, unread: Callable[[OSError], object] = lambda _: None) -> Iterator[Path]:
    """Yield a folder and everything below it without following links. `unread` receives the error of each unreadable
    folder.
    """
    if not folder.is_dir():
        return
    yield folder
    for parent, folders, files in walk(folder, unread):
        yield from (parent / name for name in sorted(folders + files))


def _left_out(home: Home, errors: list[OSError]) -> str:
    first = errors[0]
    place = os.path.relpath(os.fsdecode(first.filename), home.root)
    shown = place if len(place) <= PLACE_CHARS_MAX else f"{place[:PLACE_CHARS_MAX]}…"
    return f"Skipped {counted(len(errors), 'unreadable folder')}. First: {shown} ({first.strerror})."


class _Padded(io.RawIOBase):
    """Reader that returns zeros for missing bytes, because a tar entry must have its declared size even if the file
    shrinks.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.is_short = False

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.is_short = self.is_short or len(content) < size
        return content.ljust(size, b"\0")


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, folder or link. Skips other types, deleted files and names that are too long."""
    try:
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                whole = file.read() if status.st_size <= READ_WHOLE_BYTES_MAX else None
                entry = archive.gettarinfo(path, name, file)
                entry.type, entry.linkname = tarfile.REGTYPE, ""
                entry.size = status.st_size if whole is None else len(whole)
                entry.pax_headers = {CHANGED_AT: str(status.st_ctime_ns)}
                padded = _Padded(file)
                archive.addfile(entry, padded if whole is None else io.BytesIO(whole))
                if padded.is_short:
                    log.warning("file shrank during backup", extra={"path": name})
        elif stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
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
            notes.append(
                f"Skipped {CONFIGURATION} because Shoal could not remove its secrets. Keep your own copy of the file."
            )
            return
        if redacted != text:
            notes.append(f"Omitted the secrets in {CONFIGURATION}. Use --with-secrets to include them.")
        text = redacted
    content = text.encode("utf-8", "surrogateescape")
    entry = tarfile.TarInfo(CONFIGURATION)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(home.config_file.stat().st_mtime)
    archive.addfile(entry, io.BytesIO(content))


def extract(file: Path, target: Path) -> tuple[dict[str, int], int]:
    """Unpack an archive below `target`. Never writes outside it, and skips everything except files, folders and links.

    Return the change time of each file, in nanoseconds since 1970, and the number of files skipped because their paths
    exceed PATH_BYTES_MAX. Raises InvalidInput if the file is not a complete Shoal backup.
    """
    links: list[tuple[Path, str]] = []
    changed_at: dict[str, int] = {}
    too_long = 0
    with reading(file) as archive:
        for entry in archive:
            name = PurePosixPath(entry.name)
            if name.is_absolute() or ".." in name.parts or not name.parts:
                raise InvalidInput(f"{file} is not a Shoal backup: it contains the unsafe path {entry.name!r}.")
            if name.parts[0] not in (*FOLDERS, DATABASE, DUMP, CONFIGURATION, "token", "secrets"):
                raise InvalidInput(f"{file} is not a Shoal backup: it contains the unexpected path {entry.name!r}.")
            path = target / name
            if len(os.fsencode(path)) >= PATH_BYTES_MAX:
                too_long += 1
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.issym():
                links.append((path, entry.linkname))
            elif entry.isdir():
                path.mkdir(exist_ok=True)
            elif entry.isreg() and (content := archive.extractfile(entry)) is not None:
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
                    shutil.copyfileobj(content, made)
                path.chmod(entry.mode & 0o777)
            changed = entry.pax_headers.get(CHANGED_AT, "")
            changed_at |= {entry.name: int(changed)} if changed.isdecimal() else {}
        # Create links last, so no file is written through a link.
        for path, goal in links:
            path.symlink_to(goal)
    return changed_at, too_long
