"""Calls about the processes that agents have started."""

from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.errors import Conflict
from shoal.domain.processes import Hook, Process, ProcessState
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, READERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import path_part, read_query


class ProcessView(msgspec.Struct, frozen=True):
    """A process; `pid` is 0 where it is not known, `exit_code` null unless it has ended by itself."""

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


class ProcessesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which processes: of one agent, or only those that run."""

    agent: Annotated[str, msgspec.Meta(max_length=64)] = ""
    running: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class LogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines: the last `tail`, or so many from byte `offset` on; only those that contain `grep`."""

    tail: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    offset: Annotated[int, msgspec.Meta(ge=-1)] = -1
    grep: Annotated[str, msgspec.Meta(max_length=200)] = ""


class LogView(msgspec.Struct, frozen=True):
    """Lines of a log; `next_offset` is where the next begin, of `total_bytes` that were written in all."""

    lines: tuple[str, ...]
    next_offset: int
    total_bytes: int


def process_view(process: Process) -> ProcessView:
    """A process as the API shows it."""
    spec = process.spec
    return ProcessView(
        id=process.id,
        name=spec.title,
        agent=spec.agent,
        thread=spec.thread,
        command=spec.command,
        state=process.state,
        pid=process.pid,
        started_at=process.started_at,
        ended_at=process.ended_at,
        exit_code=process.exit_code,
        reason=process.reason,
        hooks=spec.hooks,
    )


async def _processes(web: Web, request: Request) -> Response:
    query = read_query(request, ProcessesQuery)
    found = await web.core.store.processes.search(agent=query.agent, running=query.running, limit=query.limit)
    return json_answer([process_view(process) for process in found])


async def _process(web: Web, request: Request) -> Response:
    return json_answer(process_view(await web.core.processes.get(path_part(request, "id"))))


async def _log(web: Web, request: Request) -> Response:
    query = read_query(request, LogQuery)
    process = await web.core.processes.get(path_part(request, "id"))
    piece = await web.core.processes.read(process, offset=query.offset, lines_max=query.tail, contains=query.grep)
    return json_answer(LogView(piece.lines, piece.next_offset, piece.total_bytes))


async def _kill(web: Web, request: Request) -> Response:
    process = await web.core.processes.get(path_part(request, "id"))
    if process.state != "running":
        raise Conflict(f"Process {process.id} does not run any more: {process.state}.")
    return json_answer(process_view(await web.core.processes.kill(process.id, caller(request).author.id)), 202)


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/processes", handler=_processes, scopes=READERS, query=ProcessesQuery,
        summary="Processes that agents have started, newest first.", answer=Answer("Processes.", list[ProcessView]),
    ),
    Endpoint(
        method="GET", path="/api/processes/{id}", handler=_process, scopes=READERS,
        summary="One process.", answer=Answer("The process.", ProcessView),
    ),
    Endpoint(
        method="GET", path="/api/processes/{id}/log", handler=_log, scopes=READERS, query=LogQuery,
        summary="Lines of a process's output.", answer=Answer("Lines.", LogView),
    ),
    Endpoint(
        method="DELETE", path="/api/processes/{id}", handler=_kill, scopes=ADMINS,
        summary="Kill a process with all its children; 409 when it does not run any more.",
        answer=Answer("It is being killed.", ProcessView, 202),
    ),
)  # fmt: skip
