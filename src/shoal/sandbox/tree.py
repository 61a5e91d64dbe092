"""Finds and kills everything a command started: also children that left its session or lost their parent.

A process belongs to a command when it is the command's first process or descends from it, is in its session or
process group, carries the command's mark in its environment or as the name of an open file, or holds the pipe that the
command's processes inherit (these survive `setsid` and a double fork). On the host a program bent on staying can undo
all of them; in an isolating sandbox it cannot leave its process namespace.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "SHOAL_COMMAND"
"""The environment variable by which a command's processes are known again, and what the file's name begins with."""

ROUNDS_MAX = 200
ROUND_SECONDS = 0.005
_DEAD = ("Z", "X")
_WRITE_ONLY = 0o300  # how /proc shows a descriptor open for writing; the reading end is this process's own


class Tree(NamedTuple):
    """What a command's processes are known by: the first one's number, the mark, and the inherited pipe (its inode)."""

    root: int
    mark: str
    pipe: int


class Entry(NamedTuple):
    """A line of the process table."""

    pid: int
    parent: int
    group: int
    session: int
    state: str


def kill_tree(tree: Tree) -> bool:
    """Kill every process that belongs to the command, until none is left.

    `root` must not have been waited for yet, so that its number is not somebody else's. Blocks for a few milliseconds
    (at most about ROUNDS_MAX times ROUND_SECONDS); returns whether all are gone.
    """
    for _ in range(ROUNDS_MAX):
        victims = find_tree(tree)
        if not victims:
            return True
        _kill(victims)
        time.sleep(ROUND_SECONDS)
    return False


def find_tree(tree: Tree) -> set[int]:
    """The numbers of the command's living processes."""
    table = list(_table())
    found, me = {tree.root}, os.getpid()
    while True:
        found = _descendants(found, table)
        strangers = [entry.pid for entry in table if entry.pid not in found | {me} and entry.state not in _DEAD]
        known = {pid for pid in strangers if tree.mark in _marks(pid)} | _holding(strangers, tree.pipe)
        if not known:
            return found & _living(table)
        found |= known


def kill_marked(is_wanted: Callable[[str], bool]) -> int:
    """Kill every process with a wanted mark and what descends from it, until none is left; returns how many there were.

    This process and what it has its own marks from are spared. Reads the whole process table at least once.
    """
    killed, me = set[int](), os.getpid()
    spared = _marks(me)
    for _ in range(ROUNDS_MAX):
        table = list(_table())
        marked = {pid for pid in _living(table) - {me} if any(map(is_wanted, _marks(pid) - spared))}
        victims = _descendants(marked, table) & _living(table) - {me}
        if not victims:
            break
        _kill(victims)
        killed |= victims
        time.sleep(ROUND_SECONDS)
    return len(killed)


def marking_file(mark: str) -> int | None:
    """An empty file in memory, named by the mark, for a command's processes to inherit: it stays when they clear their
    environment. None where there are none."""
    if not hasattr(os, "memfd_create"):
        return None
    import fcntl

    file = os.memfd_create(f"{MARK}={mark}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return file


def _descendants(roots: set[int], table: Sequence[Entry]) -> set[int]:
    """These, their children's children, and whoever shares a session or process group that one of them leads."""
    found = set(roots)
    while more := {entry.pid for entry in table if {entry.parent, entry.group, entry.session} & found} - found:
        found |= more
    return found


def _living(table: Sequence[Entry]) -> set[int]:
    return {entry.pid for entry in table if entry.state not in _DEAD}


def _kill(pids: Iterable[int]) -> None:
    """Stops them all before it ends one, so that none goes on to its next step when what it waits for has ended."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _table() -> Iterator[Entry]:
    if not Path("/proc/self/stat").exists():
        yield from _table_by_psutil()
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and (line := _read(f"/proc/{name}/stat")):
            fields = line[line.rindex(b")") + 2 :].split(maxsplit=4)
            yield Entry(int(name), int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode())


def _marks(pid: int) -> set[str]:
    """The marks in a process's environment and among its open files; none where they cannot be read."""
    if not Path("/proc/self/environ").exists():
        return {_mark_by_psutil(pid)} - {""}
    name = f"{MARK}="
    words = [os.fsdecode(word) for word in _read(f"/proc/{pid}/environ").split(b"\0")]
    words += [file.removeprefix("/memfd:").removesuffix(" (deleted)") for file in _files(pid)]
    return {word.removeprefix(name) for word in words if word.startswith(name)}


def _holding(pids: Iterable[int], pipe: int) -> set[int]:
    wanted = f"pipe:[{pipe}]"
    return {pid for pid in pids if wanted in _files(pid, only_written=True)}


def _files(pid: int, *, only_written: bool = False) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if not only_written or os.lstat(f"{folder}/{name}").st_mode & 0o700 == _WRITE_ONLY:
                yield os.readlink(f"{folder}/{name}")
    except OSError:
        return  # it ended meanwhile, is another user's, or there is no /proc


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""  # it ended meanwhile, or is another user's


def _table_by_psutil() -> Iterator[Entry]:
    import psutil

    for process in psutil.process_iter():
        try:
            state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "R"
            yield Entry(process.pid, process.ppid(), os.getpgid(process.pid), os.getsid(process.pid), state)
        except (psutil.Error, OSError):
            continue


def _mark_by_psutil(pid: int) -> str:
    import psutil

    try:
        return psutil.Process(pid).environ().get(MARK, "")
    except (psutil.Error, OSError):
        return ""
