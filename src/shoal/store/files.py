"""Content-addressed storage in a local folder, which may be on a shared volume. `s3.py` is for S3-compatible stores."""

import os
import secrets
import shutil
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

from shoal.kernel.files import DIGEST_CHARS, digest_of, digest_of_file
from shoal.kernel.regular_files import read_regular

GRACE_SECONDS = 3600.0
"""Seconds for which content is kept after it was last stored or requested, because the row that refers to the content
may not be written yet.
"""


class LocalFiles:
    """Implements `shoal.kernel.files.Files` under one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, content: bytes) -> str:
        digest = digest_of(content)
        if not self._touch(digest):
            with new_file(self.path(digest)) as fresh:
                fresh.write_bytes(content)
        return digest

    def keep_file(self, path: Path) -> str:
        digest = digest_of_file(path)
        if not self._touch(digest):
            with new_file(self.path(digest)) as fresh:
                shutil.copyfile(path, fresh)
                check_digest(fresh, digest)
        return digest

    def read(self, digest: str) -> bytes:
        content = read_regular(self.path(digest))
        if digest_of(content) != digest:
            raise damaged(digest)
        return content

    def fetch(self, digest: str, path: Path) -> None:
        with new_file(path) as fresh:
            shutil.copyfile(self.path(digest), fresh)
            check_digest(fresh, digest)

    def has(self, digest: str) -> bool:
        return self.path(digest).exists()

    def remove(self, digest: str, *, at_once: bool = False) -> bool:
        path = self.path(digest)
        try:
            if not at_once and path.stat().st_mtime > time.time() - GRACE_SECONDS:
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        return True

    def below(self, name: str) -> "LocalFiles":
        return LocalFiles(self._folder / name)  # no collision: digest folders have two-character names

    def sweep(self, used: Collection[str], *, at_once: bool = False) -> int:
        names = [path.name for path in self._folder.glob("??/*") if len(path.name) == DIGEST_CHARS]
        return sum(self.remove(digest, at_once=at_once) for digest in names if digest not in used)

    def path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _touch(self, digest: str) -> bool:
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """Yield a temporary path to write to. If the block succeeds, sync the file and rename it to `path`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.parent / f".{secrets.token_hex(8)}"
    try:
        yield fresh
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def check_digest(path: Path, digest: str) -> None:
    if digest_of_file(path) != digest:
        raise damaged(digest)


def damaged(digest: str) -> OSError:
    return OSError(f"The stored content {digest} is damaged: its digest does not match.")
