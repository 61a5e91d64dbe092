"""API endpoints for saved conversations."""

from typing import Annotated

import msgspec

from shoal.features.snapshots.records import Snapshot
from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.ids import ThreadId
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes, checked_text
from shoal.threads.principals import Principal

routes = Routes()


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of the conversation to save. If empty, the model writes it."""

    description: Annotated[str, msgspec.Meta(max_length=500)] = ""


class StartOverResult(msgspec.Struct, frozen=True):
    """Result of starting a new conversation. `snapshot` is the saved conversation, or null if the conversation was
    empty.
    """

    cleared: bool
    snapshot: Snapshot | None


@routes("POST /api/threads/{thread}/new", ADMINS)
async def begin_anew(snapshots: ConversationSnapshots, by: Principal, thread: ThreadId) -> StartOverResult:
    """Save the conversation, then start a new one in the thread. Nothing is deleted."""
    return StartOverResult(True, await snapshots.start_over(thread, by.author.id))


@routes("POST /api/threads/{thread}/snapshots", ADMINS, status=201, body_optional=True)
async def save_snapshot(snapshots: ConversationSnapshots, thread: ThreadId, body: NewSnapshot) -> Snapshot:
    """Save the conversation as the model sees it, without clearing it."""
    return await snapshots.save(thread, body.description and checked_text(body.description, "description"))


@routes("GET /api/threads/{thread}/snapshots", READERS)
async def snapshots(snapshots: ConversationSnapshots, thread: ThreadId) -> list[Snapshot]:
    """List the conversations that the thread's agent saved in this channel, newest first."""
    return await snapshots.history(thread)


@routes("POST /api/threads/{thread}/snapshots/{snapshot}/restore", ADMINS)
async def restore_snapshot(
    snapshots: ConversationSnapshots, by: Principal, thread: ThreadId, snapshot: str
) -> Snapshot:
    """Replace the conversation with a saved one."""
    return await snapshots.restore(thread, snapshot, by.author.id)
