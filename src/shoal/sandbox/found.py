"""Knows a process of this machine again, by its number and when it started, since numbers are used again."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from shoal.sandbox.tree import kill_orphans


def identity_of(pid: int) -> str:
    """`PID START BOOT` of a running process; `START` and `BOOT` are `-` where the system does not tell, and the whole
    is empty for one that is not there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "" if Path("/proc/self/stat").exists() or not _exists(pid) else f"{pid} - -"
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


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
