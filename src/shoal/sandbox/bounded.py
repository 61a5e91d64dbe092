"""What holds around any sandbox: commands cannot fill the disk, and files run as a person allowed them.

The disk. A command that lets a folder grow beyond its limit, or the disk get too full, is ended with all its processes,
by cancelling the sandbox's own `run`. In a folder that is full already a command still runs, but no file can grow
(`ulimit -f 0`): it can look, and remove. `statvfs`, a few microseconds, tells by how much a whole disk has filled up
since the last walk, and a folder cannot have grown by more than that, so a folder is walked seldom:

    a command begins       walked only when the disk has filled up by as much as the folder had room
    while it runs          looked at every LOOK_SECONDS, in a thread: walked at the first look, and whenever the disk
                           has filled up by half of the room that was left (so closer and closer to the limit)
    the disk is nearly     no walk is needed to know that nothing may grow
    full

What other programs free meanwhile hides growth for at most WALK_SECONDS_MAX.

The files. They are compared with what was allowed at the last moment: in the shell that runs the command, before its
first word. A sandbox that can show a command other bytes in a file's place puts what was allowed over the file, and a
second time below `ALLOWED`. The two are one file as long as nobody has put another one in its place. Where the command
sees the inodes of the host, the folders on the way to the file have to be as they were when it was read, so that nobody
has put anything into its place and taken it out again either. Of a command that somebody watches, a line of the
output says how the check ended. The watch does not see it, and is told that the command has started once the check has
passed.
"""

import asyncio
import errno
import os
import secrets
import shlex
import stat
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.kernel.agents import Watch
from shoal.kernel.errors import ContentChanged, FolderFull, SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount, RunFile, Sandbox
from shoal.kernel.settings import SandboxSettings
from shoal.sandbox.bubblewrap import ALLOWED

LOOK_SECONDS = 0.25
NO_GROWTH = "trap '' XFSZ; ulimit -f 0 || exit 125; "
FROZEN = "\n[{problem} Until then no file can grow.]\n"
_SEES_INODES = ("bubblewrap", "host") if sys.platform == "linux" else ()
ENDED = "The command was ended with all its processes. {problem}"
MEBIBYTE = 1_048_576
WALK_SECONDS_MAX = 30.0
"""A folder on a disk that changes is walked at least this often while a command runs in it."""
STEP_BYTES, STEP_FILES = MEBIBYTE, 64
"""Growth that is not worth a walk."""
UNSEEN_BYTES, UNSEEN_FILES = 64 * MEBIBYTE, 4096
"""What short commands may add to a folder before its first walk."""
FOLDERS_MAX = 1024
"""Folders whose size is remembered; the one that was looked at longest ago is forgotten."""
FILES_COUNTED_MAX = 2_000_000
"""A folder with more files counts as having this many."""
EXIT_CODE = 97
_CHANGED = "What this command runs has changed since it was allowed, so it did not run."


