"""Calls about results that are stored whole: listing a thread's, and fetching one."""

from datetime import datetime

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.errors import NotFound
from shoal.domain.records import Artifact
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import EVERYONE, Answer, Endpoint, json_answer
from shoal.surfaces.http.parse import path_part, path_thread


class ArtifactView(msgspec.Struct, frozen=True):
    """A stored result. `name` is the tool it came from; `artifact` names it in events and in the next call."""

    artifact: str
    name: str
    size_bytes: int
    turn: str
    call_id: str
    tainted_by: str
    created_at: datetime


def _view(found: Artifact) -> ArtifactView:
    return ArtifactView(
        artifact=found.digest,
        name=found.name,
        size_bytes=found.size_bytes,
        turn=found.turn,
        call_id=found.call_id,
        tainted_by=found.tainted_by,
        created_at=found.created_at,
    )


async def _artifacts(web: Web, request: Request) -> Response:
    found = await web.core.store.artifacts.of_thread(path_thread(request))
    return json_answer([_view(one) for one in found])


async def _artifact(web: Web, request: Request) -> Response:
    thread, name = path_thread(request), path_part(request, "artifact")
    found = await web.core.store.artifacts.find(thread, name)
    if found is None:
        raise NotFound("The thread has no such artifact. GET /api/threads/{thread}/artifacts lists them.")
    try:
        content = await anyio.to_thread.run_sync(web.core.artifacts.read, found.digest)
    except FileNotFoundError as error:
        raise NotFound(f"Artifact {found.digest} is gone: it was too old to be kept.") from error
    return Response(content, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "private, no-cache"})


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/threads/{thread}/artifacts", handler=_artifacts, scopes=EVERYONE,
        summary="Results of the thread that are stored whole, newest first.",
        answer=Answer("Artifacts.", list[ArtifactView]),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}/artifacts/{artifact}", handler=_artifact, scopes=EVERYONE,
        summary="One stored result, as text.", answer=Answer("The text.", None, 200, "text/plain"),
    ),
)  # fmt: skip
