"""Read-only connections to a database, checks for damage, and copies."""

import contextlib
import os
import sqlite3
import stat
import sys
import threading
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from shoal.kernel.errors import StoreCorrupt
from shoal.store.sqlite_errors import is_damage, why

CLOSED_MARK = 0
"""The `application_id` of a closed database after the complete -wal was copied into it."""
BACKGROUND_NICENESS = 19
WHAT_TO_DO = "`shoal restore` names the newest backup and explains the next step."

CheckKind: TypeAlias = Literal["quick_check", "integrity_check"]
"""Kinds of checks.

- `quick_check`: does not compare indexes with their tables. Takes a sixth of the time.
- `integrity_check`: checks everything.
"""


def refuse_what_is_no_file(path: Path) -> None:
    """Raise StoreCorrupt if the path exists and is not a regular file."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return
    except OSError:
        is_file = False
    if not is_file:
        raise StoreCorrupt(f"{path} is not a regular file. Move it to another folder. {WHAT_TO_DO}")


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a read-only connection. Raises StoreCorrupt if the path is not a regular file, or sqlite3.Error if it cannot
    be opened.
    """
    refuse_what_is_no_file(path)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


class Checked(NamedTuple):
    """The result of a check. `problem` is empty if no damage was found.

    `is_whole` is False if the time ran out before everything was checked.
    """

    problem: str
    is_whole: bool


class ReadThrough:
    """A check of a database on a separate connection. Another thread can end the check with `expire`."""

    def __init__(self, path: Path, kind: CheckKind) -> None:
        self._connection = connect_read_only(path)
        self._kind = kind
        self._is_expired = False

    def expire(self) -> None:
        self._is_expired = True
        with contextlib.suppress(sqlite3.ProgrammingError):  # the connection is closed
            self._connection.interrupt()

    def run(self) -> Checked:
        """Run the check and close the connection. Raises sqlite3.Error for an error that is not damage."""
        try:
            result = str(self._connection.execute(f"pragma {self._kind}(1)").fetchone()[0])
            if self._is_expired:  # unchecked pages may be reported as missing
                return Checked("", False)
            return Checked("" if result == "ok" else result, True)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error):
                return Checked(why(error), True)
            if self._is_expired:
                return Checked("", False)
            raise
        finally:
            self._connection.close()

    def run_nicely(self) -> Checked:
        """Lower the priority of the current thread, then run the check. Call this in a thread that does nothing
        else.
        """
        if sys.platform == "linux":  # on other systems the priority applies to the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)
        return self.run()


def check_file(path: Path, kind: CheckKind, seconds: float = 0.0) -> Checked:
    """Check a database for at most `seconds`. 0 means no limit.

    Raises sqlite3.Error if the check fails for a reason other than damage.
    """
    check = ReadThrough(path, kind)
    if not seconds:
        return check.run()
    timer = threading.Timer(seconds, check.expire)
    timer.start()
    try:
        return check.run()
    finally:
        timer.cancel()


def copy_connection(reading: sqlite3.Connection, target: Path) -> None:
    """Copy the database that a connection reads to a file, and mark the copy as closed. Raises sqlite3.Error."""
    writing = sqlite3.connect(target)
    try:
        reading.backup(writing)
        writing.execute("pragma journal_mode = delete")  # without -wal and -shm files
        writing.execute(f"pragma application_id = {CLOSED_MARK}")
    finally:
        writing.close()
