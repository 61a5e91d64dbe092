"""End the remaining work of people who lost access, so that nothing runs with rights that they no longer have.

    remaining work                                when it ends
    --------------------------------------------  --------------------------------------------------------------
    a queued message, a reminder that is due      before its turn begins, and in every sweep
    a message for a running turn                  in every sweep
    a running turn and its pending approvals      before the turn continues after a wait, and in every sweep
    a subagent that works for them                in every sweep
    a reminder or schedule, a process, a token    in every sweep
    an approval that they gave                    before its call runs. Shoal then requests approval again.

A sweep runs after every removal, at every start, and every ten minutes in case the rules changed in another way. If a
sweep ended anything, the owner gets one notice. Ended work is not restored when the person regains access.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.events import Event, UserSaid
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Abort, Author, Inbound, Receipt
from shoal.kernel.phrases import counted, short_line
from shoal.store.store import Store
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.pairing import Pairing
from shoal.threads.presence import Presence
from shoal.turn.thread import chat_of

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
BY = "shoal: access lost"
EVENTS_MAX = 2000
NAMED_MAX = 10
HasLeft: TypeAlias = Callable[[ThreadId, Author], Awaitable[bool]]
"""Function that returns whether the author of a thread's content has lost access."""
Ender: TypeAlias = Callable[[HasLeft, str], AsyncIterator[tuple[Author, str]]]
"""Function that ends all work of one kind by authors who have lost access.

The second argument is recorded as the person who ended the work. Yields the author and a description of each item.
"""


class Departures(msgspec.Struct, eq=False):
    """Ends the work of people without access. Features add `enders` for the work that they store."""

    store: Store
    clock: Clock
    presence: Presence
    pairing: Pairing
    tokens: AccessTokens
    send: Callable[[Inbound], Awaitable[Receipt]]
    notify_owner: Callable[[str], Awaitable[None]]
    publish: Callable[[Sequence[Event]], None]
    enders: list[Ender] = msgspec.field(default_factory=list[Ender])
    _wanted: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _sweeping: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _aborted: set[str] = msgspec.field(default_factory=set[str])
    """Turns that the last sweep aborted. If one of them is still stopping in the next sweep, it is not reported again.
    """

    def sweep_soon(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Sweep now, after each removal, and every SWEEP_SECONDS, until cancelled."""
        while True:
            self._wanted.clear()
            await self.sweep()
            await self.clock.wait(self._wanted, SWEEP_SECONDS)

    async def sweep(self) -> None:
        """End all work of people without access, and notify the owner once. Raises StoreError."""
        async with self._sweeping:
            ended = await self._end_all()
        for who, things in ended.items():
            log.warning("ended work of person without access", extra={"person": who, "things": len(things)})
        if ended:
            await self.notify_owner(_notice(ended))

    async def _end_all(self) -> dict[str, list[str]]:
        ended: dict[str, list[str]] = {}
        aborted: set[str] = set()

        def note(author: Author, what: str) -> None:
            who = f"{author.name} ({author.id})" if author.name and author.name != author.id else author.id
            ended.setdefault(who, []).append(what)

        for end in self.enders:
            async for author, what in end(self.presence.has_left, BY):
                note(author, what)
        for thread in await self.store.inbox.waiting():
            queued = await self.store.inbox.queued(thread)
            gone = [prompt for prompt in queued if await self.presence.has_left(thread, prompt.author)]
            if gone:
                self.publish(await self.store.inbox.drop(thread, [prompt.key for prompt in gone]))
            for waiting in gone:
                note(waiting.author, f"a waiting message: “{short_line(waiting.text, 60)}”")
            asked = await self._asked(thread)
            if asked is None:
                continue
            turn, message = asked
            caller = message.caller
            author = message.author if caller is None else caller.author
            if await self.presence.has_left(chat_of(thread, caller), author):
                aborted.add(turn)
                await self.send(Abort(thread, Author("shoal", trusted=False), turn=turn))
                if turn not in self._aborted:
                    note(author, f"the answer to “{short_line(message.text, 60)}” and its approvals")
        self._aborted = aborted
        for token in await self.tokens.all():
            if await self.tokens.author(token) is None:
                platform = token.person.partition(":")[0]
                await self.pairing.roster(platform)  # If the list is unreadable, raise instead of revoking the token.
                await self.tokens.revoke(token.name, BY)
                note(Author(token.person, trusted=False), f"the token “{token.name}”")
        return ended

    async def _asked(self, thread: ThreadId) -> tuple[str, UserSaid] | None:
        info = await self.store.journal.thread(thread)
        if info is None or not info.open_turn:
            return None
        for event in await self.store.journal.events(thread, max(0, info.last_seq - EVENTS_MAX)):
            data = event.data
            if event.turn == info.open_turn and isinstance(data, UserSaid):
                return info.open_turn, data
        return None


def _notice(ended: dict[str, list[str]]) -> str:
    lines: list[str] = []
    for who, things in ended.items():
        lines += [f"{who} no longer has access, so I ended:", *(f"- {thing}" for thing in things[:NAMED_MAX])]
        if more := len(things[NAMED_MAX:]):
            lines.append(f"- {counted(more, 'further thing')}")
    lines.append("This work does not resume if they get access again. You do not need to do anything.")
    return "\n".join(lines)
