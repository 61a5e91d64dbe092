"""Store backups in an S3 bucket. Needs the `s3` extra."""

from functools import cached_property
from itertools import chain
from pathlib import Path

import obstore
from obstore.store import S3Store

from shoal.store.s3 import S3Settings, download, open_s3, s3_errors


class S3Storage:
    """Implements `BackupStorage` for S3. A rename copies the object, which S3 allows up to 5 GB."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings

    @cached_property
    def _store(self) -> S3Store:
        return open_s3(self._settings)

    def sizes(self) -> dict[str, int]:
        with s3_errors():
            listed = chain.from_iterable(obstore.list(self._store))  # pyright: ignore[reportUnknownMemberType]
            return {entry["path"]: entry["size"] for entry in listed if "/" not in entry["path"]}

    def put(self, file: Path, name: str) -> None:
        with s3_errors():
            obstore.put(self._store, name, file)

    def fetch(self, name: str, file: Path) -> None:
        download(self._store, name, file)

    def rename(self, old: str, new: str) -> None:
        with s3_errors():
            obstore.rename(self._store, old, new)

    def remove(self, name: str) -> None:
        with s3_errors():
            obstore.delete(self._store, name)
