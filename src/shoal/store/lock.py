"""The lock that allows only one process at a time to use a home directory."""

import fcntl
import os
from pathlib import Path

from shoal.kernel.errors import HomeLocked, StoreReadOnly
from shoal.kernel.regular_files import regular_only


def is_held(path: Path) -> bool:
    """Return True if a process holds this lock. The content of the lock file is not proof, because process ids are
    reused.
    """
    for locked in (path, path.parent):
        try:
            file = os.open(locked, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
    return False


class HomeLock:
    """An exclusive lock on a home directory. The system releases it when the process ends, even after a crash.

    The lock file contains the holder's process id, and its address if the holder is a server. The directory is locked
    as well, so a second process cannot acquire the lock after the lock file is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._directory = -1

    def acquire(self) -> None:
        """Acquire the lock. Raises HomeLocked, which names the holder, and StoreReadOnly if the lock file cannot
        be written.
        """
        try:
            file = regular_only(str(self._path), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreReadOnly(
                f"Shoal cannot write {self._path} ({error.strerror}). Check its permissions."
            ) from error
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # some network file systems cannot lock directories
                if isinstance(error, BlockingIOError):
                    raise
        except BlockingIOError as error:
            holder = os.pread(file, 200, 0).decode("utf-8", "replace").strip()
            os.close(file)
            os.close(directory)
            raise HomeLocked(
                f"Shoal is already running in {self._path.parent}"
                + (f" ({holder})." if holder else ".")
                + " Stop it first, use its page, or choose another home with --home."
            ) from error
        self._file, self._directory = file, directory
        self.describe("")

    def describe(self, address: str) -> None:
        text = f"process {os.getpid()}" + (f" at {address}" if address else "")
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            os.close(self._directory)
            self._file = self._directory = -1
