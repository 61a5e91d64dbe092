"""Content-addressed storage in an S3-compatible store. Needs the extra `s3`."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from shoal.installation import how_to_add
from shoal.kernel.errors import ConfigError
from shoal.kernel.files import digest_of, digest_of_file
from shoal.kernel.settings import FilesSettings
from shoal.store.files import GRACE_SECONDS, check_digest, damaged, new_file

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store
except ModuleNotFoundError as error:
    lacking = f"An s3:// URL needs the `s3` extra: {error.name} is not installed."
    raise ConfigError([f"{lacking} {how_to_add('s3')}"]) from error

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, S3Config

CHUNK_BYTES = 1 << 20
DELETED_AT_ONCE = 1000
"""Maximum number of objects per S3 delete request."""
REQUEST_SECONDS = 60
REQUEST_RETRIES_MAX = 5
RETRY_TIME = timedelta(seconds=30)
"""Period after a request's first attempt in which retries may start. Together with REQUEST_SECONDS, it limits how long
a shutdown waits for S3.
"""


class S3Settings(msgspec.Struct, frozen=True):
    """Location and keys of an S3-compatible store. Empty fields fall back to the standard AWS variables or the
    machine's role.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""

    @classmethod
    def of(cls, files: FilesSettings, url: str) -> Self:
        """Return the settings for an address s3://BUCKET/PREFIX, with the endpoint and keys in [files]. Blocks
        while it reads keys.
        """
        where = urlsplit(url)
        return cls(
            bucket=where.netloc,
            prefix=where.path.strip("/"),
            endpoint=files.endpoint,
            region=files.region,
            access_key=files.access_key.reveal(),
            secret_key=files.secret_key.reveal(),
        )


@dataclass(eq=False, repr=False)
class S3Files:
    """Implements `shoal.kernel.files.Files` in a bucket, below the prefix `place`. Shares the connections of
    `parent`.
    """

    settings: S3Settings
    place: str = ""
    parent: "S3Files | None" = None
    _: KW_ONLY
    grace_seconds: float = GRACE_SECONDS

    def keep(self, content: bytes) -> str:
        digest = digest_of(content)
        self._put(digest, content)
        return digest

    def keep_file(self, path: Path) -> str:
        digest = digest_of_file(path)
        self._put(digest, path)  # large content is uploaded in parts
        return digest

    def read(self, digest: str) -> bytes:
        with s3_errors():
            content = bytes(obstore.get(self._store, self._key(digest)).bytes())
        if digest_of(content) != digest:
            raise damaged(digest)
        return content

    def fetch(self, digest: str, path: Path) -> None:
        with new_file(path) as fresh:
            download(self._store, self._key(digest), fresh)
            check_digest(fresh, digest)

    def has(self, digest: str) -> bool:
        return self._age_seconds(digest) is not None

    def remove(self, digest: str, *, at_once: bool = False) -> bool:
        age = self._age_seconds(digest)
        if age is None:
            return True
        if age < self.grace_seconds and not at_once:
            return False
        with s3_errors():
            obstore.delete(self._store, self._key(digest))
        return True

    def below(self, name: str) -> "S3Files":
        return S3Files(self.settings, f"{self.place}{name}/", self, grace_seconds=self.grace_seconds)

    def sweep(self, used: Collection[str], *, at_once: bool = False) -> int:
        with s3_errors():
            old: list[str] = []
            listed = obstore.list(self._store, self.place or None)  # pyright: ignore[reportUnknownMemberType]
            for entry in chain.from_iterable(listed):
                digest = entry["path"].rpartition("/")[2]
                is_content = entry["path"] == self._key(digest)
                is_old = at_once or _age_seconds(entry) >= self.grace_seconds
                if is_content and digest not in used and is_old:
                    old.append(entry["path"])
            for first in range(0, len(old), DELETED_AT_ONCE):
                obstore.delete(self._store, old[first : first + DELETED_AT_ONCE])
        return len(old)

    def _put(self, digest: str, content: bytes | Path) -> None:
        """Store content unless a recent copy exists. An older copy is replaced, which resets its age."""
        age = self._age_seconds(digest)
        if age is None or age >= self.grace_seconds / 2:
            with s3_errors():
                obstore.put(self._store, self._key(digest), content)

    def _key(self, digest: str) -> str:
        return f"{self.place}{digest[:2]}/{digest}"

    @cached_property
    def _store(self) -> S3Store:
        return open_s3(self.settings) if self.parent is None else self.parent._store

    def _age_seconds(self, digest: str) -> float | None:
        try:
            with s3_errors():
                return _age_seconds(obstore.head(self._store, self._key(digest)))
        except FileNotFoundError:
            return None


def open_s3(settings: S3Settings) -> S3Store:
    config: S3Config = {}
    if settings.endpoint:
        try:
            _ = urlsplit(settings.endpoint.encode("ascii")).port
        except ValueError as error:  # obstore would panic
            raise OSError(
                "files.endpoint is not a valid URL: its host must be ASCII and its port below 65536."
            ) from error
        config["endpoint"] = settings.endpoint
    if settings.region:
        config["region"] = settings.region
    if settings.access_key:
        config["access_key_id"] = settings.access_key
        config["secret_access_key"] = settings.secret_key
    client: ClientConfig = {"timeout": f"{REQUEST_SECONDS}s", "allow_http": settings.endpoint.startswith("http://")}
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
    """Translate the client's errors to OSError, and to FileNotFoundError for a missing object."""
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" not in str(error):
            raise FileNotFoundError(str(error).partition(": ")[0]) from error
        raise OSError("The bucket does not exist in the object store. Check files.* in the configuration.") from error
    except BaseError as error:
        line = str(error).splitlines()[0]
        raise OSError(f"The object store failed: {line}. Check files.* in the configuration.") from error


def download(store: S3Store, name: str, path: Path) -> None:
    with s3_errors(), path.open("wb") as file:
        for chunk in obstore.get(store, name).stream(min_chunk_size=CHUNK_BYTES):
            file.write(chunk)


def _age_seconds(meta: "ObjectMeta") -> float:
    return (datetime.now(UTC) - meta["last_modified"]).total_seconds()
