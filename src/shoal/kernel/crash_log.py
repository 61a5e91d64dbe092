"""Crash detection: a file records the events in progress, so the next start knows which event crashed the process.

The file is written before and after each event without syncing to disk, because it must survive the process, not the
machine. A process that stops normally removes its entries, so only a crash leaves one. Each entry is a line of fixed
width in its own slot, and adding one costs a single small write.

At its next start, a process moves leftover entries into the database, which counts the crashes of all processes in a
cluster. If an event crashes one process and then the process that took it over, a third process sets it aside.
"""

import asyncio
import fcntl
import hashlib
import os
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.errors import EndedTwice
from shoal.kernel.ports import Settings

STARTS_MAX = 2
"""Number of crashes after which Shoal no longer processes an event."""
ALONE_SECONDS = 10.0
"""Maximum number of seconds that an event runs alone after it has crashed the process. Then the next such event
starts.
"""
ENTRIES_MAX = 10_000
FILES_MAX = 64
"""Maximum number of processes per home directory that detect crashes. Each process uses its own file."""
ENDED_TWICE = "Shoal crashed twice while working on this message and will not try again. Please rephrase it."
SET_ASIDE = "set aside"
DIED_IN = "died in"
"""Settings scope that stores the number of crashes of each event, by the digest of the event's key."""

_KEY_BYTES = 16
_WIDTH = 2 * _KEY_BYTES + 3
_EMPTY = b" " * (_WIDTH - 1) + b"\n"


class SetAside(msgspec.Struct, frozen=True):
    """An event that Shoal no longer processes, because it crashed the process STARTS_MAX times.

    `lane`: thread or channel of the event.
    `told`: whether the owner was notified.
    """

    platform: str
    lane: str
    content: str
    told: bool = False


class CrashLog:
    """Counts how often each event crashed the process. Without a file, crashes are not detected."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._handle = -1
        self._counts: dict[str, int] = {}
        self._shared: dict[str, int] = {}
        self._over: set[str] = set()
        self._settings: Settings | None = None
        self.has_others = False
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._size = 0
        self._alone = asyncio.Lock()

    def open(self) -> None:
        """Open the file and read the entries that an earlier process left.

        A missing or damaged file counts as empty. If another process uses the file, the next numbered file is used.
        """
        if self._file is None or self._handle >= 0:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            for number in range(FILES_MAX):
                file = self._file.with_name(f"{self._file.name}.{number}") if number else self._file
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                handle = os.open(file, flags, 0o600)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                    continue
                except OSError:  # the file system does not support locks
                    pass
                self._handle = handle
                weakref.finalize(self, os.close, handle)
                self._read(os.pread(handle, ENTRIES_MAX * _WIDTH, 0))
                return

    def _read(self, content: bytes) -> None:
        self._size = len(content) // _WIDTH
        for place in range(self._size):
            entry = content[place * _WIDTH : (place + 1) * _WIDTH]
            key, count = entry[: 2 * _KEY_BYTES].decode("ascii", "replace"), entry[2 * _KEY_BYTES + 1 : -1]
            if entry[-1:] == b"\n" and count.isdigit() and key not in self._places:
                self._counts[key], self._places[key] = int(count), place
            else:
                self._free.append(place)

    async def share(self, settings: Settings, *, has_others: bool = False) -> None:
        """Move leftover entries into the database, and read the crashes of other processes. Raises StoreError."""
        self._settings, self.has_others = settings, has_others
        for digest, count in list(self._counts.items()):
            stored: str | None = None
            while not await settings.swap(DIED_IN, digest, stored, str(int(stored or 0) + count)):
                stored = await settings.get(DIED_IN, digest)
            self._drop(digest)
        await self.learn()

    async def learn(self) -> None:
        """Read the crash counts of all processes, and delete the counts of events that finished in this process. Raises
        StoreError.
        """
        if self._settings is None:
            return
        rows = await self._settings.page(DIED_IN, limit=ENTRIES_MAX)
        over, self._over = self._over, set()
        for digest, count in rows:
            if digest in over:
                await self._settings.drop(DIED_IN, digest, count)
        self._shared = {digest: int(count) for digest, count in rows if digest not in over}

    async def forget_over(self) -> None:
        if self._over:
            await self.learn()

    async def set_aside(self, aside: SetAside, clock: Clock) -> None:
        """Store an event that was set aside, to notify the owner. Does nothing before `share`. Raises StoreError."""
        key = f"{to_micros(clock.now()):020}.{clock.new_id()}"
        if self._settings is not None:
            await self._settings.put(SET_ASIDE, key, msgspec.json.encode(aside).decode())

    def _deaths(self, digest: str) -> int:
        return self._counts.get(digest, 0) + self._shared.get(digest, 0)

    def begin(self, key: str) -> bool:
        """Record the start of an event. Return False if it has already crashed the process STARTS_MAX times."""
        digest = _digest(key)
        if self._deaths(digest) >= STARTS_MAX:
            return False
        self._counts[digest] = self._counts.get(digest, 0) + 1
        if digest not in self._places and self._handle >= 0 and len(self._places) < ENTRIES_MAX:
            if not self._free:
                self._free.append(self._size)
                self._size += 1
            self._places[digest] = self._free.pop()
        self._write(digest, f"{digest} {self._counts[digest]}\n".encode())
        return True

    def end(self, key: str) -> None:
        """Record that an event finished, or that the process is stopping normally."""
        digest = _digest(key)
        if self._shared.pop(digest, None) is not None:
            self._over.add(digest)
        self._drop(digest)

    def _drop(self, digest: str) -> None:
        if self._counts.pop(digest, None) is not None:
            self._write(digest, _EMPTY)
            if (place := self._places.pop(digest, None)) is not None:
                self._free.append(place)

    @contextmanager
    def during(self, key: str) -> Generator[None]:
        """Record an event as in progress while the block runs.

        Raises EndedTwice if the event has already crashed the process STARTS_MAX times.
        """
        try:
            if not self.begin(key):
                raise EndedTwice(ENDED_TWICE)
            yield
        finally:
            self.end(key)

    @asynccontextmanager
    async def one_by_one(self, key: str) -> AsyncGenerator[None]:
        """Like `during`, but isolate events that have crashed the process before.

        Each of these events runs alone until it ends or ALONE_SECONDS have passed. If the process crashes again, the
        crash does not count against events that were still waiting.
        """
        if not self._deaths(_digest(key)):
            with self.during(key):
                yield
            return
        await self._alone.acquire()
        others = [self._alone]  # emptied by the first release, so the lock is released only once

        def release() -> None:
            if others:
                others.pop().release()

        timer = asyncio.get_running_loop().call_later(ALONE_SECONDS, release)
        try:
            with self.during(key):
                yield
        finally:
            timer.cancel()
            release()

    def _write(self, digest: str, entry: bytes) -> None:
        if digest in self._places:
            with suppress(OSError):  # a full disk must not block messages
                os.pwrite(self._handle, entry, self._places[digest] * _WIDTH)


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).hexdigest()
