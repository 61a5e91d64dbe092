"""The SQLite driver: one writer thread with group commit, and a few reader threads on snapshots.

Rows that a turn looks up by key are read on the event loop. They are in memory, and switching threads takes ten times
as long as the read.

Scripts that are submitted during a commit join the next commit, so fifty threads need only one fsync. The writer
receives all scripts of one event loop iteration together and returns their outcomes together, because switching threads
takes longer than a statement.

A failing script does not affect the other scripts in its batch. If it has changed rows, the transaction is rolled back,
and the queries of earlier scripts in the batch are run again. They see the same rows and return the same results. This
is rare. A savepoint per script would slow down every script, especially updates of the search index. If the commit
fails, all scripts of the batch fail.
"""

import asyncio
import contextlib
import errno
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from shoal.kernel.errors import (
    InvalidInput,
    ShoalError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from shoal.store.driver import (
    PARAMETER,
    Batch,
    Param,
    Query,
    Row,
    Script,
    is_single,
    migrations,
    refuse_other_schemas,
    statement,
)
from shoal.store.health import FileHealth, Health, refuse_without_wal
from shoal.store.search import places, spread
from shoal.store.sqlite_checks import WHAT_TO_DO, connect_read_only, refuse_what_is_no_file
from shoal.store.sqlite_errors import disk_failed, disk_words, is_damage, storing_failed, why

BATCH_SCRIPTS_MAX = 256
READERS_MAX = 2
BUSY_SECONDS = 10.0
CLOSED = "The database is closed: Shoal is stopping."
LOOKED_UP = frozenset({"thread_held", "setting_get", "threads_at_work", "processes_running"})
"""Queries that run on the event loop instead of a reader thread. They read only a few rows by key, or only the rows of
running turns and processes.
"""
CACHE_KIB = 512
"""Page cache of each connection. It is small because the operating system also caches the file."""

T = TypeVar("T")

_Statement: TypeAlias = tuple[str, Callable[[Mapping[str, Param]], Sequence[Param]]]
"""SQL, and a function that converts named parameters to positional parameters."""


class _Done(NamedTuple):
    value: object = None
    error: BaseException | None = None


class _Job(NamedTuple):
    script: Script[object]
    future: asyncio.Future[object]


class SqliteDriver:
    """Driver for one database file. Only one event loop at a time may use it.

    `synchronous` is FULL, which survives a power cut, or NORMAL, which may lose the last commits in a power cut.
    """

    def __init__(
        self, path: Path, *, synchronous: str = "FULL", read_only: bool = False, accept_loss: bool = False
    ) -> None:
        """Open the file, and create or migrate it if needed.

        With `accept_loss`, the loss of the last commits is not an error. Raises StoreReadOnly, StoreCorrupt,
        StoreNewer, StoreUnreleased or StoreFull. Each message says what to do.
        """
        self._path = path
        self.health: Health = Health()
        self._files: FileHealth | None = None
        self._synchronous = synchronous
        self._read_only = read_only
        self._handing: list[_Job] = []
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._waiting: deque[_Job] = deque()
        self._closed = False
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS_MAX, "shoal-read")
        self._reader_connections: list[sqlite3.Connection] = []
        self._looking: sqlite3.Connection | None = None
        refuse_what_is_no_file(path)
        try:
            with contextlib.ExitStack() as failing:
                if not read_only:
                    self.health = self._files = FileHealth(path)
                    failing.callback(self._files.release)
                    with contextlib.suppress(OSError):  # SQLite will report the problem
                        self._files.admit(accept_loss=accept_loss)
                else:
                    with contextlib.suppress(OSError):
                        refuse_without_wal(path)
                self._writer = self._connect()
                failing.callback(self._writer.close)
                self._cursor = self._writer.cursor()
                if self._files is not None:
                    migrate(self._writer, path)
                    self._files.begin(self._writer)
                else:
                    refuse_unmigrated(self._writer, path)
                failing.pop_all()
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise _translate(error, path) from error
        self._thread = threading.Thread(target=self._write_forever, name="shoal-store", daemon=True)
        self._thread.start()

    async def write(self, script: Script[T]) -> T:
        """Run a script in the next group commit, which is durable when this returns. Cancellation does not undo it.

        Raises StoreCorrupt without running the script if `health` has recorded damage.
        """
        if self._closed:
            raise StoreUnavailable(CLOSED)
        if self.health.damage:
            self.health.check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._handing or self._handing[-1].future.get_loop() is not loop:
            loop.call_soon(self._hand_in)
        self._handing.append(_Job(script, future))  # pyright: ignore[reportArgumentType]
        try:
            return await future
        finally:
            del future  # avoids a reference cycle between the future and its exception's traceback

    async def read(self, script: Script[T]) -> T:
        """Run a read-only script in a reader thread. The queries in LOOKED_UP run on the event loop."""
        if self._closed:
            raise StoreUnavailable(CLOSED)
        first = next(script) if is_single(script) else None
        if first is None or first.queries[0].name not in LOOKED_UP:
            return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, script, first)
        with self._noticing():
            if self._looking is None:
                self._looking = self._connect()
                self._reader_connections.append(self._looking)
            return self._drive(self._looking.cursor(), script, [], first)

    async def close(self) -> None:
        if self._closed:
            return
        self._hand_in()
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        self._readers.shutdown(wait=True)
        for connection in self._reader_connections:
            connection.close()
        if self._files is not None:
            self._files.release()

    def _hand_in(self) -> None:
        jobs, self._handing = self._handing, []
        if jobs:
            self._jobs.put(jobs)
            if self._closed:
                self._refuse_late()

    def _connect(self) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rwc"
        connection = connect(f"{self._path.absolute().as_uri()}?mode={mode}")
        if not self._read_only:
            connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {self._synchronous}")
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        connection.execute("pragma cache_spill = off")  # a batch can change more pages than fit into the cache
        connection.execute("pragma temp_store = memory")  # each `returning` creates a temporary table
        return connection

    def _read(self, script: Script[T], first: Batch | None = None) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        with self._noticing():
            if connection is None:
                connection = self._connect()
                self._local.connection = connection
                self._reader_connections.append(connection)
            connection.execute("begin")
            try:
                return self._drive(connection.cursor(), script, [], first)
            finally:
                connection.execute("rollback")

    def _write_forever(self) -> None:
        try:
            while self._gather():
                self._commit([self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SCRIPTS_MAX))])
                if self._files is not None:
                    with contextlib.suppress(sqlite3.Error, OSError):  # the next commit will report the problem
                        self._files.renew_mark(self._writer)
        finally:
            self._closed = True
            self._refuse_late()
            if self._files is not None:
                with contextlib.suppress(sqlite3.Error):  # on failure, the next start reads the -wal again
                    self._files.end(self._writer)
            self._writer.close()

    def _gather(self) -> bool:
        """Wait for submitted scripts. Return False if the driver is closing and no script is left."""
        ending = False
        while not ending and not (self._waiting and self._jobs.empty()):
            jobs = self._jobs.get()
            ending = jobs is None
            self._waiting.extend(jobs or ())
        if ending and self._waiting:
            self._jobs.put(None)
        return bool(self._waiting)

    def _refuse_late(self) -> None:
        late = [*self._waiting]
        self._waiting.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                late += self._jobs.get_nowait() or ()
        refused = _Done(error=StoreUnavailable(CLOSED))
        _reply((job, refused) for job in late)

    def _commit(self, batch: list[_Job]) -> None:
        stopped = _Done(
            error=StoreUnavailable("The database writer stopped. See the log for the reason, then restart Shoal.")
        )
        outcomes = [stopped] * len(batch)
        try:
            self.health.check()
            with self._noticing():
                if self._files is not None:
                    self._files.note()
                self._writer.execute("begin immediate")
                executed: list[Query] = []
                done = [self._attempt(job, executed) for job in batch]
                self._writer.execute("commit")
            self.health.check()  # a commit to a removed file is lost
            outcomes = done
        except StoreError as error:
            if self._writer.in_transaction:
                self._writer.execute("rollback")
            outcomes = [_Done(error=error)] * len(batch)
        except OSError as error:  # the -wal or -shm file cannot be written
            if self._writer.in_transaction:
                self._writer.execute("rollback")
            words = DISK_REFUSES.format(path=self._path, why=error.strerror)
            refused = self.health.report(words) if error.errno == errno.EIO else StoreReadOnly(words)
            self.health.trouble = words
            outcomes = [_Done(error=refused.with_traceback(None))] * len(batch)
        finally:
            _reply(zip(batch, outcomes, strict=True))

    def _attempt(self, job: _Job, executed: list[Query]) -> _Done:
        changes, before = self._writer.total_changes, len(executed)
        try:
            return _Done(self._drive(self._cursor, job.script, executed))
        except Exception as error:  # even a bug must fail only its caller, so other writes continue
            if not self._writer.in_transaction or is_damage(error):  # SQLite itself rolled back (disk full, I/O error)
                raise
            del executed[before:]
            if self._writer.total_changes != changes:
                self._writer.execute("rollback")
                self._writer.execute("begin immediate")
                for step in executed:
                    self._execute(self._cursor, step)
            translated = _translate(error, self._path)
            if isinstance(translated, ShoalError):  # the traceback would keep the whole batch in memory
                translated = translated.with_traceback(None)
            return _Done(error=translated)

    @contextlib.contextmanager
    def _noticing(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            if is_damage(error) and self._read_only:
                with contextlib.suppress(sqlite3.Error):  # a newer Shoal may have migrated the open database
                    refuse_unmigrated(self._writer, self._path)
            translated = _translate(error, self._path)
            if is_damage(error) and not self.health.damage and (words := disk_words(self._path)):
                translated = StoreCorrupt(storing_failed(self._path, words))
            if isinstance(translated, StoreFull | StoreReadOnly):
                self.health.trouble = str(translated)
            raise (self.health.report(str(translated)) if is_damage(error) else translated) from error

    def _drive(self, cursor: sqlite3.Cursor, script: Script[T], executed: list[Query], first: Batch | None = None) -> T:
        try:
            batch = first or next(script)
            while True:
                rows = [self._execute(cursor, step) for step in batch.queries]
                executed += batch.queries
                batch = script.send(rows)
        except StopIteration as done:
            return done.value

    def _execute(self, cursor: sqlite3.Cursor, step: Query) -> list[Row]:
        rows: list[Row] = []
        for sql, values in _statements(step.name):
            rows = cursor.execute(sql, values(step.params)).fetchall()
        return rows


@cache
def _statements(query: str) -> tuple[_Statement, ...]:
    return tuple(map(_by_place, _split(statement(query, "sqlite"))))


def _by_place(sql: str) -> _Statement:
    """Convert named parameters to positional ones, which bind three times as fast."""
    names: list[str] = PARAMETER.findall(sql)

    def few(params: Mapping[str, Param]) -> Sequence[Param]:
        return [params[name] for name in names]

    return PARAMETER.sub("?", sql), itemgetter(*names) if len(names) > 1 else few


def _reply(outcomes: Iterable[tuple[_Job, _Done]]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[object], _Done]]] = {}
    for job, outcome in outcomes:
        loops.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, results in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_resolve_futures, results)


