"""Knows a process of this machine again, by its number and when it started, since numbers are used again; and the
commands of a server that has died, by the mark that names it."""

import itertools
import os
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

from shoal.sandbox.tree import kill_marked

_numbers = itertools.count(1)


def identity_of(pid: int) -> str:
    """`PID START BOOT` of a running process; `BOOT` is `-` where `START` is no time since then, and the whole is empty
    for one that is not there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _identity_by_psutil(pid)
    return "" if fields[0] in (b"Z", b"X") else f"{pid} {fields[19].decode()} {boot}"


def is_alive(identity: str) -> bool:
    """Whether the process of that identity still runs."""
    pid = identity.partition(" ")[0]
    return pid.isdigit() and identity_of(int(pid)) == identity


def end_found(identity: str) -> None:
    """Kill what is left of a command whose server has died: its session, and whatever carries a dead server's mark.

    Blocks for a moment; reads the process table once.
    """
    if is_alive(identity):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(identity.partition(" ")[0]), signal.SIGKILL)
    kill_orphans()


def new_mark() -> str:
    """A mark for a command of this process: `NAMESPACE PID START BOOT/NUMBER`."""
    return f"{_namespace()} {_identity(os.getpid())}/{next(_numbers)}"


def is_orphaned(mark: str) -> bool:
    """Whether a command with this mark was started by a process that has died.

    False for those of other process namespaces, whose numbers mean nothing here.
    """
    namespace, _, identity = mark.partition("/")[0].partition(" ")
    return bool(identity) and namespace == _namespace() and not is_alive(identity)


def kill_orphans() -> int:
    """Kill what the commands of servers that have died have left running; returns how many processes that were.

    Blocks for as long as it takes to read the process table.
    """
    return kill_marked(is_orphaned)


@cache
def _identity(pid: int) -> str:
    return identity_of(pid)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"


def _identity_by_psutil(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{pid} {process.create_time():.3f} -"
    except psutil.Error:
        return ""
