"""What errors of SQLite mean: damage, a disk that failed, or something that passes."""

import os
import sqlite3
import time
from pathlib import Path

STORING_FAILED = "Storing failed"
"""How the damage begins that a restart may well mend."""
DISK_LOOK_SECONDS = 2.0
DISK_READ_BYTES = 1 << 20


def disk_failed(error: BaseException | None) -> bool:
    """Whether this error of SQLite means that the disk failed, after which only a new process knows what is stored."""
    return getattr(error, "sqlite_errorcode", 0) in _UNREADABLE


def storing_failed(path: Path, words: str) -> str:
    """Return what to tell of a disk that failed; `words` are its own."""
    return (
        f"{STORING_FAILED}: the disk of {path} reports “{words}”. Look at the disk, then restart Shoal: it checks "
        "the database when it starts."
    )


def disk_words(path: Path) -> str:
    """Return what the disk says where the files of a database cannot be read; empty where they can. Blocking.

    SQLite calls it damage when the disk fails to read a page, after which a restart may find all of it whole. The files
    stay open: closing them would drop the locks that SQLite has on them in this process.
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
    """Whether this error of SQLite means that what is stored cannot be read. Statements are Shoal's own: what one does
    not find was there once."""
    if _is_unreadable_text(error):
        return True
    if isinstance(error, sqlite3.OperationalError) and str(error).startswith(("no such table", "no such column")):
        return True
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or disk_failed(error)


def why(error: BaseException) -> str:
    """What the error says, without what is stored."""
    return "it holds text that is not UTF-8" if _is_unreadable_text(error) else str(error)


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
"""Failures of a disk after which the file is not what it should be; a full one fails in other ways."""
