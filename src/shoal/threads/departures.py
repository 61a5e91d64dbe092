"""Ends what people left behind who have no access any more: nothing of theirs runs with rights that they lost.

    left behind                                   ends when
    --------------------------------------------  --------------------------------------------------------------
    a queued message, a reminder that has come    its turn would begin, and with every sweep
    a message for a turn that is running          with every sweep
    a running turn, with the approvals it asked   it would go on after a wait, and with every sweep
    a subagent at work for them                   with every sweep
    a reminder or schedule, a process, a token    with every sweep
    an approval that they gave                    the call would run by it; then somebody is asked again

A sweep follows every removal and every start, and comes every ten minutes, for rules that changed in another way. The
owner gets one notice of each sweep that ended something. What was ended stays ended when the person is let in again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError
from shoal.kernel.events import UserSaid
from shoal.kernel.ids import OWN_PLATFORMS, ThreadId, thread_address, unopened
from shoal.kernel.messages import Abort, Author, Inbound, Receipt
from shoal.kernel.permissions import TRUST_ORDER, Asker
from shoal.kernel.phrases import counted, short_line
from shoal.kernel.ports import ChatAdapter, KnowsRoles
from shoal.kernel.records import Approval
from shoal.permissions.access import may_decide
from shoal.store.store import Store
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.admissions import Admissions
from shoal.threads.principals import OWNER as PAGE_OWNER
from shoal.threads.principals import Principal, bearer_of
from shoal.turn.thread import chat_of

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
BY = "shoal: no access any more"
EVENTS_MAX = 2000
"""How far back the message of an open turn is looked for."""
NAMED_MAX = 10
_OURS = frozenset({"", "owner", "shoal"})
"""Ids of nobody, and of whoever needs no rule."""


HasLeft: TypeAlias = Callable[[ThreadId, Author], Awaitable[bool]]
"""Whether the author of something in a thread has no access any more."""
Ender: TypeAlias = Callable[[HasLeft, str], AsyncIterator[tuple[Author, str]]]
"""Ends things of one kind whose authors have left, in the name of its second argument. Yields each author and thing."""


@dataclass(eq=False)
class Departures:
    """Looks for things of people without access, and ends them. Features add `enders` for what they store."""

    store: Store
    clock: Clock
    admissions: Admissions
    tokens: AccessTokens
    send: Callable[[Inbound], Awaitable[Receipt]]
    tell_owner: Callable[[str], Awaitable[None]]
    adapters: Mapping[str, ChatAdapter]
    enders: list[Ender] = field(default_factory=list[Ender])
    approvers: Sequence[str] = ()
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _sweeping: asyncio.Lock = field(default_factory=asyncio.Lock)

    def sweep_soon(self) -> None:
        """Have the next sweep come at once: somebody was removed."""
        self._wanted.set()

    async def run(self) -> None:
        """Sweep now, whenever somebody was removed, and every SWEEP_SECONDS."""
        while True:
            self._wanted.clear()
            await self.sweep()
            await self.clock.wait(self._wanted, SWEEP_SECONDS)

    async def ends(self, thread: ThreadId, author: Author) -> bool:
        """Whether a turn of this author is not to run; all that they left has been ended then. Raises StoreError."""
        if not await self.has_left(thread, author):
            return False
        await self.sweep()
        return True

    async def has_left(self, thread: ThreadId, author: Author) -> bool:
        """Whether the author of a message in a thread has no access there by the rules of now. Raises StoreError.

        On the page and the API people are who their tokens say, so that they leave with the last one.
        """
        if author.id in _OURS or author.is_bot:
            return False
        address = thread_address(thread)
        if address.platform in OWN_PLATFORMS:
            return ":" in author.id and not await self._bearers(author.id)
        if address.platform not in self.admissions.gated:
            return False
        if (await self.admissions.of(address.platform, author, address.channel)).allowed:
            bare = replace(author, roles=())
            if not author.roles or (await self.admissions.of(address.platform, bare, address.channel)).allowed:
                return False
            present = await self._with_roles(thread, author)
            if (await self.admissions.of(address.platform, present, address.channel)).allowed:
                return False
        await self.admissions.pairing.roster(address.platform)  # raises where nobody can know
        return True

    async def present(self, thread: ThreadId, author: Author) -> Author:
        """Return the author with the roles and at most the trust that they have now. Raises StoreError."""
        author = await self._with_roles(thread, author)
        if not author.trusted or author.id in _OURS or author.is_bot:
            return author
        address = thread_address(thread)
        if address.platform in OWN_PLATFORMS and ":" in author.id:
            bearers = await self._bearers(author.id)
            return replace(author, trusted=any(bearer.author.trusted for bearer in bearers))
        if address.platform not in self.admissions.gated:
            return author
        here = await self.admissions.of(address.platform, author, address.channel)
        return replace(author, trusted=here.trusted)

    async def _with_roles(self, thread: ThreadId, author: Author) -> Author:
        """Return the author with the roles that the platform says they have now, or with those of their message where
        it says nothing."""
        address = thread_address(thread)
        adapter = self.adapters.get(address.platform)
        if not author.roles or not isinstance(adapter, KnowsRoles):
            return author
        try:
            return replace(author, roles=await adapter.roles_of(address.channel, author.id))
        except PlatformError as error:
            log.info("a person's roles are unknown", extra={"person": author.id, "why": str(error)})
            return author

    async def upholds(self, approval: Approval) -> bool:
        """Whether the person who allowed this call could still allow it, with at least the trust of that time. Raises
        StoreError."""
        by, before = await self._decider(approval), approval.decided_trust
        if by is None or before is None:
            return False
        by = self.admissions.links.people.asker(by)
        return TRUST_ORDER[by.trust] >= TRUST_ORDER[before] and may_decide(approval, by, self.approvers)

    async def _decider(self, approval: Approval) -> Asker | None:
        """Return the person who decided, by the rules of now; None when they have no access."""
        user, platform, address = approval.decided_by, approval.decided_on, thread_address(approval.asked_in)
        if platform in OWN_PLATFORMS:
            if user == PAGE_OWNER.author.id:
                return PAGE_OWNER.asker
            return next((bearer.asker for bearer in await self._bearers(user)), None)
        author = Author(user, roles=approval.decided_roles, trusted=False)
        if platform == address.platform and platform in self.admissions.gated:
            author = await self._with_roles(approval.asked_in, author)
            found = await self.admissions.of(platform, author, address.channel)
        else:
            found = await self.tokens.admission(f"{platform}:{user}")
        return replace(author.asker(approval.asked_in, found.trust), platform=platform) if found.allowed else None

    async def sweep(self) -> None:
        """End all that is left of people without access, and tell the owner of it once. Raises StoreError."""
        async with self._sweeping:
            ended = await self._end_all()
        for who, things in ended.items():
            log.warning("ended what somebody without access had left", extra={"person": who, "things": len(things)})
        if ended:
            await self.tell_owner(_notice(ended))

    async def _end_all(self) -> dict[str, list[str]]:
        """What was ended, by who had left it."""
        ended: dict[str, list[str]] = {}

        def note(author: Author, what: str) -> None:
            who = f"{author.name} ({author.id})" if author.name and author.name != author.id else author.id
            ended.setdefault(who, []).append(what)

        for trigger in await self.store.triggers.all():
            spec = trigger.spec
            place = spec.thread or unopened(spec.platform, spec.channel)
            if trigger.next_at is not None and await self.has_left(place, spec.author):
                await self.store.triggers.remove(trigger.id)
                note(spec.author, f"the schedule “{short_line(spec.name or spec.text, 60)}”")
        for end in self.enders:
            async for author, what in end(self.has_left, BY):
                note(author, what)
        for thread in await self.store.inbox.waiting():
            queued = await self.store.inbox.queued(thread)
            gone = [one for one in queued if await self.has_left(thread, one.author)]
            if gone:
                await self.store.inbox.drop(thread, [one.key for one in gone])
            for waiting in gone:
                note(waiting.author, f"a waiting message: “{short_line(waiting.text, 60)}”")
            asked = await self._asked(thread)
            if asked is None:
                continue
            turn, message = asked
            caller = message.caller
            author = message.author if caller is None else caller.author
            if await self.has_left(chat_of(thread, caller), author):
                await self.send(Abort(thread, Author("shoal", trusted=False), turn=turn))
                note(author, f"the answer to “{short_line(message.text, 60)}”, with what it asked for")
        for token in await self.tokens.all():
            if await self.tokens.author(token) is None:
                platform = token.person.partition(":")[0]
                await self.admissions.pairing.roster(platform)  # raises where nobody can know
                await self.tokens.revoke(token.name, BY)
                note(Author(token.person, trusted=False), f"the token “{token.name}”")
        return ended

    async def _bearers(self, person: str) -> list[Principal]:
        """Return a person once for each of their tokens that is good. Raises StoreError."""
        tokens = [one for one in await self.tokens.all() if one.person == person and not self.tokens.has_expired(one)]
        bearers = [await bearer_of(self.tokens, token) for token in tokens]
        return [bearer for bearer in bearers if bearer is not None]

    async def _asked(self, thread: ThreadId) -> tuple[str, UserSaid] | None:
        """Return the open turn of a thread and the message that it answers."""
        info = await self.store.journal.thread(thread)
        if info is None or not info.open_turn:
            return None
        for event in await self.store.journal.events(thread, max(0, info.last_seq - EVENTS_MAX)):
            said = event.data
            if event.turn == info.open_turn and isinstance(said, UserSaid):
                return info.open_turn, said
        return None


def _notice(ended: dict[str, list[str]]) -> str:
    lines: list[str] = []
    for who, things in ended.items():
        lines += [f"{who} has no access any more, so I ended:", *(f"- {thing}" for thing in things[:NAMED_MAX])]
        if more := len(things[NAMED_MAX:]):
            lines.append(f"- {counted(more, 'further thing')}")
    lines.append("None of it comes back when they are let in again. Nothing waits for a decision of yours.")
    return "\n".join(lines)
