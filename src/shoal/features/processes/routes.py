"""API endpoints for agents' processes: list, read output, kill."""

from datetime import datetime
from typing import Annotated

import msgspec

from shoal.features.processes.logs import LogPiece
from shoal.features.processes.records import Hook, Process, ProcessState
from shoal.features.processes.service import ProcessService
from shoal.kernel.errors import Conflict
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes, view
from shoal.threads.principals import Principal

routes = Routes()

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class ProcessView(msgspec.Struct, frozen=True):
    """A process.

    `pid`: process id, or 0 if unknown.
    `exit_code`: exit code, or null if unknown.
    """

    id: str
    name: str
    agent: str
    thread: str
    command: str
    state: ProcessState
    pid: int
    started_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    reason: str
    hooks: tuple[Hook, ...]


def _process_view(process: Process) -> ProcessView:
    spec = process.spec
    return view(ProcessView, process, **{**msgspec.structs.asdict(spec), "name": spec.title})


@routes("GET /api/processes", READERS)
async def listed(
    processes: ProcessService,
    *,
    agent: Annotated[str, msgspec.Meta(max_length=64)] = "",
    running: bool = False,
    limit: Limit = 100,
) -> list[ProcessView]:
    """List processes that agents have started, newest first. `agent` limits the list to one agent, and `running` to
    running processes.
    """
    rows = await processes.rows.search(agent=agent, running=running, limit=limit)
    return [_process_view(process) for process in rows]


@routes("GET /api/processes/{id}", READERS)
async def process(processes: ProcessService, id: str) -> ProcessView:
    """Return one process."""
    return _process_view(await processes.get(id))


@routes("GET /api/processes/{id}/log", READERS)
async def log(
    processes: ProcessService,
    id: str,
    *,
    tail: Limit = 100,
    offset: Annotated[int, msgspec.Meta(ge=-1)] = -1,
    grep: Annotated[str, msgspec.Meta(max_length=200)] = "",
) -> LogPiece:
    """Return lines of a process's output: the last `tail` lines, or `tail` lines from byte `offset`. `grep` selects the
    lines that contain this text.
    """
    row = await processes.get(id)
    return await processes.read(row, offset=offset, lines_max=tail, contains=grep)


@routes("DELETE /api/processes/{id}", ADMINS, status=202)
async def kill(processes: ProcessService, by: Principal, id: str) -> ProcessView:
    """Kill a process and all its children. Returns 409 if it has already ended."""
    row = await processes.get(id)
    if row.state != "running":
        raise Conflict(f"Process {id} has already ended: {row.state}.")
    return _process_view(await processes.kill(id, by.author.id))