class BoundedSandbox:
    """A `Sandbox` around another one, whose commands cannot fill the disk and run only what was allowed."""

    def __init__(
        self, inner: Sandbox, settings: SandboxSettings | None = None, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._inner = inner
        self._usage = DiskUsage(settings or SandboxSettings())
        self._look_seconds = look_seconds

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def isolated(self) -> bool:
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
        check = ContentCheck(command, sees_inodes=self._inner.name in _SEES_INODES)
        command = check.command
        if problem:
            command = msgspec.structs.replace(command, text=NO_GROWTH + command.text)
        watch = _DiskWatch(self._usage, written, self._look_seconds, is_frozen=bool(problem))
        try:
            async with asyncio.timeout(None) as limit:
                with watch.looking(limit):
                    result = check.checked(await self._inner.run(command))
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
            if self._usage.may_be_full(mount) and (problem := await asyncio.to_thread(self._usage.problem, mount)):
                return problem
        return ""

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        return self._inner.inside(path, mounts)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        return self._inner.outside(path, mounts)

    async def close(self) -> None:
        await self._inner.close()


# ---- the disk ----


class FolderSize(NamedTuple):
    """What a folder holds. `hidden` names a folder in it that could not be read although this user owns it."""

    size_bytes: int
    files: int
    hidden: str = ""


class DiskFill(NamedTuple):
    """What a whole disk holds, and what is free for this user."""

    size_bytes: int
    files: int
    free_bytes: int


@dataclass
class _WalkedFolder:
    """What is remembered of a folder: the last walk, how full the disk was then, and how long it took."""

    filled: DiskFill
    held: FolderSize | None = None
    walked_at: float = 0.0
    walk_seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class FolderCeiling(NamedTuple):
    """What a folder may hold while a command runs: its limits, or what it held at the beginning where that is more."""

    size_bytes: float
    files: float
    may_hide: bool = False


class DiskUsage:
    """Knows which folders are full. Its methods that walk block, and may be called in several threads.

    Bytes are those taken on the disk: holes of sparse files take none, a file with several names is counted once. Files
    are all entries, folders too.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._most = FolderCeiling(
            settings.workspace_bytes_max or float("inf"), settings.workspace_files_max or float("inf")
        )
        self._files_counted_max = 2 * settings.workspace_files_max or FILES_COUNTED_MAX
        self._folders: dict[Path, _WalkedFolder] = {}
        self._lock = threading.Lock()

    def may_be_full(self, mount: Mount) -> bool:
        """Whether the folder may have reached a limit since it was walked. Never walks, and takes microseconds."""
        if (seen := self._look(mount.host)) is None:
            return False
        filled, folder = seen
        return filled.free_bytes < self._settings.disk_free_bytes_min or self._is_grown(folder, filled, 1.0)

    def problem(self, mount: Mount) -> str:
        """Why the folder may not grow now; empty when it may. Walks it."""
        if (seen := self._look(mount.host)) is None:
            return ""
        filled, folder = seen
        if filled.free_bytes < self._settings.disk_free_bytes_min:
            return self._disk_full(filled)
        self._walk(mount.host, folder, filled)
        return self._too_much(mount, folder, self._most)

    def is_overdue(self, mount: Mount) -> bool:
        """Whether the next walk should not wait any longer. Never walks."""
        if (seen := self._look(mount.host)) is None:
            return False
        filled, folder = seen
        return folder.held is not None and self._is_due(folder, filled)

    def ceilings(self, mounts: Sequence[Mount]) -> tuple[FolderCeiling, ...]:
        """What each folder may hold from now on: its limits, or what it was last seen to hold where that is more."""
        folders = (self._folders.get(mount.host) for mount in mounts)
        sizes = ((folder and folder.held) or FolderSize(0, 0) for folder in folders)
        most = self._most
        return tuple(
            FolderCeiling(max(most.size_bytes, held.size_bytes), max(most.files, held.files), bool(held.hidden))
            for held in sizes
        )

    def outgrown(self, mounts: Sequence[Mount], ceilings: Sequence[FolderCeiling], with_floor: bool) -> str:
        """Which limit a running command has exceeded; empty for none. Walks where that is due."""
        for mount, ceiling in zip(mounts, ceilings, strict=True):
            if (seen := self._look(mount.host)) is None:
                continue
            filled, folder = seen
            if with_floor and filled.free_bytes < self._settings.disk_free_bytes_min:
                return self._disk_full(filled)
            if self._is_due(folder, filled):
                self._walk(mount.host, folder, filled)
            if problem := self._too_much(mount, folder, ceiling):
                return problem
        return ""

    def _look(self, host: Path) -> tuple[DiskFill, _WalkedFolder] | None:
        try:
            found = os.statvfs(host)
        except OSError:  # it is gone, and the command's own failure tells
            return None
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        filled = DiskFill(used, found.f_files - found.f_ffree, found.f_bavail * found.f_frsize)
        with self._lock:
            folder = self._folders.pop(host, None) or _WalkedFolder(filled)
            self._folders[host] = folder  # the newest is the last
            if len(self._folders) > FOLDERS_MAX:
                del self._folders[next(iter(self._folders))]
        return filled, folder

    def _is_grown(self, folder: _WalkedFolder, filled: DiskFill, share: float) -> bool:
        """Whether the disk has filled up by this share of the folder's room since it was walked."""
        room_bytes, room_files = float(UNSEEN_BYTES), float(UNSEEN_FILES)
        if folder.held is not None:
            room_bytes = self._most.size_bytes - folder.held.size_bytes
            room_files = self._most.files - folder.held.files
        if (folder.held is not None and folder.held.hidden) or min(room_bytes, room_files) < 0:
            return True
        grown_bytes = filled.size_bytes - folder.filled.size_bytes
        grown_files = filled.files - folder.filled.files
        return grown_bytes >= max(share * room_bytes, STEP_BYTES) or grown_files >= max(share * room_files, STEP_FILES)

    def _is_due(self, folder: _WalkedFolder, filled: DiskFill) -> bool:
        if folder.held is None:
            return True
        waited = time.monotonic() - folder.walked_at
        if waited < 2 * folder.walk_seconds:
            return False
        return self._is_grown(folder, filled, 0.5) or (waited > WALK_SECONDS_MAX and filled[:2] != folder.filled[:2])

    def _walk(self, host: Path, folder: _WalkedFolder, filled: DiskFill) -> None:
        """Walk it, unless another thread does so already: then what is known is one look old."""
        if not folder.lock.acquire(blocking=False):
            return
        try:
            began = time.monotonic()
            with suppress(FileNotFoundError):
                folder.held = measure_folder(host, self._files_counted_max)
            folder.filled = filled
            folder.walked_at = time.monotonic()
            folder.walk_seconds = folder.walked_at - began
        finally:
            folder.lock.release()

    def _too_much(self, mount: Mount, folder: _WalkedFolder, ceiling: FolderCeiling) -> str:
        held = folder.held
        if held is None:
            return ""
        if held.hidden and not ceiling.may_hide:
            return f"{mount.inside} has a folder that cannot be looked into: {held.hidden!r}. chmod it, or remove it."
        if held.size_bytes > ceiling.size_bytes:
            most = shown_bytes(self._settings.workspace_bytes_max)
            return f"{mount.inside} holds {shown_bytes(held.size_bytes)}; at most {most} are allowed. Remove files."
        if held.files > ceiling.files:
            most = f"{self._settings.workspace_files_max:,}"
            return f"{mount.inside} holds {held.files:,} files and folders; at most {most} are allowed. Remove some."
        return ""

    def _disk_full(self, filled: DiskFill) -> str:
        free, least = shown_bytes(filled.free_bytes), shown_bytes(self._settings.disk_free_bytes_min)
        return f"The disk has {free} left; {least} have to stay free. Remove files, or tell the owner."


def measure_folder(root: Path, files_max: int) -> FolderSize:
    """Walk a folder: bytes on the disk and entries, links not followed, other disks left out. Blocks.

    It ends early at `files_max` entries. What changes meanwhile may be counted or not.
    """
    device = os.lstat(root).st_dev
    folders, hidden = [str(root)], ""
    size_bytes = files = 0
    linked: set[int] = set()
    while folders and files < files_max:
        here = folders.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # gone meanwhile
                        continue
                    files += 1
                    is_folder = stat.S_ISDIR(info.st_mode)
                    is_counted = info.st_dev == device and info.st_ino not in linked
                    size_bytes += info.st_blocks * 512 if is_counted else 0
                    if is_counted and info.st_nlink > 1 and not is_folder:
                        linked.add(info.st_ino)
                    if info.st_dev == device and is_folder:
                        folders.append(entry.path)
                    if files >= files_max:
                        break
        except OSError as error:
            # Its content hides: its path is too long, or its owner's rights were taken away.
            name = os.path.relpath(here, root)
            if error.errno == errno.ENAMETOOLONG:
                hidden = hidden or f"{name[:60]}…"
            elif error.errno == errno.EACCES:
                with suppress(OSError):
                    hidden = hidden or (name if os.lstat(here).st_uid == os.geteuid() else "")
    return FolderSize(size_bytes, files, hidden)


def shown_bytes(size: int) -> str:
    """A size for people, such as 2.1 GiB; below one MiB in KiB."""
    for unit, bytes_each in (("GiB", 1024 * MEBIBYTE), ("MiB", MEBIBYTE)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size // 1024} KiB"


class _DiskWatch:
    """Looks at a command's folders while it runs, and ends it when it outgrows them: `problem` then says why.

    It needs no task: a timer starts a look in a thread, whose end sets the next timer.
    """

    def __init__(self, usage: DiskUsage, mounts: Sequence[Mount], seconds: float, *, is_frozen: bool) -> None:
        self.problem = ""
        self._usage = usage
        self._mounts = mounts
        self._ceilings = usage.ceilings(mounts)
        self._seconds = seconds
        self._is_frozen = is_frozen
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.Timeout | None = None

    @contextmanager
    def looking(self, limit: asyncio.Timeout) -> Generator[None]:
        """Keep looking while the block runs; `limit` ends it."""
        self._limit = limit
        self._wait(0 if any(self._usage.is_overdue(mount) for mount in self._mounts) else self._seconds)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._limit = None

    def _wait(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        def looked(looking: "asyncio.Future[str]") -> None:
            if self._limit is None or self._limit.expired() or looking.cancelled():
                return
            error = looking.exception()
            self.problem = looking.result() if error is None else f"Its folders could not be measured: {error!r}."
            if self.problem:
                self._limit.reschedule(self._loop.time())
            else:
                self._wait(self._seconds)

        has_floor = not self._is_frozen
        looking = self._loop.run_in_executor(None, self._usage.outgrown, self._mounts, self._ceilings, has_floor)
        looking.add_done_callback(looked)


# ---- the files that were allowed ----

HELD_BYTES_MAX = 1_048_576
"""Of a watched command's output, what is held back until its check is known to have passed."""


class ContentCheck:
    """The check of one command."""

    def __init__(self, command: Command, *, sees_inodes: bool) -> None:
        mark = secrets.token_hex(8)
        self._refusal, self._passed = f"{_CHANGED} [{mark}]", f"[{mark}]"
        self._command = command
        self._watch = _CheckedWatch(command.watch, self._passed, self._refusal) if command.watch is not None else None
        self._sees_inodes = sees_inodes

    @property
    def command(self) -> Command:
        """The command with the check before it; unchanged if it runs no file that was asked for."""
        if not self._command.runs:
            return self._command
        checks = " && ".join(self._check(number, file) for number, file in enumerate(self._command.runs))
        refuse = f"{{ {_print(self._refusal)}; exit {EXIT_CODE}; }}"
        passed = f"{_print(self._passed)}; " if self._watch is not None else ""
        text = f"{{ {checks}; }} 2>/dev/null || {refuse}; {passed}{self._command.text}"
        return msgspec.structs.replace(self._command, text=text, watch=self._watch)

    def _check(self, number: int, file: RunFile) -> str:
        path, bound = shlex.quote(file.path), f"{ALLOWED}/{number}"
        if not file.digest:
            return f"[ ! -e {path} ] && [ ! -L {path} ]"
        unmoved = ""
        if self._sees_inodes and file.folders:
            folders = " ".join(shlex.quote(path) for path, _, _ in file.folders)
            stood = "\n".join(f"{inode} {at // 10**9}.{at % 10**9:09d}" for _, inode, at in file.folders)
            unmoved = f" && [ \"$(stat -c '%i %.9Y' {folders})\" = {shlex.quote(stood)} ]"
        read = f'"$({{ sha256sum || shasum -a 256; }} <{path})"'
        is_same = f"[[ {read} == {file.digest}* ]]"
        return f"[ ! -L {path} ] && if [ -e {bound} ]; then [ {path} -ef {bound} ]; else {is_same}; fi{unmoved}"

    def checked(self, result: CommandResult) -> CommandResult:
        """The result. Raises ContentChanged when the check failed."""
        if self._watch is not None:
            self._watch.end()
        was_refused = self._refusal.encode() in result.stderr if self._watch is None else self._watch.was_refused
        if self._command.runs and result.exit_code == EXIT_CODE and was_refused:
            raise ContentChanged(_CHANGED)
        return result


class _CheckedWatch:
    """Implements `domain.agents.Watch` for a command with a check before it: `inner` sees all but the check's line.

    The line comes on a pipe of its own, and so may be read after what the command wrote.
    """

    def __init__(self, inner: Watch, passed: str, refused: str) -> None:
        self.was_refused = False
        self._inner = inner
        self._passed, self._refused = f"{passed}\n".encode(), f"{refused}\n".encode()
        self._pid = 0
        self._held = b""
        self._has_begun = False

    def started(self, pid: int) -> None:
        self._pid = pid

    def output(self, data: bytes) -> None:
        """Hold everything back until the check's line has come, then hand it on without that."""
        if self._has_begun:
            self._inner.output(data)
            return
        self._held += data
        self.was_refused = self._refused in self._held
        before, line, after = self._held.partition(self._passed)
        if not self.was_refused and (line or len(self._held) > HELD_BYTES_MAX):
            self._begin(before + after)

    def end(self) -> None:
        """Hand on what a shell said that did not come as far as the check."""
        if self._held and not self._has_begun and not self.was_refused:
            self._begin(self._held)

    def _begin(self, output: bytes) -> None:
        self._has_begun, self._held = True, b""
        self._inner.started(self._pid)
        if output:
            self._inner.output(output)


def _print(line: str) -> str:
    return f"printf '%s\\n' {shlex.quote(line)} >&2"