def _resolve_futures(results: Sequence[tuple[asyncio.Future[object], _Done]]) -> None:
    for future, (value, error) in results:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


def _translate(error: BaseException, path: Path) -> BaseException:
    if disk_failed(error):
        return StoreCorrupt(storing_failed(path, str(error)))
    if is_damage(error):
        return StoreCorrupt(f"{path} is damaged: {why(error)}. Stop Shoal. {WHAT_TO_DO}")
    if isinstance(error, UnicodeError | OverflowError):
        return InvalidInput(f"Shoal cannot store this value: {error}. Send valid Unicode and numbers below 2^63.")
    if not isinstance(error, sqlite3.Error):
        return error
    unknown = StoreError, "The database {path.name} returned an error: {error}."
    kind, words = _MEANING.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, unknown)
    return kind(words.format(path=path, error=error))


_MEANING: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: (StoreFull, "The disk that holds {path} is full. Free some space, then try again."),
    sqlite3.SQLITE_IOERR: (StoreFull, "The disk that holds {path} failed or is full. Check it, then try again."),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnly,
        "Shoal cannot write {path}. Check the owner and permissions of the directory.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreReadOnly,
        ("Shoal cannot open {path}. Check that the directory exists and belongs to you."),
    ),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "Shoal cannot open {path}. Check its owner and permissions."),
    sqlite3.SQLITE_BUSY: (StoreUnavailable, "{path} is locked by another program. Close that program, then try again."),
    sqlite3.SQLITE_LOCKED: (StoreUnavailable, "{path} is temporarily locked. Try again."),
    sqlite3.SQLITE_PROTOCOL: (StoreUnavailable, "Shoal cannot lock {path}. Check its disk or network share."),
    sqlite3.SQLITE_NOMEM: (
        StoreUnavailable,
        ("Shoal does not have enough memory to use {path}. Free some memory, then try again."),
    ),
}

