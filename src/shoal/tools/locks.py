"""Lock a file across all threads and processes on a machine.

Within a process, threads wait in order. Between processes, flock locks the file or, before the file exists, the
nearest directory above it. Processes need to share only the file itself, no lock files remain, and the system
releases the locks of a process that dies.
"""

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from shoal.kernel.errors import ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.phrases import counted

WAIT_SECONDS = 30.0
RETRY_SECONDS = 0.01
PATHS_MAX = 10_000


class PathLocks:
    """Locks by real host path. A lock exists only while a thread holds it or waits for it."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._locks: dict[Path, asyncio.Lock] = {}
        self._users: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, path: Path, shown: str) -> AsyncGenerator[None]:
        """Hold the file's lock while the block runs. Raises ToolError, whose message calls the file `shown`, if
        the lock is not available in time.
        """
        if path not in self._locks and len(self._locks) >= PATHS_MAX:
            raise ToolError(
                f"{shown} was not changed, because too many files are being changed at once. Try again shortly."
            )
        lock = self._locks.setdefault(path, asyncio.Lock())
        self._users[path] = self._users.get(path, 0) + 1
        file = FileLock(path)
        try:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(self._wait_seconds):
                        await held.enter_async_context(lock)
                        held.callback(file.release)
                        while not await in_thread(file.take):  # noqa: ASYNC110 (another process sets no event)
                            await asyncio.sleep(RETRY_SECONDS)
                except TimeoutError as error:
                    raise ToolError(
                        f"Another thread has been changing {shown} for {counted(self._wait_seconds, 'second')}, so "
                        "this call changed nothing. Do something else first, then read the file and try again."
                    ) from error
                yield
        finally:
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path], self._locks[path]


class FileLock:
    """A lock on a file against other processes and other holders in this process. Works on file systems that support
    flock.

    Replacing a file replaces the locked inode, so a lock is valid only while its inode is still at the path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = -1

    def take(self) -> bool:
        """Acquire the lock if it is free. Returns False if it is not. If the file cannot be locked, returns True
        without a lock.
        """
        try:
            place, holder = self._nearest()
            if not (stat.S_ISREG(holder.st_mode) or stat.S_ISDIR(holder.st_mode)):
                return True  # the write will report that this is not a regular file
            self._held = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(self._held), self._nearest()[1]):
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            return True  # the file cannot be opened, or its file system does not support flock
        self.release()
        return False

    def release(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _nearest(self) -> tuple[Path, os.stat_result]:
        for place in (self._path, *self._path.parents):
            try:
                return place, os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
        raise FileNotFoundError(self._path)


@asynccontextmanager
async def lock_file(path: Path) -> AsyncGenerator[None]:
    """Lock a file against all other processes of the machine while the block runs. Creates the file if it is
    missing.
    """
    file = FileLock(path)

    def take() -> bool:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        return file.take()

    try:
        while not await in_thread(take):  # noqa: ASYNC110 (another process sets no event)
            await asyncio.sleep(RETRY_SECONDS)
        yield
    finally:
        file.release()
