"""Files of the home are plain files: whatever else somebody put in their place is refused, and said with its path."""

import errno
import os
import stat
from pathlib import Path

from shoal.domain.errors import InvalidInput


def plain(path: str, flags: int, mode: int = 0o666) -> int:
    """An opener, as `open` takes one, that raises OSError for what is no plain file: a pipe would be waited for, and a
    device may never end."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ENXIO):  # a folder; a socket, or a pipe that nobody reads
            raise
    raise OSError(errno.EINVAL, "It is no plain file", path)


def read_plain(path: Path, bytes_max: int = -1) -> bytes:
    """A plain file, or no more than the beginning of it. Raises OSError, also for what is none."""
    with open(path, "rb", buffering=0, opener=plain) as file:
        return file.read(bytes_max)


def read_plain_text(path: Path) -> str:
    """A plain file of UTF-8, however its lines end. Raises OSError, UnicodeDecodeError."""
    with open(path, encoding="utf-8", opener=plain) as file:
        return file.read()


def unusable(path: Path, error: OSError) -> InvalidInput:
    """What to raise where something of the home cannot be used."""
    reason = error.strerror
    if isinstance(error, FileExistsError | NotADirectoryError):
        path, reason = next(part for part in (path, *path.parents) if os.path.lexists(part)), "It is no folder"
    called = f"{path.parent.name}/{path.name}"
    return InvalidInput(f"{called} cannot be used: {reason}. Correct what lies there; it counts at once.")
