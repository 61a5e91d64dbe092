"""API endpoints for showing and undoing the file changes of turns."""

import msgspec

from shoal.features.undo.records import UndoResult
from shoal.features.undo.undo import Undo
from shoal.kernel.checkpoints import ChangedSince, TurnChanges
from shoal.kernel.ids import ThreadId
from shoal.running import Runtime
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import EVERYONE, TALKERS, Routes
from shoal.surfaces.http.routes_threads import check_intake, known_thread
from shoal.threads.principals import Principal

routes = Routes()


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options for an undo. If files changed after the turn, `ask` restores nothing and returns 409, `keep` leaves these
    files unchanged, and `overwrite` restores them too.
    """

    since: ChangedSince = "ask"


@routes("GET /api/threads/{thread}/turns/{turn}/changes", EVERYONE)
async def turn_changes(store: Store, undos: Undo, by: Principal, thread: ThreadId, turn: str) -> TurnChanges:
    """Return the file changes of a turn or an undo, as diffs. `turn` is an id, `last` for the last turn that can be
    undone, `2` for the turn before it, or `back` for the last undo. Returns 404 if no changes were recorded.
    """
    await known_thread(store, thread)
    return await undos.show(thread, turn, by.asker if by.is_confined else None)


@routes("POST /api/threads/{thread}/turns/{turn}/undo", TALKERS, body_optional=True)
async def undo_turn(
    undos: Undo, runtime: Runtime, by: Principal, thread: ThreadId, turn: str, body: UndoRequest
) -> UndoResult:
    """Restore the files that a turn or an undo changed. Returns 409 if files have changed since the turn, unless
    `since` is `keep` or `overwrite`.
    """
    check_intake(runtime)
    return await undos.undo(thread, turn, by.asker, body.since)
