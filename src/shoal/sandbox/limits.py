"""What a command may use, and the line of shell that sets these limits before a sandboxed command starts."""

import resource

import msgspec

from shoal.domain.ports import Command

GIBIBYTE = 1_073_741_824


class Limits(msgspec.Struct, frozen=True):
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


def limits_for(command: Command, limits: Limits) -> Limits:
    """The limits of a command: what somebody watches may compute for as long as it runs."""
    return limits if command.watch is None else msgspec.structs.replace(limits, cpu_seconds_max=0)


def ulimit_line(limits: Limits) -> str:
    """A bash command that sets `limits` for the shell it runs in and for all it starts, or exits with 125.

    A limit that this process is itself below is left where it is, since nobody may raise it.
    """
    wanted = (
        ("c", resource.RLIMIT_CORE, 0, 1),
        ("d", resource.RLIMIT_DATA, limits.memory_bytes_max, 1024),
        ("f", resource.RLIMIT_FSIZE, limits.file_bytes_max, 1024),
        ("n", resource.RLIMIT_NOFILE, limits.open_files_max, 1),
        ("t", resource.RLIMIT_CPU, limits.cpu_seconds_max, 1),
        ("u", resource.RLIMIT_NPROC, limits.processes_max, 1),
    )
    options = [f"-{flag} {_within(limit, kind) // unit}" for flag, kind, limit, unit in wanted if limit or flag == "c"]
    return f"ulimit {' '.join(options)} || exit 125; "


def _within(limit: int, kind: int) -> int:
    _, hard = resource.getrlimit(kind)
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)
