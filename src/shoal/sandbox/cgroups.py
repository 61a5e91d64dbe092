"""Bounds processes and memory of a whole command by a control group, where this process may make one.

Needed when Shoal runs as root, whom the kernel exempts from the per-user process limit; also the only way to bound the
memory of all processes together. Knows both versions of the interface (man 7 cgroups).
"""

import itertools
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from shoal.domain.errors import SandboxError
from shoal.sandbox.limits import Limits

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


class Groups:
    """Makes one set of control groups a command, and removes them when their last process is gone."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._hierarchies = hierarchies
        self._done: list[Path] = []

    @property
    def can_bound(self) -> bool:
        """Whether groups can be made here."""
        return bool(self._hierarchies)

    @contextmanager
    def group(self) -> Generator[tuple[str, ...]]:
        """The files to which a process writes 0 to become a member; none where groups cannot be made.

        Raises SandboxError when a group cannot be made although one could be before.
        """
        name = f"shoal-{os.getpid()}-{next(_numbers)}"
        folders = [hierarchy.parent / name for hierarchy in self._hierarchies]
        try:
            for hierarchy, folder in zip(self._hierarchies, folders, strict=True):
                folder.mkdir()
                for setting in (setting for setting in hierarchy.settings if setting.value):
                    _write(folder / setting.file, setting.value)
            yield tuple(str(folder / "cgroup.procs") for folder in folders)
        except OSError as error:
            raise SandboxError(f"The control group for a command could not be made: {error}.") from error
        finally:
            self._done += folders
            self.sweep()

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


def _write(path: Path, value: int) -> None:
    """Write to a file that has to be there: in a plain directory it is not, and that is no control group."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)
