"""`shoal backup`, `restore`, `migrate`: everything of a home directory in one file and back, and the schema."""

import io
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import click

from shoal.domain.errors import Conflict, InvalidInput, StoreCorrupt, StoreError
from shoal.domain.home import Home
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.domain.store import Store

FOLDERS = ("agents", "data", "template")
DATABASE = "shoal.db"
CONFIGURATION = "shoal.toml"
READ_WHOLE_BYTES_MAX = 67_108_864
"""Files up to this size are read before they are written to the archive, so that one that changes cannot tear it."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--with-secrets", is_flag=True, help="Keep secrets written in shoal.toml, and the HTTP token.")
@click.option("--force", is_flag=True, help="Replace FILE if there is one.")
@click.pass_obj
def backup(place: Place, file: Path, with_secrets: bool, force: bool) -> None:
    """Write database, data, agents and configuration into FILE (tar.gz), also while a server runs.

    A FILE that is there already stays as it is unless --force is given. Secrets written in shoal.toml and the HTTP
    token are left out unless asked for.
    """
    if not place.root.is_dir():
        raise InvalidInput(f"There is no home directory {place.root} to back up. --home names another.")
    if file.exists() and not force:
        raise Conflict(f"{file} is there already. Name another file, or replace it with --force.")
    notes: list[str] = []
    partial = file.with_name(f".{file.name}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            _write_archive(place.home, target, notes, with_secrets=with_secrets)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    if place.config().database.url:
        notes.append("The database is on a server and not in it: keep that with pg_dump.")
    print(f"Wrote {file} ({file.stat().st_size:,} bytes).")
    for note in notes:
        print(note)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def restore(place: Place, file: Path) -> None:
    """Make the home directory from FILE. An existing one is never overwritten: move it away, or take another --home."""
    from shoal.surfaces.cli.init import make_home

    root = place.root
    if root.exists() and any(root.iterdir()):
        raise Conflict(f"{root} is not empty. Move it away, or name another with --home DIR.")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".shoal-restore-", dir=root.parent) as folder:
        fresh = Path(folder) / "home"
        fresh.mkdir(mode=0o700)
        _extract(file, fresh)
        if (fresh / DATABASE).exists():
            (fresh / DATABASE).chmod(0o600)
            _check_database(fresh / DATABASE, file)
        if root.exists():
            root.rmdir()
        fresh.rename(root)
    make_home(place.home)
    print(f"Made {root} from {file}. `shoal doctor` checks it; secrets that were left out have to be set again.")


@click.command()
@click.option("--to", "url", metavar="URL", help="Copy everything into this empty PostgreSQL database instead.")
@click.pass_obj
def migrate(place: Place, url: str | None) -> None:
    """Bring the database to this version's schema. Starting does that too; this is for doing it beforehand.

    With --to, move the home directory's database into PostgreSQL: all of it, checked, or nothing. The file stays.
    """
    if url:
        _move(place, url)
    elif place.config().database.url:
        place.write(_nothing)
        print("The database on the server has this version's schema.")
    else:
        _lift(place)


async def _nothing(_: "Store") -> None:
    """Opening is what migrates."""


def _move(place: Place, url: str) -> None:
    import asyncio

    from shoal.store.moving import migrate_sqlite_to_postgres

    moved = asyncio.run(migrate_sqlite_to_postgres(place.home, url))
    shown = ", ".join(f"{count:,} {table}" for table, count in moved.items() if count)
    print(f"Moved {shown or 'an empty database'}.")
    print(
        f"Set database.url in {place.home.config_file}, or DATABASE_URL; {place.home.database_file} is not used then."
    )


def _lift(place: Place) -> None:
    file = place.home.database_file
    before = schema_version(file) if file.exists() else 0
    place.write(_nothing)
    after = schema_version(file)
    print(f"{file} has schema {after}." if before == after else f"{file}: schema {before} → {after}.")


def schema_version(database: Path) -> int:
    """The number of the last migration that the database has had. Raises StoreError, StoreCorrupt for a broken file."""
    try:
        with sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True) as connection:
            return int(connection.execute("pragma user_version").fetchone()[0])
    except sqlite3.OperationalError as error:
        raise StoreError(f"{database} cannot be read: {error}. Check its disk and its rights.") from error
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"{database} cannot be read: {error}. Move it away and restore a backup.") from error


def _write_archive(home: Home, target: io.BufferedIOBase, notes: list[str], *, with_secrets: bool) -> None:
    with tarfile.open(fileobj=target, mode="w:gz") as archive, tempfile.TemporaryDirectory() as folder:
        if home.database_file.exists():
            copy = Path(folder) / DATABASE
            _copy_database(home.database_file, copy)
            _add(archive, copy, DATABASE)
        for name in FOLDERS:
            for path in _below(home.root / name):
                _add(archive, path, path.relative_to(home.root).as_posix())
        if home.config_file.exists():
            _add_configuration(archive, home, notes, with_secrets=with_secrets)
        if with_secrets and home.token_file.exists():
            _add(archive, home.token_file, home.token_file.name)


def _copy_database(source: Path, target: Path) -> None:
    """SQLite's online backup: a consistent copy while others write."""
    reading = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
    writing = sqlite3.connect(target)
    try:
        reading.backup(writing)
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"{source} cannot be copied: {error}. `shoal doctor` says more.") from error
    finally:
        writing.close()
        reading.close()


