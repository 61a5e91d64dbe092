"""Render the state of a process as text for agents and people."""

from datetime import datetime

from shoal.features.processes.records import Process


def ending_of(process: Process) -> str:
    """Describe how a process ended, as the continuation of "The process …"."""
    after = f" after {lasted(process, process.ended_at)}" if process.ended_at is not None else ""
    match process.state:
        case "exited":
            return f"ended with exit code {process.exit_code}{after}"
        case "killed":
            return f"was killed{after}{f': {process.reason}' if process.reason else ''}"
        case "lost":
            return f"disappeared{after}: {process.reason}"
        case "failed":
            return f"failed to start: {process.reason}"
        case "running":
            return f"running since {process.started_at:%Y-%m-%d %H:%M} UTC"


def lasted(process: Process, until: datetime | None) -> str:
    seconds = int(((until or process.seen_at) - process.started_at).total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def line_of(process: Process, now: datetime, *, is_named: bool = True) -> str:
    """Describe a process in one line. If `is_named` is false, omit the name, which the model chose."""
    since = f"running for {lasted(process, now)}" if process.state == "running" else ending_of(process)
    return f"{process.id} {process.spec.title!r}: {since}" if is_named else f"{process.id}: {since}"
