"""Workspace checkpoints: digests of the file tree before and after each turn or undo."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from shoal.kernel.checkpoints import CheckpointRow
from shoal.kernel.clock import to_micros
from shoal.kernel.events import Checkpointed, EventData, FilesChanged
from shoal.kernel.ids import ThreadId, TurnId
from shoal.store.driver import LAST, Script, StorePart, number, query, reader, reads, text
from shoal.store.threads import with_subagents

AT_ONCE_MAX = 500
"""Maximum number of checkpoints per read. Undo compares a turn with at most this many turns of the workspace, newest
first.
"""

checkpoint = reader(CheckpointRow)


class CheckpointStore(StorePart):
    """Checkpoints, keyed by the id of their turn or undo. The ids sort by time."""

    async def get(self, id: str) -> CheckpointRow | None:
        return await self._one(checkpoint, "checkpoint_one", id=id)

    @reads
    def newest(self, thread: ThreadId) -> Script[list[CheckpointRow]]:
        """Return the checkpoints of a thread and its subagents, newest first, at most AT_ONCE_MAX."""
        checkpoints = list[CheckpointRow]()
        for member in (yield from with_subagents(thread)):
            checkpoints += map(checkpoint, (yield from query("checkpoints_of", thread=member, limit=AT_ONCE_MAX)))
        return sorted(checkpoints, key=lambda row: row.id, reverse=True)[:AT_ONCE_MAX]

    async def of_workspace(self, workspace: str, below: str = LAST) -> list[CheckpointRow]:
        """Return the checkpoints of a workspace with ids below `below`, newest first, at most AT_ONCE_MAX."""
        where = {"workspace": workspace, "below": below, "limit": AT_ONCE_MAX}
        return [checkpoint(row) for row in await self._read("checkpoints_in", **where)]

    async def trees(self, workspace: str) -> set[str]:
        digests, below = set[str](), LAST
        while page := await self.of_workspace(workspace, below):
            digests.update(tree for row in page for tree in (row.before, row.after) if tree)
            below = page[-1].id
        return digests

    async def forget(self, before: datetime) -> AsyncGenerator[str]:
        """Delete completed checkpoints that began before this time, one page at a time. Yield the workspace of each
        deleted checkpoint.
        """
        after = ""
        while page := await self._read("checkpoints_page", after=after, limit=AT_ONCE_MAX):
            upto = text(page[-1][0])
            if all(number(row[1]) >= to_micros(before) for row in page):
                return
            for row in await self._write("checkpoints_forget", after=after, upto=upto, before=before):
                yield text(row[0])
            after = upto


def note_checkpoints(thread: ThreadId, turn: TurnId, events: Sequence[EventData], at: datetime) -> Script[None]:
    for data in events:
        if isinstance(data, Checkpointed):
            row = {"id": turn, "thread": thread, "workspace": data.workspace, "author": data.author}
            row |= {"before": data.tree, "after": "", "undoes": ""}
            yield from query("checkpoint_begin", **row, now=at)
        elif isinstance(data, FilesChanged):
            yield from query("checkpoint_end", id=turn, after=data.tree, now=at)