DISK_REFUSES = (
    "Storing failed: the disk that holds {path} reported “{why}”. Make the disk writable again, then restart Shoal."
)


def connect(database: str) -> sqlite3.Connection:
    """Open a database by URI or `:memory:`, and define the SQL functions that its schema uses. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        database, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=BUSY_SECONDS
    )
    connection.create_function("spread", 1, spread, deterministic=True)
    connection.create_function("places", 1, places, deterministic=True)
    return connection


def migrate(connection: sqlite3.Connection, path: Path, steps: Sequence[tuple[int, str]] = ()) -> None:
    """Migrate a database to the newest schema. `steps` replaces Shoal's migrations.

    Raises StoreNewer, StoreUnreleased or sqlite3.Error, and leaves the database unchanged.
    """
    steps = steps or migrations("sqlite")
    connection.execute("pragma cache_spill = on")  # a migration may rewrite a whole table
    connection.execute("begin exclusive")
    try:
        done = schema_number(connection)
        refuse_schema(done, steps[-1][0], path)
        for number, script in steps:
            if number > done:
                for statement in _split(script):
                    connection.execute(statement)
                connection.execute(f"pragma user_version = {number}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    finally:
        connection.execute("pragma cache_spill = off")


def schema_number(connection: sqlite3.Connection) -> int:
    return int(connection.execute("pragma user_version").fetchone()[0])


def schema_version(database: Path) -> int:
    """Return the number of the database's last migration. Raises StoreError, or StoreCorrupt if the file is damaged."""
    try:
        with contextlib.closing(connect_read_only(database)) as connection:
            return schema_number(connection)
    except sqlite3.OperationalError as error:
        raise StoreError(f"Shoal cannot read {database}: {error}. Check its disk and its permissions.") from error
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(
            f"Shoal cannot read {database}: {error}. Move the file to another folder, and restore a backup."
        ) from error


def refuse_schema(number: int, newest: int, path: Path) -> None:
    refuse_other_schemas(number, newest, str(path), f"move it and {path.name}-* to another folder")


def refuse_unmigrated(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreReadOnly if the schema is older than this version's, because a read-only connection cannot migrate it.

    Raises StoreNewer or StoreUnreleased if this version cannot use the schema.
    """
    number, newest = schema_number(connection), migrations("sqlite")[-1][0]
    refuse_schema(number, newest, path)
    if number < newest:
        raise StoreReadOnly(f"{path} has an older schema. Run `shoal migrate`.")


def _split(script: str) -> list[str]:
    texts: list[str] = []
    pending = ""
    for piece in script.split(";"):
        pending += piece + ";"
        if sqlite3.complete_statement(pending) and pending.strip(" \n;"):
            texts.append(pending)
            pending = ""
    return texts
