"""Storage for backups: a directory or a bucket."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Protocol

from shoal.features.backups.settings import BackupSettings
from shoal.kernel.errors import ConfigError
from shoal.kernel.home import Home
from shoal.kernel.settings import Config

FOLDERS = ("agents", "data", "template")
"""Folders of a home directory that a backup contains."""
NOT_SET = "backup.to is empty. Set it to a directory or s3://BUCKET/PREFIX."


class BackupStorage(Protocol):
    """Storage for backups. All methods block and raise OSError."""

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each stored file, by name."""
        ...

    def put(self, file: Path, name: str) -> None:
        """Store `file` under `name`. Durable on return."""
        ...

    def fetch(self, name: str, file: Path) -> None:
        """Copy the stored file `name` to `file`. Raises FileNotFoundError if `name` does not exist."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...


class DirectoryStorage:
    """Storage in a directory, which the first write creates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):
                    sizes |= {entry.name: entry.stat().st_size} if entry.is_file() else {}
        return sizes

    def put(self, file: Path, name: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with file.open("rb") as source, os.fdopen(os.open(self._folder / name, flags, 0o600), "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())

    def fetch(self, name: str, file: Path) -> None:
        shutil.copyfile(self._folder / name, file)

    def rename(self, old: str, new: str) -> None:
        (self._folder / old).replace(self._folder / new)
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def backup_storage(config: Config, home: Home) -> BackupStorage | None:
    """Return the storage that backup.to names, or None if backup.to is empty.

    Raises ConfigError if the path is invalid or inside a folder that backups include.
    """
    where = config.section(BackupSettings).to
    if where.startswith("s3://"):
        from shoal.features.backups.bucket import S3Storage
        from shoal.store.s3 import S3Settings

        return S3Storage(S3Settings.of(config.files, where))
    if "\0" in where:
        raise ConfigError(["backup.to contains a null character. Specify a directory or s3://BUCKET/PREFIX."])
    folder = Path(os.path.realpath(home.root / os.path.expanduser(where)))
    if any(folder.is_relative_to(os.path.realpath(home.root / name)) for name in FOLDERS):
        raise ConfigError([f"backup.to: {folder} is inside the data that is backed up. Specify another directory."])
    return DirectoryStorage(folder) if where else None
