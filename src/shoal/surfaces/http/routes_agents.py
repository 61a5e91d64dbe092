"""Calls about agents, the channels they are bound to, and the runtime's status."""

from typing import Annotated

import msgspec

from shoal.actors.principals import Principal
from shoal.agents.lifecycle import AgentCard
from shoal.agents.registry import RuntimeInfo
from shoal.domain.agents import AgentBudget, Binding, Listen
from shoal.domain.errors import InvalidInput, NotFound
from shoal.domain.ids import make_thread_id
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes, WebContext, view

routes = Routes()

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Part = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Settings = dict[str, Annotated[str, msgspec.Meta(max_length=20_000)]]


class AgentView(msgspec.Struct, frozen=True):
    """An agent. Empty `tools` are all; `channels` are PLATFORM:CHANNEL, and `listen` says what it answers in each;
    `error` says what is wrong with its file, then what the file would say is empty."""

    name: str
    model: str = ""
    profile: str = ""
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    listen: dict[str, Listen] = {}
    at_work: int = 0
    is_default: bool = False
    idle_minutes: float = 0.0
    budget: AgentBudget = AgentBudget()
    error: str = ""


class NewAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent to make from the template. `settings` are keys of its agent.toml, each as text.

    `beside`, PLATFORM:CHANNEL: have the platform make a channel there, and bind it; `listen` is what the agent answers
    in it.
    """

    name: Name
    settings: Settings = {}
    beside: Annotated[str, msgspec.Meta(max_length=400)] = ""
    listen: Listen = "all"


class NewAgentView(msgspec.Struct, frozen=True):
    """The new agent; `note` says why it has no channel although one was wanted."""

    agent: AgentView
    note: str


class AgentChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of the agent's agent.toml, each as text, set in this order; an empty text takes a key out."""

    settings: Settings


class DestroyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the agent's files are moved to removed/ instead of being deleted."""

    keep_files: bool = False


class DestroyedAgent(msgspec.Struct, frozen=True):
    """The agent is gone; `files` is where its files are, empty when they are deleted."""

    destroyed: bool
    files: str


class NewBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let an agent answer in a channel: every message, those that `named` it, or these and their `threads`."""

    platform: Part
    channel: Part
    agent: Name
    listen: Listen = "all"


class Unbound(msgspec.Struct, frozen=True):
    """The channel is bound to no agent."""

    unbound: bool


def _view(card: AgentCard) -> AgentView:
    settings = msgspec.structs.asdict(card.spec) if card.spec is not None else {}
    own = {"name": card.name, "channels": tuple(card.places), "listen": card.places}
    return view(AgentView, card, **{**settings, **own})


@routes("GET /api/agents", READERS, narrows=True)
async def agents(web: WebContext, by: Principal) -> list[AgentView]:
    """The agents."""
    own = by.token.agent
    return [_view(card) for card in await web.app.lifecycle.cards() if own in ("", card.name)]


@routes("GET /api/agents/{name}", READERS, narrows=True)
async def agent(web: WebContext, by: Principal, name: str) -> AgentView:
    """One agent."""
    own = by.token.agent
    if own not in ("", name):
        raise NotFound(f"There is no agent {name[:80]!r}. There is: {own}.")
    return _view(await web.app.lifecycle.card(name))


@routes("POST /api/agents", ADMINS, status=201)
async def create(web: WebContext, by: Principal, body: NewAgent) -> NewAgentView:
    """Make an agent from the template; 409 when there is one of this name."""
    platform, _, channel = body.beside.partition(":")
    if body.beside and not (platform and channel):
        raise InvalidInput(f"{body.beside[:80]!r} is not a channel: write PLATFORM:CHANNEL.")
    await web.app.lifecycle.create(body.name, body.settings, by.person)
    note = ""
    if body.beside:
        beside = make_thread_id(platform, channel, "0")
        note = (await web.app.lifecycle.give_channel(body.name, beside, by.person, body.listen)).note
    return NewAgentView(_view(await web.app.lifecycle.card(body.name)), note)


@routes("PATCH /api/agents/{name}", ADMINS)
async def change(web: WebContext, by: Principal, name: str, body: AgentChange) -> AgentView:
    """Set keys of an agent; they count from its next turn on."""
    for key, value in body.settings.items():
        await web.app.lifecycle.configure(name, key, value, by.person)
    return _view(await web.app.lifecycle.card(name))


@routes("DELETE /api/agents/{name}", ADMINS)
async def destroy(web: WebContext, by: Principal, name: str, query: DestroyQuery) -> DestroyedAgent:
    """Stop an agent's turns and remove it; its journals stay."""
    return DestroyedAgent(True, await web.app.lifecycle.destroy(name, by.person, keep=query.keep_files))


@routes("GET /api/bindings", READERS)
async def bindings(web: WebContext) -> list[Binding]:
    """Which agent answers in which channel."""
    return await web.app.store.registry.bindings()


@routes("PUT /api/bindings", ADMINS)
async def bind(web: WebContext, by: Principal, body: NewBinding) -> Binding:
    """Bind a channel to an agent, from its next message on."""
    thread = make_thread_id(body.platform, body.channel, "0")
    return await web.app.lifecycle.bind(body.agent, thread, by.person, body.listen)


@routes("DELETE /api/bindings/{platform}/{channel}", ADMINS)
async def unbind(web: WebContext, by: Principal, platform: str, channel: str) -> Unbound:
    """Take a channel's binding away."""
    await web.app.lifecycle.unbind(make_thread_id(platform, channel, "0"), by.person)
    return Unbound(True)


@routes("GET /api/info", READERS)
async def info(web: WebContext) -> RuntimeInfo:
    """The runtime's status: agents, tools, skills, models, platforms, and what the operator should know."""
    return web.app.info()
