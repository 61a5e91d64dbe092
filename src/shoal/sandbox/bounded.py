"""Puts a bound on what commands leave on the disk, around any sandbox: each folder they may write, and its disk.

A command that lets a folder grow beyond its limit, or the disk get too full, is ended with all its processes. In a
folder that is full already a command still runs, but no file can grow (`ulimit -f 0`): it can look, and remove. What it
costs a command that ends before the first look is one `statvfs` a folder.

    a look   after LOOK_SECONDS and again and again, in a thread; see `sandbox.disk` for when it walks a folder
    ended    by cancelling the sandbox's own `run`, which leaves nothing of a command, whatever the sandbox
"""

import asyncio
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shoal.domain.errors import FolderFull, SandboxError
from shoal.domain.ports import Command, CommandResult, Mount, Sandbox
from shoal.sandbox.disk import DiskLimits, Room
from shoal.sandbox.guard import Guard

LOOK_SECONDS = 0.25
NO_GROWTH = "trap '' XFSZ; ulimit -f 0 || exit 125; "
FROZEN = "\n[{problem} Until then no file can grow.]\n"
_SEES_INODES = ("bubblewrap", "host") if sys.platform == "linux" else ()
ENDED = "The command was ended with all its processes. {problem}"


class BoundedSandbox:
    """A `Sandbox` whose commands cannot fill the disk; everything else is the inner sandbox's."""

    def __init__(self, inner: Sandbox, limits: DiskLimits | None = None, look_seconds: float = LOOK_SECONDS) -> None:
        self._inner = inner
        self._room = Room(limits or DiskLimits())
        self._look_seconds = look_seconds

    @property
    def name(self) -> str:
        """The inner sandbox's."""
        return self._inner.name

    @property
    def isolated(self) -> bool:
        """As the inner sandbox is."""
        return self._inner.isolated

    async def run(self, command: Command) -> CommandResult:
        """Run it. Raises FolderFull when it let a folder or the disk get too full, ContentChanged when a file that it
        runs is not as it was allowed, SandboxError as the inner one.

        Where there is no room to begin with, no file can grow; a command that somebody watches is not started then.
        """
        written = tuple(mount for mount in command.mounts if mount.writable)
        problem = await self._problem(written)
        if problem and command.watch is not None:
            raise SandboxError(problem)
        guard = Guard(command, sees_inodes=self._inner.name in _SEES_INODES)
        command = guard.command
        if problem:
            command = msgspec.structs.replace(command, text=NO_GROWTH + command.text)
        watch = _DiskWatch(self._room, written, self._look_seconds, is_frozen=bool(problem))
        try:
            async with asyncio.timeout(None) as limit:
                with watch.looking(limit):
                    result = guard.checked(await self._inner.run(command))
        except TimeoutError as error:
            if not watch.problem:
                raise
            raise FolderFull(ENDED.format(problem=watch.problem)) from error
        if not problem:
            return result
        return msgspec.structs.replace(result, stderr=result.stderr + FROZEN.format(problem=problem).encode())

    async def require_room(self, mounts: Sequence[Mount]) -> None:
        """Raise FolderFull when one of the writable folders, or its disk, is full."""
        if problem := await self._problem([mount for mount in mounts if mount.writable]):
            raise FolderFull(problem)

    async def _problem(self, written: Sequence[Mount]) -> str:
        for mount in written:
            if self._room.is_doubtful(mount) and (problem := await asyncio.to_thread(self._room.problem, mount)):
                return problem
        return ""

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """As the inner sandbox."""
        return self._inner.inside(path, mounts)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """As the inner sandbox."""
        return self._inner.outside(path, mounts)

    async def close(self) -> None:
        """Close the inner sandbox."""
        await self._inner.close()


class _DiskWatch:
    """Looks at a command's folders while it runs, and ends it when it outgrows them: `problem` then says why.

    It needs no task: a timer starts a look in a thread, whose end sets the next timer.
    """

    def __init__(self, room: Room, mounts: Sequence[Mount], seconds: float, *, is_frozen: bool) -> None:
        self.problem = ""
        self._room = room
        self._mounts = mounts
        self._ceilings = room.ceilings(mounts)
        self._seconds = seconds
        self._is_frozen = is_frozen
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.Timeout | None = None

    @contextmanager
    def looking(self, limit: asyncio.Timeout) -> Generator[None]:
        """Look on while the block runs, and let `limit` end it."""
        self._limit = limit
        self._wait(0 if any(self._room.is_overdue(mount) for mount in self._mounts) else self._seconds)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._limit = None

    def _wait(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        is_floor = not self._is_frozen
        looking = self._loop.run_in_executor(None, self._room.outgrown, self._mounts, self._ceilings, is_floor)
        looking.add_done_callback(self._judge)

    def _judge(self, looking: "asyncio.Future[str]") -> None:
        if self._limit is None or self._limit.expired() or looking.cancelled():
            return
        error = looking.exception()
        self.problem = looking.result() if error is None else f"Its folders could not be measured: {error!r}."
        if self.problem:
            self._limit.reschedule(self._loop.time())
        else:
            self._wait(self._seconds)
