"""One lock a file over all threads and all processes of a machine, so that no two of them change it at once.

Within a process threads queue up in order. Between processes the kernel's lock (flock) counts: on the file itself or,
before it is made, on the nearest directory above it. So processes need nothing in common but the file, nothing is left
lying about, and a process that dies gives back what it held.
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
"""How long a call waits for a file that another thread is changing."""
RETRY_SECONDS = 0.01
"""How often it looks whether another process has let go of the file."""
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
                        f"Another thread has been changing {shown} for {counted(self._wait_seconds, 'second')}. "
                        "Nothing was changed by this call. Do something else first, then read the file and try again."
                    ) from error
                yield
        finally:
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path], self._locks[path]


class FileLock:
    """A file's lock against other processes, and against other holders in this one. Works where flock does.

    Who replaces a file replaces what is locked, so a lock counts only while its file is still the one at the path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = -1

    def take(self) -> bool:
        """Take it if it is free; False when it is not. Where nothing can be locked it counts as taken."""
        try:
            place, found = self._nearest()
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                return True  # whoever writes is told that it is no file
            self._held = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(self._held), self._nearest()[1]):
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            return True  # it may not be opened, or its file system has no locks
        self.release()
        return False

    def release(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _nearest(self) -> tuple[Path, os.stat_result]:
        """The file, or the nearest directory above it that there is."""
        for place in (self._path, *self._path.parents):
            try:
                return place, os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
        raise FileNotFoundError(self._path)


@asynccontextmanager
async def lock_file(path: Path) -> AsyncGenerator[None]:
    """Hold a file that is there only to be locked, against all processes of the machine; made where it is missing."""
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