def _below(folder: Path) -> Iterator[Path]:
    """A folder and all that is in it, links not followed."""
    if not folder.is_dir():
        return
    yield folder
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent) / name for name in sorted(folders + files))


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, folder or link; one that has vanished, and sockets and devices, are left out."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and path.stat().st_size <= READ_WHOLE_BYTES_MAX:
            content = path.read_bytes()
            entry = archive.gettarinfo(path, name)
            entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", len(content)
            archive.addfile(entry, io.BytesIO(content))
        elif stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
            archive.add(path, name, recursive=False)
    except FileNotFoundError:
        return


def _add_configuration(archive: tarfile.TarFile, home: Home, notes: list[str], *, with_secrets: bool) -> None:
    from shoal.config.redact import without_secrets

    text = home.config_file.read_text(encoding="utf-8")
    if not with_secrets:
        redacted = without_secrets(text)
        if redacted is None:
            notes.append(f"{CONFIGURATION} was left out: its secrets could not be told apart. Keep it by yourself.")
            return
        if redacted != text:
            notes.append(f"The secrets written in {CONFIGURATION} were left out; --with-secrets keeps them.")
        text = redacted
    content = text.encode()
    entry = tarfile.TarInfo(CONFIGURATION)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(home.config_file.stat().st_mtime)
    archive.addfile(entry, io.BytesIO(content))


def _extract(file: Path, target: Path) -> None:
    """Take an archive apart below `target`. Nothing can land outside, whatever the archive says."""
    links: list[tuple[Path, str]] = []
    try:
        with tarfile.open(file, mode="r:gz") as archive:
            for entry in archive:
                path = target / _safe_name(entry.name, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                _extract_entry(archive, entry, path, links)
        # Links come last, so that no file is written through one.
        for path, goal in links:
            path.symlink_to(goal)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidInput(f"{file} is not a whole backup: {error}.") from error


def _extract_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path, links: list[tuple[Path, str]]) -> None:
    """Make a file or folder; a link is only noted, and anything else is left out."""
    if entry.issym():
        links.append((path, entry.linkname))
    elif entry.isdir():
        path.mkdir(exist_ok=True)
    elif entry.isreg() and (content := archive.extractfile(entry)) is not None:
        _write_file(path, content, entry.mode & 0o777)


def _write_file(path: Path, content: IO[bytes], mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        shutil.copyfileobj(content, target)
    path.chmod(mode)


def _safe_name(name: str, file: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidInput(f"{file} is not a backup of Shoal: it names the path {name!r}.")
    if path.parts[0] not in (*FOLDERS, DATABASE, CONFIGURATION, "token"):
        raise InvalidInput(f"{file} is not a backup of Shoal: it holds {name!r}.")
    return path


def _check_database(database: Path, file: Path) -> None:
    try:
        connection = sqlite3.connect(database)
        try:
            found = connection.execute("pragma quick_check(1)").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"The database in {file} is damaged: {error}. Take an older backup.") from error
    if found != "ok":
        raise StoreCorrupt(f"The database in {file} is damaged: {found}. Take an older backup.")
