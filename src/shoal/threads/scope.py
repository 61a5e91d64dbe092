"""Resolve the agent, asker and readers of a message when it is accepted, for the turn that answers it.

`PromptScope` (kernel/messages.py) documents when each fact is resolved. The readers of a direct conversation are stored
when the person in it writes. If a reminder, a process hook or a subagent's report starts a turn in the same
conversation, that turn has the same readers. The asker determines what that turn may see.
"""

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.kernel.agents import as_guest, within
from shoal.kernel.ids import OWN_PLATFORMS, ThreadId, channel_of, is_personal, thread_address
from shoal.kernel.messages import Author, Prompt, PromptScope
from shoal.kernel.permissions import TRUST_ORDER, Audience, Trust
from shoal.kernel.ports import Settings
from shoal.kernel.turnstate import TurnState
from shoal.permissions.access import Links
from shoal.threads.presence import Rights
from shoal.threads.timezones import TimeZones
from shoal.threads.whereabouts import OWNER_IN
from shoal.turn.run import TurnScope
from shoal.turn.thread import ThreadView

AUDIENCE = "audience"
"""Settings scope that stores the readers of each direct conversation, by channel."""
LAST_CHANNEL = "last_channel"
"""Settings scope that stores, for each agent, the thread in which people last wrote to it.

The agent posts there on its own initiative if the owner has no direct conversation.
"""
ANSWERS_ONLY = frozenset({"openai", "terminal", "agent"})
"""Platforms that show people only a turn's answer, and no later posts."""

_audience = msgspec.json.Decoder(Audience)


class Scopes(msgspec.Struct, frozen=True, eq=False):
    links: Links
    agents: AgentRegistry
    settings: Settings
    timezones: TimeZones

    async def resolve(self, prompt: Prompt, trust: Trust | None = None) -> PromptScope:
        """Resolve the scope of a message. `trust` is the author's trust according to the access gate. Raises
        StoreError.
        """
        agent = await self.agents.agent_name_for(prompt.thread, prompt.agent)
        return await self._resolve(prompt.thread, prompt, prompt.author, agent, trust)

    async def open(self, view: ThreadView, asked: Prompt | TurnState, rights: Rights) -> TurnScope:
        """Return the scope of a turn that opens or continues, limited to its author's current rights.

        A turn without a conversation posts to the owner's direct conversation, or to the channel where people last
        wrote to the agent. Raises InvalidInput for an unusable agent, and StoreError.
        """
        scope, caller = asked.scope, asked.caller
        chat = caller.root if caller is not None else view.thread
        wrote = caller.author if caller is not None else asked.author
        author = rights.of(wrote)
        if scope is None:
            scope = await self._resolve(view.thread, asked, author, asked.agent)
        else:
            trust_max = rights.trust_max if author.trusted else "untrusted"
            trust = min(scope.asker.trust, trust_max, key=TRUST_ORDER.__getitem__)
            if (author, trust) != (wrote, scope.asker.trust):
                scope = await self._resolve(view.thread, asked, author, scope.agent, trust)
        agent = await self.agents.resolve(scope.agent or view.lease.agent or self.agents.defaults.agent, chat)
        if (model := asked.model or view.lease.model or agent.model) != agent.model:
            agent = msgspec.structs.replace(agent, model=model)
        speaks_in = ThreadId("")
        if not asked.history:
            owner_in = await self.settings.get(*OWNER_IN)
            speaks_in = ThreadId(owner_in or await self.settings.get(LAST_CHANNEL, agent.name) or "")
        audience = scope.audience
        if caller is not None:
            agent = within(agent, caller)
        elif audience.everywhere and (asked.tainted_by or not author.trusted):
            audience = msgspec.structs.replace(audience, everywhere=False)
        if audience.guest:
            agent = as_guest(agent, chat)
        timezone = await self.timezones.of(scope.asker, agent)
        return TurnScope(agent, scope.asker, audience, caller, speaks_in, timezone, audience.within(chat))

    async def _resolve(
        self, thread: ThreadId, asked: Prompt | TurnState, author: Author, agent: str, trust: Trust | None = None
    ) -> PromptScope:
        people, caller = self.links.people, asked.caller
        if caller is not None:
            asker = people.asker(author.asker(caller.root, trust, direct=caller.direct))
            return PromptScope(agent, asker, caller.audience)
        asker, noted = people.asker(author.asker(thread, trust, direct=asked.direct)), None
        if asked.origin not in ("person", "api"):
            noted = await self.settings.get(AUDIENCE, channel_of(thread))
        if noted:
            return PromptScope(agent, msgspec.structs.replace(asker, kind="direct"), _audience.decode(noted))
        return PromptScope(agent, asker, self.links.audience(asker, author, thread))


def noted_channel(agent: str, thread: ThreadId) -> tuple[tuple[str, str, str], ...]:
    """Return the setting (scope, key, value) that records where a person last wrote to the agent.

    Returns an empty tuple for personal channels of the page and for platforms that show only a turn's answer.
    """
    if is_personal(thread) or thread_address(thread).platform in ANSWERS_ONLY:
        return ()
    return ((LAST_CHANNEL, agent, thread),)


def noted_audience(prompt: Prompt, audience: Audience) -> tuple[tuple[str, str, str], ...]:
    """Return the setting that records the readers of a person's direct conversation with the agent."""
    if not prompt.direct or thread_address(prompt.thread).platform in OWN_PLATFORMS:
        return ()
    return ((AUDIENCE, channel_of(prompt.thread), msgspec.json.encode(audience).decode()),)
