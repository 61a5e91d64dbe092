"""What turns and undos did to workspaces: rows that name the trees from before and after, which files hold."""

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
"""Undos that can be under way at the same time."""
AT_ONCE_MAX = 500
"""Turns of one workspace that are looked at to find those at work at the same time, and rows read at once."""

_row = reader(CheckpointRow)


class CheckpointStore(StorePart):
    """Rows by the ids of turns and undos, which sort by time."""

    async def get(self, id: str) -> CheckpointRow | None:
        return await self._one(_row, "checkpoint_one", id=id)

    @reads
    def newest(self, thread: ThreadId) -> Script[list[CheckpointRow]]:
        """Those of a thread and of its subagents, newest first, at most AT_ONCE_MAX."""
        found = list[CheckpointRow]()
        for one in (yield from with_subagents(thread)):
            found += map(_row, (yield from query("checkpoints_of", thread=one, limit=AT_ONCE_MAX)))
        return sorted(found, key=lambda row: row.id, reverse=True)[:AT_ONCE_MAX]

    async def of_workspace(self, workspace: str, below: str = LAST) -> list[CheckpointRow]:
        """Those of a workspace, newest first, at most AT_ONCE_MAX."""
        where = {"workspace": workspace, "below": below, "limit": AT_ONCE_MAX}
        return [_row(row) for row in await self._read("checkpoints_in", **where)]

    async def trees(self, workspace: str) -> set[str]:
        """Every tree that is named for a workspace."""
        found, below = set[str](), LAST
        while page := await self.of_workspace(workspace, below):
            found.update(tree for row in page for tree in (row.before, row.after) if tree)
            below = page[-1].id
        return found

    async def undoing(self) -> list[CheckpointRow]:
        """The undos that are under way, or were cut."""
        return [_row(row) for row in await self._read("checkpoints_undoing", limit=UNDOING_MAX)]

    @writes_at
    def begin_undo(self, at: datetime, undo: str, done: CheckpointRow, by: str, now: str, then: str) -> Script[None]:
        """An undo is about to bring a workspace from one tree to another.

        Raises NotFound for a thread that is gone, Conflict where it has something to do or somebody was faster.
        """
        yield from query("thread_lock", thread=done.thread)
        yield from lock_at_rest(done.thread, at)
        if not (yield from query("checkpoint_undone", id=done.id, undo=undo, before="")):
            raise Conflict("Somebody else has just undone this.")
        row = {"id": undo, "thread": done.thread, "workspace": done.workspace, "author": by}
        yield from query("checkpoint_begin", **row, before=now, after=then, undoes=done.id, now=at)

    @writes_at
    def end_undo(
        self, at: datetime, undo: CheckpointRow, after: str, event: FilesRestored, audit: AuditEntry
    ) -> Script[tuple[Event, ...]]:
        """An undo has ended: journal and audit it. Empty where that was done already; of a thread that was deleted
        meanwhile only the row is left."""
        yield from query("thread_lock", thread=undo.thread)
        if not (yield from query("checkpoint_end", id=undo.id, after=after, now=at)):
            return ()
        above, stands = undo.undoes, True  # what it undid had undone something, which stands again, and so on
        while (found := (yield from query("checkpoint_one", id=above))) and (below := _row(found[0]).undoes):
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
        """Delete what began before this time and has ended, a page at a time; yields the workspaces."""
        after = ""
        while page := await self._read("checkpoints_page", after=after, limit=AT_ONCE_MAX):
            upto = text(page[-1][0])
            if all(number(row[1]) >= to_micros(before) for row in page):
                return
            for row in await self._write("checkpoints_forget", after=after, upto=upto, before=before):
                yield text(row[0])
            after = upto


def note_checkpoints(thread: ThreadId, turn: TurnId, events: Sequence[EventData], at: datetime) -> Script[None]:
    """The rows that follow from a turn's events."""
    for data in events:
        if isinstance(data, Checkpointed):
            row = {"id": turn, "thread": thread, "workspace": data.workspace, "author": data.author}
            row |= {"before": data.tree, "after": "", "undoes": ""}
            yield from query("checkpoint_begin", **row, now=at)
        elif isinstance(data, FilesChanged):
            yield from query("checkpoint_end", id=turn, after=data.tree, now=at)
