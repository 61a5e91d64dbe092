"""Classification of SQLite errors: damage, a failed disk, or a temporary problem."""

import os
import sqlite3
import time
from pathlib import Path

STORING_FAILED = "Storing failed"
"""Prefix of damage messages for problems that a restart may resolve."""
DISK_LOOK_SECONDS = 2.0
DISK_READ_BYTES = 1 << 20


def disk_failed(error: BaseException | None) -> bool:
    """Return True if the error means that the disk failed.

    After that, only a new process can find out which data is stored.
    """
    return getattr(error, "sqlite_errorcode", 0) in _UNREADABLE


def storing_failed(path: Path, words: str) -> str:
    return (
        f"{STORING_FAILED}: the disk that holds {path} reported “{words}”. Check the disk, then restart "
        "Shoal, which checks the database."
    )


def disk_words(path: Path) -> str:
    """Read the database's files and return the disk's error, or an empty string. Blocks for up to DISK_LOOK_SECONDS.

    SQLite reports damage if the disk fails to read a page, although the database may be intact after a restart. The
    files stay open, because closing them would drop this process's SQLite locks on them.
    """
    until = time.monotonic() + DISK_LOOK_SECONDS
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            at = 0
            while time.monotonic() < until and (read := len(os.pread(opened, DISK_READ_BYTES, at))):
                at += read
        except FileNotFoundError:
            continue
        except OSError as error:
            return error.strerror or str(error)
    return ""


def is_damage(error: BaseException | None) -> bool:
    """Return True if the error means damage.

    A missing table or column is also damage, because all statements are Shoal's own.
    """
    if _is_unreadable_text(error):
        return True
    if isinstance(error, sqlite3.OperationalError) and str(error).startswith(("no such table", "no such column")):
        return True
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or disk_failed(error)


def why(error: BaseException) -> str:
    """Return the error's text without stored data."""
    return "it contains text that is not UTF-8" if _is_unreadable_text(error) else str(error)


def _is_unreadable_text(error: BaseException | None) -> bool:
    return isinstance(error, UnicodeDecodeError) or (
        isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")
    )


_UNREADABLE = frozenset(
    {
        sqlite3.SQLITE_IOERR_READ,
        sqlite3.SQLITE_IOERR_SHORT_READ,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_CORRUPTFS,
        sqlite3.SQLITE_IOERR_DATA,
    }
)
"""Disk errors that leave the file in an unknown state. A full disk causes different errors."""
