"""What bounds a command's use of the machine: `ulimit` in the shell that runs it, and a control group where one can be
made.

Control groups are needed when Shoal runs as root, whom the kernel exempts from the per-user process limit; they are
also the only way to bound the memory of all processes together. Both versions (man 7 cgroups) are known:

version   how a command becomes a member, and when
-------   -----------------------------------------------------------------------------------------------------------
1         a thread of this process is one, and starts it: it is one from its birth; see `Starter`
2         a shell joins and becomes the command, since only whole processes can be members of a group for memory
"""

import itertools
import os
import re
import resource
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.kernel.errors import SandboxError
from shoal.kernel.settings import SandboxSettings

GIBIBYTE = 1_073_741_824
STARTERS_KEPT_MAX = 8
"""Threads that wait for the next command, each in groups of its own."""
ENDING_MAX = 8
"""Processes of the last command that may still be ending when the next one gets its groups: bubblewrap's own last
process takes some time, since its namespaces end with it."""

_numbers = itertools.count(1)
_ROOT = Path("/sys/fs/cgroup")


class CommandLimits(msgspec.Struct, frozen=True):
    """Bounds of one command in an isolating sandbox.

    `memory_bytes_max` counts each process's private memory (and the whole command's where a control group can be
    made), `file_bytes_max` is the largest file it can write, `temporary_bytes_max` the size of its /tmp and /dev/shm.
    0 sets no limit.
    """

    memory_bytes_max: int = 2 * GIBIBYTE
    processes_max: int = 256
    file_bytes_max: int = GIBIBYTE
    temporary_bytes_max: int = GIBIBYTE // 4
    cpu_seconds_max: int = 600
    open_files_max: int = 1024

    @classmethod
    def of(cls, settings: SandboxSettings) -> "CommandLimits":
        return cls(memory_bytes_max=settings.memory_bytes_max, processes_max=settings.processes_max)


def ulimit_line(limits: CommandLimits, *, is_watched: bool = False) -> str:
    """A bash command that sets `limits` for the shell it runs in and for all it starts, or exits with 125.

    What somebody watches has no limit of processor time. A limit that this process is itself below is left where it
    is, since nobody may raise it.
    """
    wanted = (
        ("c", resource.RLIMIT_CORE, 0, 1),
        ("d", resource.RLIMIT_DATA, limits.memory_bytes_max, 1024),
        ("f", resource.RLIMIT_FSIZE, limits.file_bytes_max, 1024),
        ("n", resource.RLIMIT_NOFILE, limits.open_files_max, 1),
        ("t", resource.RLIMIT_CPU, 0 if is_watched else limits.cpu_seconds_max, 1),
        ("u", resource.RLIMIT_NPROC, limits.processes_max, 1),
    )
    options: list[str] = []
    for flag, kind, limit, unit in wanted:
        if limit or flag == "c":
            _, hard = resource.getrlimit(kind)
            allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            options.append(f"-{flag} {allowed // unit}")
    return f"ulimit {' '.join(options)} || exit 125; "


# ---- control groups ----


class Hierarchy(NamedTuple):
    """A directory in which groups can be made, and by file the limits that groups there take; 0 is no limit."""

    parent: Path
    limits: Mapping[str, int]


class GroupMembership(NamedTuple):
    """How a command gets into its groups: started by this thread, or by writing 0 to these files."""

    starter: Executor | None
    join_files: tuple[str, ...]


