"""Saved conversations: their rows, and beginning a thread's window anew while nothing happens in it."""

from collections.abc import Sequence
from datetime import datetime

from shoal.domain.clock import Clock, from_micros, to_micros
from shoal.domain.errors import Conflict
from shoal.domain.events import Event, EventData
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.records import Snapshot, Stretch
from shoal.store.appends import append
from shoal.store.script import Driver, Row, Script, number, query, text
from shoal.store.search import first_after


class SnapshotsView:
    """Implements `domain.store.Snapshots`."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def add(self, snapshot: Snapshot) -> None:
        """Store a row."""
        await self._driver.write(
            query(
                "snapshot_insert",
                id=snapshot.id,
                thread=snapshot.thread,
                agent=snapshot.agent,
                description=snapshot.description,
                messages=snapshot.messages,
                now=to_micros(snapshot.created_at),
            )
        )

    async def of_channel(self, agent: str, channel: str, limit: int = 100) -> list[Snapshot]:
        """The agent's in threads whose id begins with `channel`, newest first."""
        script = query("snapshots_of", agent=agent, low=channel, high=first_after(channel), limit=limit)
        return [_snapshot(row) for row in await self._driver.read(script)]

    async def get(self, snapshot: str) -> Snapshot | None:
        """One, or None."""
        rows = await self._driver.read(query("snapshot_one", id=snapshot))
        return _snapshot(rows[0]) if rows else None

    async def stretch(self, thread: ThreadId) -> Stretch | None:
        """Where the thread's window is; None for an unknown thread."""
        rows = await self._driver.read(query("stretch_one", thread=thread))
        return _stretch(rows[0]) if rows else None

    async def stretches(self, agents: Sequence[str]) -> list[Stretch]:
        """The threads of these agents whose window is not empty."""
        found = [row for agent in agents for row in await self._driver.read(query("stretches_of", agent=agent))]
        return sorted((_stretch(row) for row in found), key=lambda one: one.updated_at, reverse=True)

    async def begin(self, thread: ThreadId, last_seq: int, events: Sequence[EventData]) -> tuple[Event, ...]:
        """Append, if the journal still ends at `last_seq` and the thread is at rest."""
        return await self._driver.write(_begin(thread, last_seq, events, self._clock.now()))


def _begin(thread: ThreadId, last_seq: int, events: Sequence[EventData], at: datetime) -> Script[tuple[Event, ...]]:
    stored = yield from append("thread_begin", thread, TurnId(""), events, at, last_seq=last_seq)
    if stored is None:
        raise Conflict(f"Something happened in {thread} meanwhile. Wait for its answer, then try again.")
    return stored.events


def _snapshot(row: Row) -> Snapshot:
    identity, thread, agent, description, messages, created_at = row
    return Snapshot(
        id=text(identity),
        thread=ThreadId(text(thread)),
        agent=text(agent),
        description=text(description),
        messages=number(messages),
        created_at=from_micros(number(created_at)),
    )


def _stretch(row: Row) -> Stretch:
    thread, window_seq, last_seq, updated_at, busy = row
    return Stretch(
        ThreadId(text(thread)), number(window_seq), number(last_seq), from_micros(number(updated_at)), bool(busy)
    )
