"""Database rows of saved conversations, and queries for threads that can be saved or restored."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from shoal.features.snapshots.records import Snapshot
from shoal.kernel.errors import Conflict
from shoal.kernel.events import Event, EventData
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.records import ContextWindow
from shoal.store.appends import append, title_of
from shoal.store.driver import Script, StorePart, first_after, query, reader, writes_at
from shoal.store.journal import window_of

_snapshot = reader(Snapshot)


class SnapshotStore(StorePart):
    async def add(self, snapshot: Snapshot) -> None:
        await self._write("snapshot_insert", **msgspec.structs.asdict(snapshot))

    async def of_channel(self, agent: str, channel: str, limit: int = 100) -> list[Snapshot]:
        """Return the agent's saved conversations, newest first. `channel` is a prefix of thread ids. An empty prefix
        matches all.
        """
        rows = await self._read("snapshots_of", agent=agent, low=channel, high=first_after(channel), limit=limit)
        return [_snapshot(row) for row in rows]

    async def windows(self, agents: Sequence[str]) -> list[ContextWindow]:
        """Return the threads of these agents with a non-empty window, most recently active first, at most 10,000 per
        agent.
        """
        rows = [row for agent in agents for row in await self._read("windows_of", agent=agent)]
        return sorted((window_of(row) for row in rows), key=lambda window: window.updated_at, reverse=True)

    @writes_at
    def begin(
        self, at: datetime, thread: ThreadId, last_seq: int, events: Sequence[EventData], title: str = ""
    ) -> Script[tuple[Event, ...]]:
        """Append events if the journal still ends at `last_seq` and the thread is idle. If `last_seq` is 0, create the
        thread.

        Raises Conflict if the thread has changed or is active.
        """
        if not last_seq:
            yield from query("thread_ensure", thread=thread, agent="", title=title_of(title), now=at)
        stored = yield from append("thread_begin", thread, TurnId(""), events, at, last_seq=last_seq)
        if stored is None:
            raise Conflict("The conversation changed in the meantime. Wait for the reply, then try again.")
        return stored.events
