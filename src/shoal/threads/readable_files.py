"""Write the readable files of threads, `log.jsonl` and `context.jsonl`, after each turn, or rebuild them."""

import logging
from collections.abc import Container, Iterable

from shoal.kernel.events import (
    Branched,
    Event,
    TurnStarted,
)
from shoal.kernel.files import in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.store.journal import SEQ_END, Journal
from shoal.store.projections import Projections
from shoal.turn.prompt import decode_prompt

log = logging.getLogger(__name__)

SYSTEMS_MAX = 32
"""Maximum number of cached system texts. Each is about 10 KB."""


class ReadableFiles:
    def __init__(self, home: Home, journal: Journal) -> None:
        self._projections = Projections(home)
        self._journal = journal
        self._systems: dict[str, str] = {}

    async def project(self, thread: ThreadId, events: list[Event]) -> None:
        """Write a turn to the readable files, and earlier turns that ran on other machines.

        Logs errors instead of raising, because the journal has everything.
        """
        try:
            systems = await self._systems_of(events)
            written = await in_thread(lambda: self._projections.append(thread, events, systems))
            if events and written + 1 < events[0].seq:
                missed = await self._journal.events(thread, written)
                rebuilds = any(isinstance(event.data, Branched) for event in missed)
                if rebuilds:
                    missed = await self._journal.events(thread, limit=SEQ_END)
                systems = await self._systems_of(missed)
                write = self._projections.rebuild if rebuilds else self._projections.append
                await in_thread(lambda: write(thread, missed, systems))
        except OSError as error:
            log.warning(
                "writing readable files failed; run `shoal threads rebuild`",
                extra={"thread_id": thread, "why": str(error)},
            )

    async def _systems_of(self, events: Iterable[Event]) -> dict[str, str]:
        """Return the result of `system_texts` from a cache, because most turns begin with the same text."""
        known = self._systems if len(self._systems) < SYSTEMS_MAX else {}
        self._systems = known = known | await system_texts(self._journal, events, known)
        return known


async def system_texts(journal: Journal, events: Iterable[Event], known: Container[str] = ()) -> dict[str, str]:
    """Return the stored system texts of these turns by digest, except those in `known`. Raises StoreError."""
    named = {event.data.system for event in events if isinstance(event.data, TurnStarted) and event.data.system}
    prompts = [(digest, await journal.prompt(digest)) for digest in named if digest not in known]
    return {digest: decode_prompt(body).text for digest, body in prompts if body is not None}