class Starter:
    """A thread that is a member of groups, so that whatever it starts is born in them; it serves one command at a time.

    A shell that joins two groups and becomes the command takes 1 ms of CPU, and the kernel stops everything else for
    a moment whenever a process changes its group. The thread does that once.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        """Let a new thread join. Raises OSError."""
        self.folders = folders
        self.thread = ThreadPoolExecutor(1, "shoal-start")
        for folder in folders:
            self.thread.submit(_write, folder / "tasks", 0).result()

    def is_free(self) -> bool:
        """Whether everything it started has ended, except for a few processes that are just ending."""
        return int((self.folders[0] / "pids.current").read_text()) <= 1 + ENDING_MAX


class ControlGroups:
    """Makes one set of control groups for each command, and removes them when their last process is gone."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._hierarchies = hierarchies
        self._done: list[Path] = []
        self._idle: list[Starter] = []
        # Since Linux 5.3 a group without memory loses no process that only has a thread in it, as this one has.
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        spares_threads = release is not None and (int(release[1]), int(release[2])) >= (5, 3)
        takes_threads = [(hierarchy.parent / "tasks").exists() for hierarchy in hierarchies]
        self._takes_threads = bool(hierarchies) and all(takes_threads) and spares_threads

    @property
    def can_bound(self) -> bool:
        return bool(self._hierarchies)

    @contextmanager
    def group(self) -> Generator[tuple[str, ...]]:
        """The files to which a process writes 0 to become a member; none where groups cannot be made.

        Raises SandboxError when a group cannot be made although one could be before.
        """
        folders = self._made()
        try:
            yield tuple(str(folder / "cgroup.procs") for folder in folders)
        finally:
            self._remove(folders)

    @contextmanager
    def membership(self) -> Generator[GroupMembership]:
        """Groups for one command; those with a thread in them serve another one afterwards. Raises SandboxError."""
        if not self._takes_threads:
            with self.group() as join_files:
                yield GroupMembership(None, join_files)
            return
        starter = next((one for one in self._idle if one.is_free()), None)
        if starter is not None:
            self._idle.remove(starter)
        else:
            folders = self._made()
            try:
                starter = Starter(folders)
            except OSError as error:
                self._remove(folders)
                raise SandboxError(f"The control group for a command could not be joined: {error}.") from error
        try:
            yield GroupMembership(starter.thread, ())
        finally:
            self._idle.append(starter)
            if len(self._idle) > STARTERS_KEPT_MAX:
                self._retire(self._idle[0])

    def _retire(self, starter: Starter) -> None:
        self._idle.remove(starter)
        starter.thread.shutdown()
        self._remove(starter.folders)

    def _made(self) -> list[Path]:
        name = f"shoal-{os.getpid()}-{next(_numbers)}"
        folders = [hierarchy.parent / name for hierarchy in self._hierarchies]
        try:
            for hierarchy, folder in zip(self._hierarchies, folders, strict=True):
                folder.mkdir()
                for file, limit in hierarchy.limits.items():
                    if limit:
                        _write(folder / file, limit)
        except OSError as error:
            self._remove(folders)
            raise SandboxError(f"The control group for a command could not be made: {error}.") from error
        return folders

    def _remove(self, folders: Sequence[Path]) -> None:
        self._done += folders
        self.sweep()

    def close(self) -> bool:
        """Remove all groups that serve no command. Returns whether none is left; if some are, call it again."""
        for starter in tuple(self._idle):
            self._retire(starter)
        return self.sweep()

    def sweep(self) -> bool:
        """Remove the groups of finished commands; one whose last process is still ending waits for the next sweep.

        Returns whether none is left.
        """
        left: list[Path] = []
        for folder in self._done:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left.append(folder)
        self._done = left
        return not left


def find_groups(limits: CommandLimits, root: Path = _ROOT) -> ControlGroups:
    """The control groups that can enforce `limits` here, found by making one; none without the right to make any."""
    processes, memory = limits.processes_max, limits.memory_bytes_max
    unified = Hierarchy(root, {"pids.max": processes, "memory.max": memory})
    separate = (
        Hierarchy(root / "pids", {"pids.max": processes}),
        Hierarchy(root / "memory", {"memory.limit_in_bytes": memory}),
    )
    for candidates in ((unified,), separate, separate[:1]):
        for folder in (folder for hierarchy in candidates for folder in hierarchy.parent.glob("shoal-*-*")):
            if not Path("/proc", folder.name.split("-")[1]).exists():  # what a process that was killed has left
                with suppress(OSError):
                    folder.rmdir()
        groups = ControlGroups(candidates)
        with suppress(SandboxError), groups.group():
            return groups
    return ControlGroups(())


def _write(path: Path, value: int) -> None:
    """Write to a file that must exist: in a plain directory, which is no control group, it does not."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)
