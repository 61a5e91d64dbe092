"""SQLite: one writer thread with group commit, a few readers on snapshots.

Every script handed in while a commit is on its way joins the next one, so that fifty threads cost one fsync. A script
that fails is rolled back alone, by its savepoint; when the commit itself fails, every script of the batch does.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from shoal.domain.errors import (
    InvalidInput,
    ShoalError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
)
from shoal.store.script import Row, Script
from shoal.store.search import spread
from shoal.store.statements import migrations, statements

BATCH_SCRIPTS_MAX = 256
READERS_MAX = 2
BUSY_SECONDS = 10.0
CACHE_KIB = 512
"""Pages each connection keeps; the operating system keeps them anyway, and a long journal fills what it is given."""

T = TypeVar("T")
_Expected = (sqlite3.Error, ShoalError, msgspec.MsgspecError, UnicodeError, OverflowError)


class _Done(NamedTuple):
    value: object = None
    error: BaseException | None = None


_Reply: TypeAlias = Callable[[_Done], None]


class _Job(NamedTuple):
    script: Script[object]
    reply: _Reply


class SqliteDriver:
    """Runs scripts on one database file. `synchronous` is FULL (survives a power cut) or NORMAL."""

    def __init__(self, path: Path, *, synchronous: str = "FULL", read_only: bool = False) -> None:
        """Open the file, making and migrating it as needed.

        Raises StoreReadOnly, StoreCorrupt, StoreNewer or StoreFull, each saying what to do.
        """
        self._path = path
        self._synchronous = synchronous
        self._read_only = read_only
        self._sql = statements("sqlite")
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS_MAX, "shoal-read")
        self._reader_connections: list[sqlite3.Connection] = []
        if not self._read_only and not path.exists():
            with contextlib.suppress(OSError):  # what is wrong, SQLite tells in a moment
                path.touch(mode=0o600)
        with _translated(path):
            self._writer = self._connect()
            if not read_only:
                _migrate(self._writer, path)
        self._thread = threading.Thread(target=self._write_forever, name="shoal-store", daemon=True)
        self._thread.start()

    async def write(self, script: Script[T]) -> T:
        """Run a script in the next group commit; durable on return. Cancelling does not undo it."""
        if self._closed:
            raise StoreUnavailable("The database is closed: Shoal is stopping.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(done: _Done) -> None:
            if future.done():
                return
            if done.error is not None:
                future.set_exception(done.error)
            else:
                future.set_result(done.value)  # pyright: ignore[reportArgumentType]

        def reply(done: _Done) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(settle, done)

        self._jobs.put(_Job(script, reply))  # pyright: ignore[reportArgumentType]
        return await future

    async def read(self, script: Script[T]) -> T:
        """Run a script of reads in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, script)

    async def close(self) -> None:
        """Commit what was handed in, then close every connection."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        self._readers.shutdown(wait=True)
        for connection in self._reader_connections:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rwc"
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            timeout=BUSY_SECONDS,
        )
        if not self._read_only:
            connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {self._synchronous}")
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        connection.create_function("spread", 1, spread, deterministic=True)
        return connection

    def _read(self, script: Script[T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        with _translated(self._path):
            if connection is None:
                connection = self._connect()
                self._local.connection = connection
                self._reader_connections.append(connection)
            connection.execute("begin")
            try:
                return self._drive(connection, script)
            finally:
                connection.execute("rollback")

    def _write_forever(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                batch = [job]
                open_ended = self._gather(batch)
                self._commit(batch)
                if not open_ended:
                    break
        finally:
            self._closed = True
            self._refuse_late()
            self._writer.close()

    def _refuse_late(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                late = self._jobs.get_nowait()
                if late is not None:
                    late.reply(_Done(error=StoreUnavailable("The database is closed: Shoal is stopping.")))

    def _gather(self, batch: list[_Job]) -> bool:
        while len(batch) < BATCH_SCRIPTS_MAX:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return True
            if job is None:
                return False
            batch.append(job)
        return True

    def _commit(self, batch: list[_Job]) -> None:
        stopped = _Done(error=StoreUnavailable("The database writer stopped. The log says why; restart Shoal."))
        outcomes = [stopped] * len(batch)
        try:
            with _translated(self._path):
                self._writer.execute("begin immediate")
                done = [self._attempt(job) for job in batch]
                self._writer.execute("commit")
            outcomes = done
        except StoreError as error:
            if self._writer.in_transaction:
                self._writer.execute("rollback")
            outcomes = [_Done(error=error)] * len(batch)
        finally:
            for job, outcome in zip(batch, outcomes, strict=True):
                job.reply(outcome)

    def _attempt(self, job: _Job) -> _Done:
        self._writer.execute("savepoint script")
        try:
            value = self._drive(self._writer, job.script)
        except _Expected as error:
            if not self._writer.in_transaction:  # SQLite gave the whole transaction up (disk full, I/O error)
                raise
            self._writer.execute("rollback to script")
            self._writer.execute("release script")
            return _Done(error=_translate(error, self._path))
        self._writer.execute("release script")
        return _Done(value)

    def _drive(self, connection: sqlite3.Connection, script: Script[T]) -> T:
        rows: list[Row] | None = None
        try:
            while True:
                step = next(script) if rows is None else script.send(rows)
                rows = connection.execute(self._sql[step.name], step.params).fetchall()
        except StopIteration as done:
            return done.value


@contextlib.contextmanager
def _translated(path: Path):
    try:
        yield
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        raise _translate(error, path) from error


def _translate(error: BaseException, path: Path) -> BaseException:
    if isinstance(error, UnicodeError | OverflowError):
        return InvalidInput(f"This cannot be stored: {error}. Send valid Unicode and numbers below 2^63.")
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    found = _MEANING.get(code)
    if found is None:
        return StoreError(f"The database {path.name} failed: {error}.")
    kind, words = found
    return kind(words.format(path=path))


_MEANING: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: (StoreFull, "The disk that holds {path} is full. Free some space, then try again."),
    sqlite3.SQLITE_IOERR: (StoreFull, "The disk that holds {path} failed or is full. Check it, then try again."),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, "{path} cannot be written. Check the owner and rights of the directory."),
    sqlite3.SQLITE_CANTOPEN: (StoreReadOnly, "{path} cannot be opened. Check that its directory exists and is yours."),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "{path} cannot be opened. Check its owner and rights."),
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, "{path} is damaged. Move it away and run `shoal restore` with a backup."),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "{path} is not a database. Move it away, or restore a backup."),
    sqlite3.SQLITE_BUSY: (StoreUnavailable, "{path} is locked by another program. Close it, then try again."),
}


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    steps = migrations("sqlite")
    connection.execute("begin exclusive")
    try:
        version = int(connection.execute("pragma user_version").fetchone()[0])
        if version > len(steps):
            raise StoreNewer(f"{path} was written by a newer Shoal (schema {version}). Install that version to use it.")
        for number, script in steps[version:]:
            for statement in _split(script):
                connection.execute(statement)
            connection.execute(f"pragma user_version = {number}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _split(script: str) -> list[str]:
    found: list[str] = []
    pending = ""
    for piece in script.split(";"):
        pending += piece + ";"
        if sqlite3.complete_statement(pending) and pending.strip(" \n;"):
            found.append(pending)
            pending = ""
    return found
