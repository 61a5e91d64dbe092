"""The artifact files: results kept whole by the digest of their content, the same content once, and their retention."""

import hashlib
import logging
import os
import secrets
import time
from datetime import timedelta
from pathlib import Path

from shoal.domain.clock import Clock
from shoal.domain.store import Artifacts
from shoal.tools.threads import in_thread

log = logging.getLogger(__name__)

DIGEST_CHARS = 32
"""How much of the SHA-256 names a file: 128 bits."""
CHECK_SECONDS = 3600.0
GRACE_SECONDS = 3600.0
"""A file written or asked for again this lately is not removed: the event that names it may still be on its way."""


class ArtifactFiles:
    """Files under one directory. Every method blocks and raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, content: bytes) -> str:
        """Store the content once and return its digest; synced to disk on return."""
        digest = hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]
        path = self.path(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            _write(path, content)
        return digest

    def read(self, digest: str) -> bytes:
        """The content. Raises FileNotFoundError when retention has taken it."""
        return self.path(digest).read_bytes()

    def remove(self, digest: str) -> bool:
        """Delete a file unless it was written or asked for lately; False when it stays."""
        path = self.path(digest)
        try:
            if path.stat().st_mtime > time.time() - GRACE_SECONDS:
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        return True

    def path(self, digest: str) -> Path:
        """Where it lies."""
        return self._folder / digest[:2] / digest


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.parent / f".{secrets.token_hex(8)}"
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class ArtifactRetention:
    """Forgets artifacts older than `days` (0: never)."""

    def __init__(self, artifacts: Artifacts, files: ArtifactFiles, clock: Clock, days: float) -> None:
        self._artifacts = artifacts
        self._files = files
        self._clock = clock
        self._days = days

    async def run(self) -> None:
        """Look once an hour, for ever."""
        while True:
            await self.expire()
            await self._clock.sleep(CHECK_SECONDS)

    async def expire(self) -> int:
        """Forget what is too old now; returns how many files went."""
        if not self._days:
            return 0
        unused = await self._artifacts.expire(self._clock.now() - timedelta(days=self._days))
        gone = 0
        for digest in unused:
            try:
                gone += await in_thread(lambda digest=digest: self._files.remove(digest))
            except OSError as error:
                log.warning("an artifact could not be deleted", extra={"digest": digest, "why": str(error)})
        return gone
