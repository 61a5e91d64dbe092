"""Database rows of undos. Like a turn, an undo has a checkpoint before and after it."""

from datetime import datetime

from shoal.kernel.checkpoints import CheckpointRow
from shoal.kernel.errors import Conflict
from shoal.kernel.events import Event, FilesRestored
from shoal.kernel.ids import TurnId
from shoal.kernel.records import AuditEntry
from shoal.store.appends import append_outside, chain, lock_at_rest
from shoal.store.checkpoints import checkpoint
from shoal.store.driver import Script, StorePart, query, writes_at

RUNNING_MAX = 1000


class UndoStore(StorePart):
    """Database access for the checkpoints of undos, by undo id."""

    async def running(self) -> list[CheckpointRow]:
        return [checkpoint(row) for row in await self._read("checkpoints_undoing", limit=RUNNING_MAX)]

    @writes_at
    def begin(self, at: datetime, undo: str, done: CheckpointRow, by: str, now: str, then: str) -> Script[None]:
        """Record an undo that will change a workspace from one tree to another.

        Raises NotFound if the thread is deleted, and Conflict if the thread is active or another undo came first.
        """
        yield from query("thread_lock", thread=done.thread)
        yield from lock_at_rest(done.thread, at)
        if not (yield from query("checkpoint_undone", id=done.id, undo=undo, before="")):
            raise Conflict("Someone else has just undone these changes.")
        row = {"id": undo, "thread": done.thread, "workspace": done.workspace, "author": by}
        yield from query("checkpoint_begin", **row, before=now, after=then, undoes=done.id, now=at)

    @writes_at
    def end(
        self, at: datetime, undo: CheckpointRow, after: str, event: FilesRestored, audit: AuditEntry
    ) -> Script[tuple[Event, ...]]:
        """Record the end of an undo in its row, the journal and the audit log.

        Return no events if the end was already recorded. If the thread is deleted, only the row is updated.
        """
        yield from query("thread_lock", thread=undo.thread)
        if not (yield from query("checkpoint_end", id=undo.id, after=after, now=at)):
            return ()
        above, is_applied = undo.undoes, True  # in a chain of undos, each one reverses the effect of the next
        while (rows := (yield from query("checkpoint_one", id=above))) and (below := checkpoint(rows[0]).undoes):
            if is_applied:
                yield from query("checkpoint_again", id=below, undo=above)
            else:
                yield from query("checkpoint_undone", id=below, undo=above, before="")
            above, is_applied = below, not is_applied
        if not (yield from query("thread_one", thread=undo.thread)):
            return ()
        events = yield from append_outside(undo.thread, TurnId(""), [event], at)
        yield from chain(undo.thread, [audit], at)
        return events
