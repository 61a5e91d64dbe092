"""Limit a command's resources with `ulimit` in its shell and, if possible, a control group.

Control groups are needed when Shoal runs as root, because the kernel exempts root from the per-user process limit. Only
control groups can limit the memory of all processes together. Both versions (man 7 cgroups) are supported:

version   how a command becomes a member
-------   -----------------------------------------------------------------------------------------------------------
1         a thread that is a member starts the command, so the command is a member from the beginning (see `Starter`)
2         a shell joins and then execs the command, because memory groups contain only whole processes
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
"""Maximum number of idle threads that are kept to start later commands. Each thread is in its own control groups."""
ENDING_MAX = 8
"""Maximum number of processes of an earlier command that may still be exiting when its control groups are reused.
Bubblewrap's last process exits slowly, because its namespaces end with it.
"""

_numbers = itertools.count(1)
_ROOT = Path("/sys/fs/cgroup")


class CommandLimits(msgspec.Struct, frozen=True):
    """Limits of one command in an isolating sandbox. 0 means no limit.

    memory_bytes_max: private memory of each process. With a control group, the limit also applies to all processes
    together.
    file_bytes_max: size of the largest file that the command can write.
    temporary_bytes_max: size of /tmp and of /dev/shm.
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
    """Return a bash command that sets `limits` for its shell and all children, or exits with 125.

    Watched commands have no CPU time limit. A lower limit of this process still applies, because limits cannot be
    raised.
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
    """A cgroup directory in which Shoal can create groups. `limits` maps control files to the limits of each group. 0
    means no limit.
    """

    parent: Path
    limits: Mapping[str, int]


class GroupMembership(NamedTuple):
    """How a command joins its cgroups: `starter` starts the command, or the command writes 0 to each of
    `join_files`.
    """

    starter: Executor | None
    join_files: tuple[str, ...]


class Starter:
    """An OS thread that has joined cgroups. Processes that it starts are in the same cgroups. Serves one command at a
    time.

    The thread joins only once. Otherwise, a shell would have to join the groups for each command. That takes 1 ms of
    CPU, and the kernel briefly pauses other processes at every join.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.thread = ThreadPoolExecutor(1, "shoal-start")
        for folder in folders:
            self.thread.submit(_write, folder / "tasks", 0).result()

    def is_free(self) -> bool:
        return int((self.folders[0] / "pids.current").read_text()) <= 1 + ENDING_MAX


class ControlGroups:
    """Creates control groups for each command, and removes each group after its last process has ended."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._hierarchies = hierarchies
        self._done: list[Path] = []
        self._idle: list[Starter] = []
        # Since Linux 5.3, running out of memory in a group does not kill a process that has only a thread in the group.
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        spares_threads = release is not None and (int(release[1]), int(release[2])) >= (5, 3)
        takes_threads = [(hierarchy.parent / "tasks").exists() for hierarchy in hierarchies]
        self._takes_threads = bool(hierarchies) and all(takes_threads) and spares_threads

    @property
    def can_bound(self) -> bool:
        return bool(self._hierarchies)

    @contextmanager
    def group(self) -> Generator[tuple[str, ...]]:
        """Create the control groups for a command, and yield the files to which a process writes 0 to join them. Yields
        an empty tuple if groups are not available.

        Raises SandboxError if a group cannot be created although this worked before.
        """
        folders = self._made()
        try:
            yield tuple(str(folder / "cgroup.procs") for folder in folders)
        finally:
            self._remove(folders)

    @contextmanager
    def membership(self) -> Generator[GroupMembership]:
        """Provide groups for one command. Groups with a thread are reused afterwards. Raises SandboxError."""
        if not self._takes_threads:
            with self.group() as join_files:
                yield GroupMembership(None, join_files)
            return
        starter = next((candidate for candidate in self._idle if candidate.is_free()), None)
        if starter is not None:
            self._idle.remove(starter)
        else:
            folders = self._made()
            try:
                starter = Starter(folders)
            except OSError as error:
                self._remove(folders)
                raise SandboxError(f"Failed to join the control group for a command: {error}.") from error
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
            raise SandboxError(f"Failed to create the control group for a command: {error}.") from error
        return folders

    def _remove(self, folders: Sequence[Path]) -> None:
        self._done += folders
        self.sweep()

    def close(self) -> bool:
        """Remove all unused groups. Returns False if some are still in use. In that case, call it again later."""
        for starter in tuple(self._idle):
            self._retire(starter)
        return self.sweep()

    def sweep(self) -> bool:
        """Remove the groups of finished commands. Returns True if all of them were removed.

        A group whose last process is still exiting remains for the next sweep.
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
    """Find the control groups that can enforce `limits` on this machine, by creating a test group. Without permission,
    the result is empty.
    """
    processes, memory = limits.processes_max, limits.memory_bytes_max
    unified = Hierarchy(root, {"pids.max": processes, "memory.max": memory})
    separate = (
        Hierarchy(root / "pids", {"pids.max": processes}),
        Hierarchy(root / "memory", {"memory.limit_in_bytes": memory}),
    )
    for candidates in ((unified,), separate, separate[:1]):
        for folder in (folder for hierarchy in candidates for folder in hierarchy.parent.glob("shoal-*-*")):
            if not Path("/proc", folder.name.split("-")[1]).exists():  # The process that created the group has died.
                with suppress(OSError):
                    folder.rmdir()
        groups = ControlGroups(candidates)
        with suppress(SandboxError), groups.group():
            return groups
    return ControlGroups(())


def _write(path: Path, value: int) -> None:
    """Write to an existing file. Fails in a plain directory, which lacks the files of a control group."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)
