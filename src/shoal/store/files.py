"""Content by digest, and a part of a bucket for backups: in a local folder, which may be a shared volume, or in an
S3-compatible store (the extra `s3`).
"""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from shoal.domain.errors import StoreUnavailable
from shoal.domain.files import DIGEST_CHARS, STILL_FOLDERS, Files, FolderMarks, Folders, digest_of, digest_of_file
from shoal.domain.home import Home
from shoal.domain.ports import Settings
from shoal.domain.settings import FilesSettings

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, S3Config, S3Store

GRACE_SECONDS = 3600.0
"""A content stored or asked for again this lately is not removed: the row that names it may still be on its way."""
CHUNK_BYTES = 1 << 20
DELETED_AT_ONCE = 1000
"""What one request of S3 deletes at most."""
REQUEST_SECONDS = 60
REQUEST_RETRIES_MAX = 5
RETRY_TIME = timedelta(seconds=30)
"""From a request's first try: none is begun later. With REQUEST_SECONDS this bounds how long a stop may wait."""


async def open_files(settings: FilesSettings, home: Home) -> Files:
    """[files]: content by digest, in the home directory or an S3-compatible store.

    Raises StoreUnavailable when that store does not take anything.
    """
    if not settings.url:
        return LocalFiles(home.data)
    files = S3Files(await asyncio.to_thread(S3Settings.of, settings, settings.url))
    try:
        await asyncio.to_thread(files.keep, b"")
    except OSError as error:
        raise StoreUnavailable(f"{settings.url} cannot be used: {error}") from error
    return files


def open_folders(wanted: FilesSettings, files: Files, settings: Settings, home: Home, marks: FolderMarks) -> Folders:
    """Whether directories follow their work through the store, or are the same on every machine."""
    if not wanted.url or not wanted.workspace_sync:
        return STILL_FOLDERS
    from shoal.store.workspaces import SyncedFolders

    return SyncedFolders(files.below("folders"), settings, home, marks)


class LocalFiles:
    """Implements `domain.files.Files` under one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, content: bytes) -> str:
        """Store the content once; synced to disk on return."""
        digest = digest_of(content)
        if not self._touch(digest):
            with _made(self.path(digest)) as fresh:
                fresh.write_bytes(content)
        return digest

    def keep_file(self, path: Path) -> str:
        """Copy a file in, once."""
        digest = digest_of_file(path)
        if not self._touch(digest):
            with _made(self.path(digest)) as fresh:
                shutil.copyfile(path, fresh)
                _check(fresh, digest)
        return digest

    def read(self, digest: str) -> bytes:
        """The content."""
        content = self.path(digest).read_bytes()
        if digest_of(content) != digest:
            raise _damaged(digest)
        return content

    def fetch(self, digest: str, path: Path) -> None:
        """Copy the content out."""
        with _made(path) as fresh:
            shutil.copyfile(self.path(digest), fresh)
            _check(fresh, digest)

    def has(self, digest: str) -> bool:
        """Whether it is there."""
        return self.path(digest).exists()

    def remove(self, digest: str) -> bool:
        """Delete it unless it is in use."""
        path = self.path(digest)
        try:
            if path.stat().st_mtime > time.time() - GRACE_SECONDS:
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        return True

    def below(self, name: str) -> "LocalFiles":
        """A folder in this one; no digest has its name."""
        return LocalFiles(self._folder / name)

    def sweep(self, used: Collection[str]) -> int:
        """Delete all but these and the young."""
        found = [path.name for path in self._folder.glob("??/*") if len(path.name) == DIGEST_CHARS]
        return sum(self.remove(digest) for digest in found if digest not in used)

    def path(self, digest: str) -> Path:
        """Where it lies."""
        return self._folder / digest[:2] / digest

    def _touch(self, digest: str) -> bool:
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True


class S3Settings(msgspec.Struct, frozen=True):
    """Where an S3-compatible store is. What is empty comes from the usual AWS variables or the machine's role."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""

    @classmethod
    def of(cls, files: FilesSettings, url: str) -> Self:
        """A part of a bucket, s3://BUCKET/PREFIX, in the store of [files]. Blocks where keys have to be looked up."""
        where = urlsplit(url)
        return cls(
            bucket=where.netloc,
            prefix=where.path.strip("/"),
            endpoint=files.endpoint,
            region=files.region,
            access_key=files.access_key.reveal(),
            secret_key=files.secret_key.reveal(),
        )


