"""The commands /agent and /settings: who there is, who answers where, and with what. Changes are for those who may."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from shoal.agents.folder import KEYS
from shoal.agents.places import Choices, place_of
from shoal.agents.registry import Agents
from shoal.agents.roster import AgentCard, Roster
from shoal.domain.agents import AgentSpec
from shoal.domain.commands import Asked
from shoal.domain.errors import Forbidden, InvalidInput
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.permissions import Asker
from shoal.domain.store import Store
from shoal.permissions.access import Audiences

Verb = Callable[[Asked, str], Awaitable[str]]
LINES_MAX = 40

AGENT_USAGE = (
    "`/agent list`, `/agent show [NAME]`, `/agent create NAME [WHAT IT IS FOR]`, `/agent bind NAME`, `/agent unbind`, "
    "`/agent config [NAME] KEY VALUE`, `/agent destroy NAME [keep]`, `/agent undo [NAME]`"
)
SETTINGS_USAGE = (
    "`/settings [show]`, `/settings [here] model NAME`, `/settings [here] permissions PROFILE`, "
    "`/settings validate-keys`; `default` takes a choice back"
)
FORBIDDEN = "Only my owner, and whom agents.managers names, may do that."


class Desks(msgspec.Struct, frozen=True):
    """What the commands stand on. `may` tells who may change agents and settings; `keys` checks the providers' keys and
    returns a line each; `audiences` tells who may know what agents do elsewhere."""

    store: Store
    agents: Agents
    roster: Roster
    may: Callable[[Asker], bool]
    keys: Callable[[], Awaitable[Sequence[str]]]
    audiences: Audiences


class AgentCommands:
    """What /agent and /settings do. Further words of /agent are put into `verbs`."""

    def __init__(self, desks: Desks) -> None:
        self._store = desks.store
        self._agents = desks.agents
        self._roster = desks.roster
        self._may = desks.may
        self._keys = desks.keys
        self._audiences = desks.audiences
        self.verbs: dict[str, Verb] = {
            "": self._show,
            "list": self._list,
            "show": self._show,
            "create": self._create,
            "bind": self._bind,
            "unbind": self._unbind,
            "config": self._config,
            "destroy": self._destroy,
        }

    async def agent(self, asked: Asked) -> str:
        """/agent."""
        word, _, rest = asked.argument.partition(" ")
        verb = self.verbs.get(word.lower())
        if verb is None:
            return f"I do not know `/agent {word[:40]}`. There are: {AGENT_USAGE}."
        return await verb(asked, rest.strip())

    async def settings(self, asked: Asked) -> str:
        """/settings."""
        words = asked.argument.split()
        is_here = bool(words) and words[0].lower() == "here"
        words = words[is_here:]
        match [words[0].lower(), *words[1:]] if words else []:
            case [] | ["show"]:
                return await self._show_settings(asked)
            case ["model" | "permissions" as key, value]:
                return await self._choose(asked, key, "" if value == "default" else value, is_here=is_here)
            case ["validate-keys"]:
                self._check(asked)
                return "\n".join(await self._keys()) or "No provider is set up."
            case _:
                return f"There are: {SETTINGS_USAGE}."

    # ---- /agent ----

    async def _list(self, asked: Asked, rest: str) -> str:
        cards = [self._shown(asked, card) for card in await self._roster.cards()]
        lines = [_line(card) for card in cards[:LINES_MAX]]
        if len(cards) > LINES_MAX:
            lines.append(f"- and {len(cards) - LINES_MAX} more")
        return "\n".join(lines)

    async def _show(self, asked: Asked, rest: str) -> str:
        spec = await agent_here(self._store, self._agents, asked.thread)
        card = self._shown(asked, await self._roster.card(rest or spec.name))
        if card.spec is None:
            return f"**{card.name}** is broken: {card.error}"
        if rest in ("", spec.name):
            card = msgspec.structs.replace(card, spec=spec)
        return _described(card, is_here=not rest)

    async def _create(self, asked: Asked, rest: str) -> str:
        self._check(asked)
        name, _, purpose = rest.partition(" ")
        if not name:
            return "Write `/agent create NAME`, and what it is for."
        settings = {"system_prompt": purpose.strip()} if purpose.strip() else {}
        await self._roster.create(name, settings, person(asked))
        made = await self._roster.give_channel(name, asked.thread, person(asked))
        where = made.note or (f"It answers in the new channel {made.binding.place}." if made.binding else "")
        return f"Made the agent **{name}**. {where}"

    async def _bind(self, asked: Asked, rest: str) -> str:
        self._check(asked)
        if not rest:
            return "Write `/agent bind NAME`; `/agent list` shows the names."
        binding = await self._roster.bind(rest, asked.thread, person(asked))
        return f"**{binding.agent}** answers in this channel from the next message on."

    async def _unbind(self, asked: Asked, rest: str) -> str:
        self._check(asked)
        await self._roster.unbind(asked.thread, person(asked))
        return "This channel is bound to no agent any more."

    async def _config(self, asked: Asked, rest: str) -> str:
        self._check(asked)
        name, key, value = await self._meant(asked, rest)
        await self._roster.configure(name, key, value, person(asked))
        return f"**{name}**: {key} is {f'`{value[:200]}`' if value else 'left to the default'} from the next turn on."

    async def _meant(self, asked: Asked, rest: str) -> tuple[str, str, str]:
        first, _, after = rest.partition(" ")
        if first in KEYS or not after:
            if not first:
                raise InvalidInput(f"Write `/agent config KEY VALUE`. Keys: {', '.join(KEYS)}.")
            spec = await agent_here(self._store, self._agents, asked.thread)
            return spec.name, first, after.strip()
        key, _, value = after.strip().partition(" ")
        return first, key, value.strip()

    async def _destroy(self, asked: Asked, rest: str) -> str:
        self._check(asked)
        match rest.split():
            case [name]:
                keep = False
            case [name, "keep"]:
                keep = True
            case _:
                return "Write `/agent destroy NAME`, and `keep` behind it if its files shall stay."
        where = await self._roster.destroy(name, person(asked), keep=keep)
        return f"The agent **{name}** is gone; its files are {f'in {where}' if where else 'deleted'}."

    # ---- /settings ----

    async def _show_settings(self, asked: Asked) -> str:
        places, account = self._agents.places, thread_address(asked.thread).platform
        if places is None:
            return ""
        widest = await places.widest(asked.thread)
        spec = await agent_here(self._store, self._agents, asked.thread)
        lines = [f"- in this channel: {_chosen(await places.chosen_for(place_of(asked.thread)))}"]
        if widest != account:
            lines.append(f"- in this server: {_chosen(await places.chosen_for(widest))}")
        lines.append(f"- everywhere on {account}: {_chosen(await places.chosen_for(account))}")
        lines.append(f"- so **{spec.name}** answers here with `{spec.model}` under the permissions `{spec.profile}`")
        return "\n".join(lines)

    async def _choose(self, asked: Asked, key: str, value: str, *, is_here: bool) -> str:
        self._check(asked)
        places = self._agents.places
        assert places is not None, "the app gives the agents their places"
        where = place_of(asked.thread) if is_here else await places.widest(asked.thread)
        field = "model" if key == "model" else "profile"
        choices = msgspec.structs.replace(await places.chosen_for(where), **{field: value})
        await self._roster.choose(where, choices, person(asked))
        said = f"`{value}`" if value else "no longer chosen"
        weight = "" if is_here else " An agent that names its own keeps that; `here` overrides it in a channel."
        return f"{key} is {said} in {where} from the next turn on.{weight}"

    def _shown(self, asked: Asked, card: AgentCard) -> AgentCard:
        """The card without how much is at work elsewhere, unless whoever asks may know that."""
        audience = self._audiences.of(asked.asker, asked.author, asked.thread)
        return card if audience.everywhere else msgspec.structs.replace(card, at_work=0)

    def _check(self, asked: Asked) -> None:
        if not self._may(asked.asker):
            raise Forbidden(FORBIDDEN)


def person(asked: Asked) -> str:
    """Who asked, PLATFORM:USER."""
    return f"{asked.asker.platform}:{asked.asker.user}"


async def agent_here(store: Store, agents: Agents, thread: ThreadId) -> AgentSpec:
    """Who would answer the next message of a thread. Raises InvalidInput for a broken file, StoreError."""
    name = await agents.meant(thread, "")
    if not name:
        info = await store.journal.thread(thread)
        name = info.agent if info is not None else ""
    return await agents.resolve(name, thread)


def _line(card: AgentCard) -> str:
    notes = ["default"] if card.is_default else []
    notes += [f"in {place}" for place in card.places[:3]]
    notes += [f"{card.at_work} at work"] if card.at_work else []
    what = f"`{card.spec.model}`, {card.spec.profile}" if card.spec is not None else f"broken: {card.error}"
    told = f" ({', '.join(notes)})" if notes else ""
    return f"- **{card.name}** {what}{told}"


def _described(card: AgentCard, *, is_here: bool) -> str:
    spec = card.spec
    assert spec is not None
    fallback = f", then {', '.join(spec.fallback)}" if spec.fallback else ""
    lines = [
        f"**{card.name}**{' answers here' if is_here else ''}",
        f"- model `{spec.model}`{fallback}",
        f"- permissions `{spec.profile}`",
        f"- tools: {', '.join(spec.tools) if spec.tools else 'all'}",
        f"- channels: {', '.join(card.places) if card.places else 'none of its own'}",
    ]
    budget = {name: value for name, value in msgspec.structs.asdict(spec.budget).items() if value}
    if budget:
        lines.append(f"- budget: {', '.join(f'{name} {value:,}' for name, value in budget.items())}")
    if spec.idle_minutes:
        lines.append(f"- begins anew after {spec.idle_minutes:g} quiet minutes")
    if card.at_work:
        lines.append(f"- {card.at_work} turns at work")
    return "\n".join(lines)


def _chosen(choices: Choices) -> str:
    said = [f"model `{choices.model}`"] if choices.model else []
    said += [f"permissions `{choices.profile}`"] if choices.profile else []
    return ", ".join(said) or "nothing chosen"
