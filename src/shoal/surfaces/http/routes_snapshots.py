"""Calls about saved conversations: saving, listing, restoring, beginning anew."""

from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.records import Snapshot
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, READERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import checked_text, path_part, path_thread, read_json


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to save a conversation under; the model describes it when this is empty."""

    description: Annotated[str, msgspec.Meta(max_length=500)] = ""


class SnapshotView(msgspec.Struct, frozen=True):
    """A saved conversation."""

    id: str
    thread: str
    agent: str
    description: str
    messages: int
    created_at: datetime


class BegunAnew(msgspec.Struct, frozen=True):
    """The window is clear; `snapshot` holds what was in it, null when it was empty."""

    cleared: bool
    snapshot: SnapshotView | None


def _view(saved: Snapshot) -> SnapshotView:
    return SnapshotView(saved.id, saved.thread, saved.agent, saved.description, saved.messages, saved.created_at)


async def _save_snapshot(web: Web, request: Request) -> Response:
    body = await read_json(request, NewSnapshot, seconds=web.options.body_seconds, optional=True)
    description = checked_text(body.description, "description") if body.description else ""
    return json_answer(_view(await web.core.snapshots.save(path_thread(request), description)), 201)


async def _snapshots(web: Web, request: Request) -> Response:
    return json_answer([_view(one) for one in await web.core.snapshots.history(path_thread(request))])


async def _restore_snapshot(web: Web, request: Request) -> Response:
    thread, snapshot = path_thread(request), path_part(request, "snapshot")
    return json_answer(_view(await web.core.snapshots.restore(thread, snapshot, caller(request).author.id)))


async def _begin_anew(web: Web, request: Request) -> Response:
    saved = await web.core.snapshots.begin_anew(path_thread(request), caller(request).author.id)
    return json_answer(BegunAnew(True, None if saved is None else _view(saved)))


ENDPOINTS = (
    Endpoint(
        method="POST", path="/api/threads/{thread}/snapshots", handler=_save_snapshot, scopes=ADMINS,
        body=NewSnapshot, body_optional=True,
        summary="Save what the model sees of a thread; nothing is cleared.",
        answer=Answer("What was saved.", SnapshotView, 201),
    ),
    Endpoint(
        method="GET", path="/api/threads/{thread}/snapshots", handler=_snapshots, scopes=READERS,
        summary="What the thread's agent saved in its channel, newest first.",
        answer=Answer("Saved conversations.", list[SnapshotView]),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/snapshots/{snapshot}/restore", handler=_restore_snapshot,
        scopes=ADMINS,
        summary="Put a saved conversation in the place of what the model sees.",
        answer=Answer("What was restored.", SnapshotView),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/new", handler=_begin_anew, scopes=ADMINS,
        summary="Save what the model sees of a thread, then start its window anew; nothing is deleted.",
        answer=Answer("Done.", BegunAnew),
    ),
)  # fmt: skip