class S3Files:
    """Implements `domain.files.Files` in a bucket; `place` is a part of it, `parent` whose connections are used."""

    def __init__(
        self,
        settings: S3Settings,
        place: str = "",
        parent: "S3Files | None" = None,
        *,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._settings = settings
        self._grace_seconds = grace_seconds
        self._place = place
        self._parent = parent
        self._opened: S3Store | None = None

    def keep(self, content: bytes) -> str:
        """Store the content, unless that was done lately."""
        import obstore

        digest = digest_of(content)
        if not self._is_fresh(digest):
            with s3_errors():
                obstore.put(self._store, self._key(digest), content)
        return digest

    def keep_file(self, path: Path) -> str:
        """Store a file, in parts where it is large."""
        import obstore

        digest = digest_of_file(path)
        if not self._is_fresh(digest):
            with s3_errors():
                obstore.put(self._store, self._key(digest), path)
        return digest

    def read(self, digest: str) -> bytes:
        """The content."""
        import obstore

        with s3_errors():
            content = bytes(obstore.get(self._store, self._key(digest)).bytes())
        if digest_of(content) != digest:
            raise _damaged(digest)
        return content

    def fetch(self, digest: str, path: Path) -> None:
        """Stream the content into a file."""
        import obstore

        with _made(path) as fresh:
            with s3_errors(), fresh.open("wb") as file:
                for chunk in obstore.get(self._store, self._key(digest)).stream(min_chunk_size=CHUNK_BYTES):
                    file.write(chunk)
            _check(fresh, digest)

    def has(self, digest: str) -> bool:
        """Whether it is there."""
        return self._age_seconds(digest) is not None

    def remove(self, digest: str) -> bool:
        """Delete it unless it is in use."""
        import obstore

        age = self._age_seconds(digest)
        if age is None:
            return True
        if age < self._grace_seconds:
            return False
        with s3_errors():
            obstore.delete(self._store, self._key(digest))
        return True

    def below(self, name: str) -> "S3Files":
        """Under a longer prefix."""
        return S3Files(self._settings, f"{self._place}{name}/", self, grace_seconds=self._grace_seconds)

    def sweep(self, used: Collection[str]) -> int:
        """Delete all but these and the young."""
        import obstore

        with s3_errors():
            old = list(self._old(used))
            for first in range(0, len(old), DELETED_AT_ONCE):
                obstore.delete(self._store, old[first : first + DELETED_AT_ONCE])
        return len(old)

    def _old(self, used: Collection[str]) -> Iterator[str]:
        """The paths of what is neither used nor young."""
        import obstore

        listed = obstore.list(self._store, self._place or None)  # pyright: ignore[reportUnknownMemberType]
        for found in chain.from_iterable(listed):
            digest = found["path"].rpartition("/")[2]
            is_content = found["path"] == self._key(digest)
            if is_content and digest not in used and _age_seconds(found) >= self._grace_seconds:
                yield found["path"]

    def _key(self, digest: str) -> str:
        return f"{self._place}{digest[:2]}/{digest}"

    @property
    def _store(self) -> "S3Store":
        if self._parent is not None:
            return self._parent._store
        if self._opened is None:
            self._opened = open_s3(self._settings)
        return self._opened

    def _is_fresh(self, digest: str) -> bool:
        """Whether it is there and will stay for a while; what is older is stored again, which makes it young."""
        age = self._age_seconds(digest)
        return age is not None and age < self._grace_seconds / 2

    def _age_seconds(self, digest: str) -> float | None:
        import obstore

        try:
            with s3_errors():
                found = obstore.head(self._store, self._key(digest))
        except FileNotFoundError:
            return None
        return _age_seconds(found)


def _age_seconds(found: "ObjectMeta") -> float:
    return (datetime.now(UTC) - found["last_modified"]).total_seconds()


def open_s3(settings: S3Settings) -> "S3Store":
    """The bucket, from its prefix on; nothing is connected yet. Raises OSError."""
    from obstore.store import S3Store

    config: S3Config = {}
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    if settings.region:
        config["region"] = settings.region
    if settings.access_key:
        config["access_key_id"] = settings.access_key
        config["secret_access_key"] = settings.secret_key
    client: ClientConfig = {
        "timeout": f"{REQUEST_SECONDS}s",
        "allow_http": settings.endpoint.startswith("http://"),
    }
    with s3_errors():
        return S3Store(
            settings.bucket,
            prefix=settings.prefix or None,
            config=config,
            client_options=client,
            retry_config={"max_retries": REQUEST_RETRIES_MAX, "retry_timeout": RETRY_TIME},
        )


@contextmanager
def s3_errors() -> Generator[None]:
    """Turn the client's errors into OSError."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        line = str(error).splitlines()[0]
        raise OSError(f"The object store failed: {line}. Check files.* in the configuration.") from error


@contextmanager
def _made(path: Path) -> Generator[Path]:
    """A file to write; it takes its place, synced, when the block ends well."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.parent / f".{secrets.token_hex(8)}"
    try:
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _check(path: Path, digest: str) -> None:
    if digest_of_file(path) != digest:
        raise _damaged(digest)


def _damaged(digest: str) -> OSError:
    return OSError(f"The stored content {digest} is damaged: it does not have its digest.")


class S3Place:
    """Implements `shoal.backups.BackupPlace`. A store renames by copying, which S3 does up to 5 GB."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings

    def sizes(self) -> dict[str, int]:
        """What is right below the prefix."""
        import obstore

        with s3_errors():
            listed = chain.from_iterable(obstore.list(open_s3(self._settings)))  # pyright: ignore[reportUnknownMemberType]
            return {found["path"]: found["size"] for found in listed if "/" not in found["path"]}

    def put(self, file: Path, name: str) -> None:
        """In parts where it is large."""
        import obstore

        with s3_errors():
            obstore.put(open_s3(self._settings), name, file)

    def fetch(self, name: str, file: Path) -> None:
        """Streamed."""
        import obstore

        with s3_errors(), file.open("wb") as target:
            for chunk in obstore.get(open_s3(self._settings), name).stream(min_chunk_size=CHUNK_BYTES):
                target.write(chunk)

    def rename(self, old: str, new: str) -> None:
        """A copy, then the old one goes."""
        import obstore

        with s3_errors():
            obstore.rename(open_s3(self._settings), old, new)

    def remove(self, name: str) -> None:
        """Delete it."""
        import obstore

        with s3_errors():
            obstore.delete(open_s3(self._settings), name)
