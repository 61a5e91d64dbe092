"""One lock a file over all threads of this process, so that two of them never change the same file at once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.domain.errors import ToolError

WAIT_SECONDS = 30.0
"""How long a call waits for a file that another thread is changing."""
PATHS_MAX = 10_000
"""Most files locked or waited for at once."""


class PathLocks:
    """Locks keyed by the real path on the host; a lock lives while somebody holds it or waits for it."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._locks: dict[Path, asyncio.Lock] = {}
        self._users: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, path: Path, shown: str) -> AsyncGenerator[None]:
        """Hold the file's lock. Raises ToolError, naming the file as `shown`, when it is not to be had in time."""
        if path not in self._locks and len(self._locks) >= PATHS_MAX:
            raise ToolError(f"Too many files are being changed at once; {shown} was left as it is. Try again shortly.")
        lock = self._locks.setdefault(path, asyncio.Lock())
        self._users[path] = self._users.get(path, 0) + 1
        try:
            await self._acquire(lock, shown)
            try:
                yield
            finally:
                lock.release()
        finally:
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path], self._locks[path]

    async def _acquire(self, lock: asyncio.Lock, shown: str) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await lock.acquire()
        except TimeoutError as error:
            raise ToolError(
                f"Another thread has been changing {shown} for {self._wait_seconds:g} seconds. "
                "Nothing was changed by this call. Do something else first, then read the file and try again."
            ) from error
