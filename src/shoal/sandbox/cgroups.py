"""Bounds processes and memory of a whole command by a control group, where this process may make one.

Needed when Shoal runs as root, whom the kernel exempts from the per-user process limit; also the only way to bound the
memory of all processes together. Knows both versions of the interface (man 7 cgroups):

version   how a command becomes a member, and when
-------   -----------------------------------------------------------------------------------------------------------
1         a thread of this process is one, and starts it: it is one from its birth; see `Starter`
2         a shell joins and becomes the command, since only whole processes can be members of a group for memory
"""

import itertools
import os
import re
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from shoal.domain.errors import SandboxError
from shoal.sandbox.limits import Limits

STARTERS_KEPT_MAX = 8
"""Threads that wait for the next command, each in groups of its own."""
ENDING_MAX = 8
"""Processes of the last command that the next one may find in its groups: of bubblewrap's own the last takes some
time to end, since its namespaces end with it."""

_numbers = itertools.count(1)
_ROOT = Path("/sys/fs/cgroup")


class Setting(NamedTuple):
    """A file of a control group and what to write there; 0 leaves it unlimited."""

    file: str
    value: int


class Hierarchy(NamedTuple):
    """A directory in which groups can be made, and the limits that groups made there take."""

    parent: Path
    settings: tuple[Setting, ...]


class GroupMembership(NamedTuple):
    """How a command gets into its groups: started by this thread, or by writing 0 to these files."""

    starter: Executor | None
    join_files: tuple[str, ...]


class Starter:
    """A thread that is a member of groups, as whatever it starts is from its birth; it serves one command at a time.

    A shell that joins two groups and becomes the command takes 1 ms of CPU, and the kernel stops everything else for
    a moment whenever a process changes its group. The thread does that once.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        """Let a new thread join. Raises OSError."""
        self.folders = folders
        self.thread = ThreadPoolExecutor(1, "shoal-start")
        self.thread.submit(self._join).result()

    def _join(self) -> None:
        for folder in self.folders:
            _write(folder / "tasks", 0)

    def is_free(self) -> bool:
        """Whether all that it has started is gone, but for a few that are just ending."""
        return int((self.folders[0] / "pids.current").read_text()) <= 1 + ENDING_MAX


class Groups:
    """Makes one set of control groups a command, and removes them when their last process is gone."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._hierarchies = hierarchies
        self._done: list[Path] = []
        self._idle: list[Starter] = []
        takes_threads = [(hierarchy.parent / "tasks").exists() for hierarchy in hierarchies]
        self._takes_threads = bool(hierarchies) and all(takes_threads) and _spares_threads()

    @property
    def can_bound(self) -> bool:
        """Whether groups can be made here."""
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
        if starter is None:
            starter = self._new_starter()
        else:
            self._idle.remove(starter)
        try:
            yield GroupMembership(starter.thread, ())
        finally:
            self._idle.append(starter)
            if len(self._idle) > STARTERS_KEPT_MAX:
                self._retire(self._idle[0])

    def _new_starter(self) -> Starter:
        folders = self._made()
        try:
            return Starter(folders)
        except OSError as error:
            self._remove(folders)
            raise SandboxError(f"The control group for a command could not be joined: {error}.") from error

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
                for setting in (setting for setting in hierarchy.settings if setting.value):
                    _write(folder / setting.file, setting.value)
        except OSError as error:
            self._remove(folders)
            raise SandboxError(f"The control group for a command could not be made: {error}.") from error
        return folders

    def _remove(self, folders: Sequence[Path]) -> None:
        self._done += folders
        self.sweep()

    def close(self) -> bool:
        """Remove all groups that serve no command; whether none is left, else it is to be called again."""
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


def find_groups(limits: Limits, root: Path = _ROOT) -> Groups:
    """What bounds `limits` here; makes a group to be sure. Without the right to make one it makes none, ever."""
    processes, memory = limits.processes_max, limits.memory_bytes_max
    unified = Hierarchy(root, (Setting("pids.max", processes), Setting("memory.max", memory)))
    separate = (
        Hierarchy(root / "pids", (Setting("pids.max", processes),)),
        Hierarchy(root / "memory", (Setting("memory.limit_in_bytes", memory),)),
    )
    for candidates in ((unified,), separate, separate[:1]):
        _sweep_dead(candidates)
        groups = Groups(candidates)
        with suppress(SandboxError), groups.group():
            return groups
    return Groups(())


def _sweep_dead(hierarchies: tuple[Hierarchy, ...]) -> None:
    """Remove what processes that were killed have left."""
    for folder in (folder for hierarchy in hierarchies for folder in hierarchy.parent.glob("shoal-*-*")):
        pid = folder.name.split("-")[1]
        if not Path("/proc", pid).exists():
            with suppress(OSError):
                folder.rmdir()


def _spares_threads() -> bool:
    """Whether a group without memory loses none of the processes that only have a thread in it, as this one has: since
    Linux 5.3."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= (5, 3)


def _write(path: Path, value: int) -> None:
    """Write to a file that has to be there: in a plain directory it is not, and that is no control group."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)
