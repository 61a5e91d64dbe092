"""Finds and kills everything a command started: also children that left its session or lost their parent.

A process belongs to a command when it is the command's first process or descends from it, is in its session or
process group, carries the command's mark in its environment, or holds the pipe that the command's processes inherit
(both survive `setsid` and a double fork). On the host a program bent on staying can undo all of these; in an isolating
sandbox it cannot leave its process namespace.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MARK = "SHOAL_COMMAND"
"""The environment variable by which a command's processes are known again."""

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
        for pid in victims:
            _kill(pid)
        time.sleep(ROUND_SECONDS)
    return False


def find_tree(tree: Tree) -> set[int]:
    """The numbers of the command's living processes."""
    table = list(_table())
    found, me = {tree.root}, os.getpid()
    grew = True
    while grew:
        size = len(found)
        found.update(entry.pid for entry in table if {entry.parent, entry.group, entry.session} & found)
        if len(found) == size:
            strangers = [entry.pid for entry in table if entry.pid not in found | {me} and entry.state not in _DEAD]
            found.update(_marked(strangers, tree.mark), _holding(strangers, tree.pipe))
        grew = len(found) > size
    alive = {entry.pid for entry in table if entry.state not in _DEAD}
    return found & alive


def kill_orphans() -> int:
    """Kill the processes of commands whose server has died, known by the server's number in their mark.

    Returns how many were killed. Reads the whole process table once.
    """
    alive = {entry.pid for entry in _table() if entry.state not in _DEAD}
    owners = {pid: _mark(pid).partition("-")[0] for pid in alive}
    orphans = [pid for pid, owner in owners.items() if owner.isdigit() and int(owner) not in alive]
    for pid in orphans:
        _kill(pid)
    return len(orphans)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _table() -> Iterator[Entry]:
    if not Path("/proc/self/stat").exists():
        yield from _table_by_psutil()
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and (line := _read(f"/proc/{name}/stat")):
            fields = line[line.rindex(b")") + 2 :].split(maxsplit=4)
            yield Entry(int(name), int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode())


def _marked(pids: Iterable[int], mark: str) -> set[int]:
    return {pid for pid in pids if _mark(pid) == mark}


def _mark(pid: int) -> str:
    """The mark in a process's environment; empty where there is none or it cannot be read."""
    if not Path("/proc/self/environ").exists():
        return _mark_by_psutil(pid)
    name = f"{MARK}=".encode()
    found = (part for part in _read(f"/proc/{pid}/environ").split(b"\0") if part.startswith(name))
    return next(found, name)[len(name) :].decode(errors="replace")


def _holding(pids: Iterable[int], pipe: int) -> set[int]:
    wanted = f"pipe:[{pipe}]"
    return {pid for pid in pids if wanted in _written_files(pid)}


def _written_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.lstat(f"{folder}/{name}").st_mode & 0o700 == _WRITE_ONLY:
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
