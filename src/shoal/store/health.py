"""Detection of SQLite databases that are damaged, were replaced, or have lost commits that were only in the -wal.

problem                                       sign                                         when it is checked
-------------------------------------------   ------------------------------------------   -----------------------
another program changed pages                 a statement fails                            at each statement
another program changed pages                 the integrity check finds damage             daily, and after an
                                                                                           unclean stop
a file was removed, moved, overwritten or     the device, inode, mark or -wal length       at each commit and every
truncated while in use                        has changed                                  few seconds
another program wrote to the database file    the file's time changed although SQLite      at each commit and every
                                              copied nothing, and a check finds damage     few seconds
the -wal was removed, truncated or changed    the mark is not 0 but the -wal is missing,   at startup
between two runs                              or -shm requires more frames
the database was removed or emptied           a -wal or an empty -used exists              at startup
an older copy was put next to a newer -wal    -used confirms a later mark                  at startup
the database is a replacement, and the        the rescued copy is newer than the           at startup
rescued original was not put back             database

A -journal file is not damage. It exists if a process was killed while it switched a new or restored database to WAL
mode. The next start rolls that change back.

The mark is `pragma application_id`. Each process sets a new mark when it opens the database. It sets another one
whenever the current mark has been copied from the -wal into the database file, so an older copy never has the
current mark. The mark is 0 if the database was closed after the complete -wal was copied. The file -used lists each
mark twice: before it is written, and when it is durable in the database file. The mark is read from the database
file itself, so it identifies the file's content and is copied with it. The home lock allows only one process to
write. A mark that this process did not set therefore belongs to another file.

A clean stop is recorded last, after SQLite has closed the file. The database file and the empty -used then get the
same modification time, which any later write to the file changes. The times also differ after a kill, a power cut or
a change by another program.

After damage is detected, Shoal writes nothing more. A read-only connection (`_guard`) is closed last, which prevents
SQLite from copying the -wal into the database file and from removing it. That connection also keeps removed or moved
files open, and Shoal saves their content through it.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal.kernel.errors import StoreCorrupt
from shoal.kernel.regular_files import read_regular, regular_only
from shoal.store.sqlite_checks import (
    CLOSED_MARK,
    WHAT_TO_DO,
    ReadThrough,
    check_file,
    connect_read_only,
    copy_connection,
)
from shoal.store.sqlite_errors import storing_failed
from shoal.store.wal_index import INDEX, WalIndex, parse_index, read_index, salts_of

log = logging.getLogger(__name__)

START_CHECK_SECONDS = 1.0
"""Maximum duration of the check at startup, in seconds. A file that takes longer is checked in the background."""
BACKGROUND_CHECK_SECONDS = 120.0
"""Maximum duration of the daily check, in seconds. The check delays the reuse of the -wal."""
RESCUES_MAX = 100
MARKS_MAX = 128

_MARK = struct.Struct(">I")
_MARK_OFFSET = 68
_WAL_VERSION_OFFSET = 18


class Health:
    """The known problems of a database. Thread-safe."""

    def __init__(self) -> None:
        self.damage = ""
        """The problem and its remedy in full sentences, or empty. Once set, it does not change until the process ends.
        """
        self.trouble = ""
        """Reason why the disk rejected a write, or empty. Cleared when the owner is notified."""

    def report(self, damage: str) -> StoreCorrupt:
        """Record and log the damage, unless damage is already known. Return the error to raise."""
        if not self.damage:
            self.damage = damage
            log.critical("%s", damage)
        return StoreCorrupt(self.damage)

    def check(self) -> None:
        if self.damage:
            raise StoreCorrupt(self.damage)

    async def look_through(self, seconds: float) -> None:
        """Check the whole database for at most this many seconds, at low priority. Does nothing for a database
        server.
        """


class FileHealth(Health):
    """Monitors the files of one SQLite database, for the process that writes to it.

    Call `admit`, open the writer's connection, and call `begin`. Then call `check` at each commit, `end` before the
    writer's connection closes, and `release` afterwards.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self._shm = path.with_name(f"{path.name}-shm")
        self._used = _used(path)
        self._files: dict[Path, int] = {}  # must stay open: closing a file drops SQLite's locks on it
        self._known: dict[str, tuple[int, int]] = {}
        self._wal_at = str(self._wal)
        self._mark: int | None = None
        self._next_mark: int | None = None  # written, but possibly not yet checkpointed from the WAL
        self._marking = threading.Lock()
        self._written: tuple[int, WalIndex] | None = None
        self._is_foreign = False
        self._guard: sqlite3.Connection | None = None
        self._has_ended = False
        self._reporting = threading.Lock()

    def admit(self, *, accept_loss: bool = False) -> None:
        """Check the files before anything is written. Raises StoreCorrupt, OSError or sqlite3.Error.

        With `accept_loss`, commits missing from the -wal are not an error. Damaged pages are always an error.
        """
        if not accept_loss:
            self._refuse_beside_rescued()
        self._files[self._path] = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        wal_bytes = _look_at(self._wal)[1]
        if not os.fstat(self._files[self._path]).st_size:
            was_closed = self._used.exists() and not _look_at(self._used)[1]
            if (wal_bytes or was_closed) and not accept_loss:
                left = self._wal if wal_bytes else self._used
                raise StoreCorrupt(
                    f"{self._path} is missing or empty, but {left.name} exists. {_PUT_BACK} To start with an empty "
                    f"database, remove {left.name}."
                )
            return
        if not wal_bytes and self._path.with_name(f"{self._path.name}-journal").exists():
            # A killed process left a -journal. Let SQLite roll it back now, because the read-only checks cannot.
            uri = f"{self._path.absolute().as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
                connection.execute("select count(*) from sqlite_master").fetchone()
        if wal_bytes and self._is_older_copy():
            if not accept_loss:
                raise StoreCorrupt(f"{self._path} is older than {self._wal.name} and does not match it. {_PUT_BACK}")
            self._wal.rename(self._wal.with_name(f"{self._wal.name}.left"))
            self._shm.unlink(missing_ok=True)
            wal_bytes = 0
        before, salts = read_index(self._shm) if wal_bytes else None, salts_of(self._wal)
        if accept_loss or wal_bytes or not self._is_as_it_was_closed():
            problem = check_file(self._path, "quick_check", START_CHECK_SECONDS).problem
            if problem:
                raise StoreCorrupt(f"{self._path} is damaged: {problem}. {WHAT_TO_DO}")
        if not accept_loss:
            refuse_without_wal(self._path, self._marked(), wal_bytes)
        after = read_index(self._shm)
        if before is not None and salts in (before.salts, b"") and not accept_loss:
            last_frame = after.last_frame if after is not None else 0
            if last_frame < before.frames_needed:
                raise StoreCorrupt(
                    f"{self._path} lacks the latest writes: only {last_frame} of {before.last_frame} pages in "
                    f"{self._wal.name} are readable. {_PUT_BACK}"
                )

    def _refuse_beside_rescued(self) -> None:
        """Raise StoreCorrupt if a rescued copy is newer than the database."""
        written_at = max(_look_at(self._path)[2], _look_at(self._wal)[2])
        for saved in sorted(self._path.parent.glob(f"{self._path.name}.rescued-*")):
            if _look_at(saved)[2] > written_at:
                raise StoreCorrupt(
                    f"Shoal saved {saved} when {self._path} was removed or replaced while in use. The saved file "
                    f"may contain more data. To use the saved file, remove {self._path.name}, {self._wal.name} and "
                    f"{self._shm.name}, and rename the saved file to {self._path.name}. To discard the saved file, "
                    "move it to another folder."
                )

    def _is_older_copy(self) -> bool:
        """Return True if the file's mark is older than the last mark that -used confirms."""
        try:
            marks = [mark for (mark,) in _MARK.iter_unpack(read_regular(self._used))]
        except (FileNotFoundError, struct.error):
            return False
        confirmed = max((at for at, mark in enumerate(marks) if mark in marks[:at]), default=0)
        return bool(confirmed) and self._marked() in {CLOSED_MARK, *marks[:confirmed]} - {marks[confirmed]}

    def begin(self, writer: sqlite3.Connection) -> None:
        """Mark the database as in use and start to watch its files. Raises sqlite3.Error or OSError."""
        mark = secrets.randbelow(2**31 - 1) + 1
        writer.execute(f"pragma application_id = {mark}")
        writer.execute("pragma wal_checkpoint(passive)").fetchone()
        self._guard = connect_read_only(self._path)
        self._guard.execute("select count(*) from sqlite_master").fetchone()
        self._files[self._shm] = os.open(self._shm, os.O_RDONLY | os.O_CLOEXEC)
        self._files[self._used] = regular_only(str(self._used), os.O_RDWR | os.O_CREAT, 0o600)
        self._announce(mark)
        if self._marked() == mark:  # otherwise a reader in another process prevents the copy
            self._mark = mark
            self._confirm(mark)
        paths = str(self._path), self._wal_at, str(self._shm)
        self._known = {path: _look_at(path)[0] for path in paths}

    def check(self) -> None:
        """Raise StoreCorrupt if a problem is known or another program changed the files.

        Takes a few microseconds. If the database file was written, but not from the -wal, the next call checks its
        content. This call does not, because SQLite may still be copying.
        """
        if self.damage or not self._known:
            return super().check()
        try:
            self._look()
        except OSError as error:
            raise self.report(storing_failed(self._path, error.strerror or str(error))) from error

    def _look(self) -> None:
        with self._marking:
            mark = self._marked()
            if mark == self._next_mark and mark is not None and self._mark is not None:
                self._mark, self._next_mark = mark, None
                self._confirm(mark)
            overwritten = self._mark is not None and mark != self._mark
        index = parse_index(
            os.pread(self._files[self._shm], INDEX.size, 0)
        )  # read the index before the -wal's length, which only grows
        marks = {path: _look_at(path) for path in self._known}
        lost = [path for path, known in self._known.items() if marks[path][0] != known]
        cut = not lost and index is not None and marks[self._wal_at][1] < index.bytes_needed
        problem = ""
        if not lost and not overwritten and not cut:
            written_at, before = os.fstat(self._files[self._path]).st_mtime_ns, self._written
            self._written = (written_at, index) if index is not None else None
            is_foreign, self._is_foreign = self._is_foreign, False
            if is_foreign:
                problem = check_file(self._path, "quick_check", START_CHECK_SECONDS).problem
            elif before is not None and index is not None:
                self._is_foreign = before[0] != written_at and not index.may_have_copied(before[1])
            if not problem:
                return None
        with self._reporting:
            if not self.damage:
                raise self.report(self._describe(lost, overwritten=overwritten, problem=problem))
        return super().check()

    def renew_mark(self, writer: sqlite3.Connection) -> None:
        """Write a new mark, which reaches the database file at the next WAL checkpoint.

        Does nothing while an earlier mark is only in the -wal. Raises sqlite3.Error or OSError.
        """
        if self._mark is None or self._next_mark is not None or self.damage:
            return
        mark = secrets.randbelow(2**31 - 1) + 1
        with self._marking:
            self._next_mark = mark
            self._announce(mark)
        writer.execute(f"pragma application_id = {mark}")

    def note(self) -> None:
        """Record that a commit is about to be written.

        The commit is only in the -wal until the database file is newer than -used.
        """
        if self._used in self._files:
            now = time.time_ns()
            with contextlib.suppress(OSError):  # SQLite will report a failing disk
                os.utime(self._files[self._used], ns=(now, now))

    async def look_through(self, seconds: float) -> None:
        if self.damage:
            return
        loop = asyncio.get_running_loop()
        check = ReadThrough(self._path, "integrity_check")
        timer = loop.call_later(seconds, check.expire)
        thread = ThreadPoolExecutor(1, "shoal-check")
        try:
            problem = await loop.run_in_executor(thread, check.run_nicely)
        finally:
            timer.cancel()
            check.expire()
            thread.shutdown(wait=False)
        if problem.problem:
            self.report(f"{self._path} is damaged: {problem.problem}. Stop Shoal. {WHAT_TO_DO}")
        elif not problem.is_whole:
            log.info("database check incomplete: time limit reached", extra={"seconds": seconds})

    def end(self, writer: sqlite3.Connection) -> None:
        """Mark the database as closed, unless a problem is known. Raises sqlite3.Error."""
        with contextlib.suppress(StoreCorrupt):
            self.check()
        if not self.damage and self._guard is not None:
            writer.execute(f"pragma application_id = {CLOSED_MARK}")
            self._guard.close()
            self._guard = None
            self._used.write_bytes(b"")
            self._has_ended = True

    def release(self) -> None:
        """Close the files. After a successful `end`, also record a clean stop. Call this after all connections are
        closed.
        """
        if self._guard is not None:
            self._guard.close()
        while self._files:
            os.close(self._files.popitem()[1])
        if self._has_ended:
            self._has_ended = False
            with contextlib.suppress(OSError):  # without the record, the next start checks for damage
                self._record_clean_stop()

    def _record_clean_stop(self) -> None:
        """Give the database file and -used the same modification time. Raises OSError.

        Does nothing if another process uses the files. The time is set 1 ns in the past. Otherwise, a write within the
        same clock tick would not change it.
        """
        if _look_at(self._wal)[1] or _look_at(self._used)[1]:
            return
        status = os.stat(self._path)
        changed_at = status.st_mtime_ns - 1
        os.utime(self._path, ns=(status.st_atime_ns, changed_at))
        os.utime(self._used, ns=(status.st_atime_ns, changed_at))

    def _is_as_it_was_closed(self) -> bool:
        used, used_bytes, used_at = _look_at(self._used)
        is_recorded = used != (0, 0) and not used_bytes and used_at == _look_at(self._path)[2]
        return is_recorded and self._marked() == CLOSED_MARK

    def _confirm(self, mark: int) -> None:
        """Record that the mark is durable in the database file. Later starts reject a file with an earlier mark.
        Raises OSError.
        """
        os.fsync(self._files[self._path])
        self._announce(mark)

    def _announce(self, mark: int) -> None:
        """Append a mark to -used, which keeps the last MARKS_MAX entries. Raises OSError."""
        used, size = self._files[self._used], (MARKS_MAX - 1) * _MARK.size
        os.pwrite(used, os.pread(used, MARKS_MAX * _MARK.size, 0)[-size:] + _MARK.pack(mark), 0)

    def _describe(self, lost: list[str], *, overwritten: bool, problem: str) -> str:
        if overwritten or problem:
            why = f": {problem}" if problem else ""
            return f"{self._path} was overwritten while Shoal was using it{why}. Stop Shoal. {WHAT_TO_DO}"
        if not lost:
            return f"{self._wal} was truncated while Shoal was using it. Stop Shoal. {WHAT_TO_DO}"
        was = "was" if len(lost) == 1 else "were"
        what = f"{', '.join(lost)} {was} removed or replaced while in use."
        saved = self._rescue()
        if saved is None:
            return f"{what} Restore the missing files and restart Shoal. Otherwise, {WHAT_TO_DO}"
        return (
            f"{what} Shoal saved the content as {saved}. Stop Shoal, remove {self._path}, {self._wal.name} and "
            f"{self._shm.name}, rename {saved.name} to {self._path.name}, and start again."
        )

    def _rescue(self) -> Path | None:
        if self._guard is None:
            return None
        for number in range(1, RESCUES_MAX + 1):
            saved = self._path.with_name(f"{self._path.name}.rescued-{number}")
            try:
                os.close(os.open(saved, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            except OSError:
                return None
            try:
                copy_connection(self._guard, saved)
                if not check_file(saved, "integrity_check").problem:
                    return saved
            except sqlite3.Error as error:
                log.warning("saving removed database failed", extra={"why": str(error)})
            saved.unlink(missing_ok=True)
            return None
        return None

    def _marked(self) -> int | None:
        """Read the mark from the file itself, not through SQLite. Return None if the file is too short."""
        mark = os.pread(self._files[self._path], _MARK.size, _MARK_OFFSET)
        return _MARK.unpack(mark)[0] if len(mark) == _MARK.size else None


def refuse_without_wal(path: Path, mark: int | None = None, wal_bytes: int | None = None) -> None:
    """Raise StoreCorrupt if the database was in use and the -wal with the last commits is missing.

    Another program may have opened and closed the database in the meantime. SQLite then copied the -wal and removed
    it, and the database file is newer than the last commit.
    """
    wal = path.with_name(f"{path.name}-wal")
    if mark is None:
        with path.open("rb") as file:
            file.seek(_MARK_OFFSET)
            found = file.read(_MARK.size)
        mark = _MARK.unpack(found)[0] if len(found) == _MARK.size else CLOSED_MARK
    if mark == CLOSED_MARK or (_look_at(wal)[1] if wal_bytes is None else wal_bytes):
        return
    _, used_bytes, used_at = _look_at(_used(path))
    lacks_the_last = used_at > _look_at(path)[2]
    if not used_bytes:  # A copy of the file alone needs its -wal. Copies made by `vacuum into` are complete.
        with path.open("rb") as file:
            lacks_the_last = file.read(_WAL_VERSION_OFFSET + 1)[_WAL_VERSION_OFFSET:] == b"\2"
    if lacks_the_last:
        raise StoreCorrupt(
            f"{path} lacks the latest writes: it was copied or replaced while in use, and its {wal.name} is "
            f"missing. {_PUT_BACK}"
        )


def _used(path: Path) -> Path:
    """Return the path of the -used file.

    The file exists if the database has ever been opened. Its modification time is the time of the last commit. It is
    empty while the database is not in use.
    """
    return path.with_name(f"{path.name}-used")


_PUT_BACK = (
    f"Restore the missing file if you can. Otherwise, {WHAT_TO_DO} `shoal restore --accept-loss` continues without "
    "the missing data."
)


def _look_at(path: str | Path) -> tuple[tuple[int, int], int, int]:
    """Return a file's device and inode, its length, and its modification time in nanoseconds. All values are 0 if the
    file does not exist.
    """
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0), 0, 0
    return (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns
