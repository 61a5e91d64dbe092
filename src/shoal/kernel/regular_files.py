"""Opens regular files and creates folders in the home directory. Rejects pipes, devices and other special files. Error
messages name the path.
"""

import errno
import os
import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

from shoal.kernel.errors import InvalidInput


def regular_only(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file. Raises OSError for anything else, because a pipe would block and a device may never end.

    Pass this function to `open` as `opener`.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ENXIO):  # a folder, a socket, or a pipe without a reader
            raise
    raise OSError(errno.EINVAL, "Not a regular file", path)


def read_regular(path: Path, bytes_max: int = -1) -> bytes:
    """Read a regular file, or only its first `bytes_max` bytes. Raises OSError if it is unreadable or not a
    regular file.
    """
    with open(path, "rb", buffering=0, opener=regular_only) as file:
        return file.read(bytes_max)


def read_regular_text(path: Path) -> str:
    """Read a regular text file. All line endings become line feeds. Raises OSError and UnicodeDecodeError."""
    return decode_settings(read_regular(path)).replace("\r\n", "\n").replace("\r", "\n")


def decode_settings(data: bytes) -> str:
    """Decode UTF-8 with or without a byte order mark, or UTF-16 with a byte order mark. Raises UnicodeDecodeError."""
    return data.decode("utf-16" if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")


def ensure_folder(path: Path) -> None:
    """Create a folder if it does not exist. Raises InvalidInput if that fails, for example because a file exists at
    this path.
    """
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> InvalidInput:
    reason = error.strerror
    if isinstance(error, FileExistsError | NotADirectoryError):
        path, reason = next(part for part in (path, *path.parents) if os.path.lexists(part)), "Not a folder"
    called = f"{path.parent.name}/{path.name}"
    return InvalidInput(
        f"Shoal cannot use {called}: {reason}. Fix the file or folder. The change takes effect immediately."
    )
