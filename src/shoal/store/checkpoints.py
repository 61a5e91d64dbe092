"""Workspace checkpoints: for each turn and undo, the digests of the file trees before and after."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from shoal.kernel.checkpoints import CheckpointRow
from shoal.kernel.clock import to_micros
from shoal.kernel.errors import Conflict
from shoal.kernel.events import Checkpointed, Event, EventData, FilesChanged, FilesRestored
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.records import AuditEntry
from shoal.store.appends import append_outside, chain, lock_at_rest
from shoal.store.driver import LAST, Script, StorePart, number, query, reader, reads, text, writes_at
from shoal.store.threads import with_subagents

UNDOING_MAX = 1000
"""Undos that can run at the same time."""
AT_ONCE_MAX = 500
"""Turns of a workspace checked for concurrent ones, and rows read at once."""

_row = reader(CheckpointRow)


class CheckpointStore(StorePart):
    """Checkpoints by the id of their turn or undo. The ids sort by time."""

    async def get(self, id: str) -> CheckpointRow | None:
        return await self._one(_row, "checkpoint_one", id=id)

    @reads
    def newest(self, thread: ThreadId) -> Script[list[CheckpointRow]]:
        """Return the checkpoints of a thread and its subagents, newest first, at most AT_ONCE_MAX."""
        checkpoints = list[CheckpointRow]()
        for member in (yield from with_subagents(thread)):
            checkpoints += map(_row, (yield from query("checkpoints_of", thread=member, limit=AT_ONCE_MAX)))
        return sorted(checkpoints, key=lambda row: row.id, reverse=True)[:AT_ONCE_MAX]

    async def of_workspace(self, workspace: str, below: str = LAST) -> list[CheckpointRow]:
        """Return the checkpoints of a workspace, newest first, at most AT_ONCE_MAX."""
        where = {"workspace": workspace, "below": below, "limit": AT_ONCE_MAX}
        return [_row(row) for row in await self._read("checkpoints_in", **where)]

    async def trees(self, workspace: str) -> set[str]:
        """Yield every tree that a checkpoint of the workspace refers to."""
        digests, below = set[str](), LAST
        while page := await self.of_workspace(workspace, below):
            digests.update(tree for row in page for tree in (row.before, row.after) if tree)
            below = page[-1].id
        return digests

    async def undoing(self) -> list[CheckpointRow]:
        """Return the undos that are running or were interrupted."""
        return [_row(row) for row in await self._read("checkpoints_undoing", limit=UNDOING_MAX)]

    @writes_at
    def begin_undo(self, at: datetime, undo: str, done: CheckpointRow, by: str, now: str, then: str) -> Script[None]:
        """Record an undo that is about to change a workspace from one tree to another.

        Raises NotFound if the thread is deleted, Conflict if it is active or another undo came first.
        """
        yield from query("thread_lock", thread=done.thread)
        yield from lock_at_rest(done.thread, at)
        if not (yield from query("checkpoint_undone", id=done.id, undo=undo, before="")):
            raise Conflict("This was just undone by someone else.")
        row = {"id": undo, "thread": done.thread, "workspace": done.workspace, "author": by}
        yield from query("checkpoint_begin", **row, before=now, after=then, undoes=done.id, now=at)

    @writes_at
    def end_undo(
        self, at: datetime, undo: CheckpointRow, after: str, event: FilesRestored, audit: AuditEntry
    ) -> Script[tuple[Event, ...]]:
        """Journal and audit the end of an undo.

        Return no events if that was already done. For a deleted thread, only the row is updated.
        """
        yield from query("thread_lock", thread=undo.thread)
        if not (yield from query("checkpoint_end", id=undo.id, after=after, now=at)):
            return ()
        above, stands = undo.undoes, True  # undoing an undo restores what that one had undone, and so on
        while (rows := (yield from query("checkpoint_one", id=above))) and (below := _row(rows[0]).undoes):
            if stands:
                yield from query("checkpoint_again", id=below, undo=above)
            else:
                yield from query("checkpoint_undone", id=below, undo=above, before="")
            above, stands = below, not stands
        if not (yield from query("thread_one", thread=undo.thread)):
            return ()
        events = yield from append_outside(undo.thread, TurnId(""), [event], at)
        yield from chain(undo.thread, [audit], at)
        return events

    async def forget(self, before: datetime) -> AsyncGenerator[str]:
        """Delete ended checkpoints that began before this time, a page at a time, and yield their workspaces."""
        after = ""
        while page := await self._read("checkpoints_page", after=after, limit=AT_ONCE_MAX):
            upto = text(page[-1][0])
            if all(number(row[1]) >= to_micros(before) for row in page):
                return
            for row in await self._write("checkpoints_forget", after=after, upto=upto, before=before):
                yield text(row[0])
            after = upto


def note_checkpoints(thread: ThreadId, turn: TurnId, events: Sequence[EventData], at: datetime) -> Script[None]:
    """Store the checkpoints of a turn's events."""
    for data in events:
        if isinstance(data, Checkpointed):
            row = {"id": turn, "thread": thread, "workspace": data.workspace, "author": data.author}
            row |= {"before": data.tree, "after": "", "undoes": ""}
            yield from query("checkpoint_begin", **row, now=at)
        elif isinstance(data, FilesChanged):
            yield from query("checkpoint_end", id=turn, after=data.tree, now=at)
