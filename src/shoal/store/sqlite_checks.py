"""Open a database to read it, look through it for damage, and copy it."""

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
"""The `application_id` of a database that is closed, with all of the -wal in it."""
BACKGROUND_NICENESS = 19
WHAT_TO_DO = "`shoal restore` names the newest backup and says how to go on."

CheckKind: TypeAlias = Literal["quick_check", "integrity_check"]
"""Of the whole check's time the quick one, which does not compare indexes with their tables, takes a sixth."""


def refuse_what_is_no_file(path: Path) -> None:
    """Raise StoreCorrupt where a folder or a pipe lies in the database's place, or a link that leads nowhere."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return
    except OSError:
        is_file = False
    if not is_file:
        raise StoreCorrupt(f"{path} is no file. Move it away; {WHAT_TO_DO}")


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Raises StoreCorrupt where no file lies there, sqlite3.Error."""
    refuse_what_is_no_file(path)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


class Checked(NamedTuple):
    """What a look through a database found: `problem` is empty where nothing is wrong.

    `is_whole` is False where the time was up before all of it was looked at.
    """

    problem: str
    is_whole: bool


class ReadThrough:
    """A look through a database on a connection of its own, which another thread may end."""

    def __init__(self, path: Path, kind: CheckKind) -> None:
        self._connection = connect_read_only(path)
        self._kind = kind
        self._is_expired = False

    def expire(self) -> None:
        self._is_expired = True
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            self._connection.interrupt()

    def run(self) -> Checked:
        """Look, and close the connection."""
        try:
            found = str(self._connection.execute(f"pragma {self._kind}(1)").fetchone()[0])
            if self._is_expired:  # what it had not looked at yet may be told as missing
                return Checked("", False)
            return Checked("" if found == "ok" else found, True)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error):
                return Checked(why(error), True)
            if self._is_expired:
                return Checked("", False)
            raise
        finally:
            self._connection.close()

    def run_nicely(self) -> Checked:
        """The same at the lowest priority, for a thread of its own."""
        if sys.platform == "linux":  # elsewhere the priority is the whole process's
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)
        return self.run()


def check_file(path: Path, kind: CheckKind, seconds: float = 0.0) -> Checked:
    """Look through a database for at most so many seconds (0: however long it takes).

    Raises sqlite3.Error where it cannot be opened for another reason than damage.
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
    """Copy what a connection sees into a file, which is a closed database then. Raises sqlite3.Error."""
    writing = sqlite3.connect(target)
    try:
        reading.backup(writing)
        writing.execute("pragma journal_mode = delete")  # one file, until it is used
        writing.execute(f"pragma application_id = {CLOSED_MARK}")
    finally:
        writing.close()
