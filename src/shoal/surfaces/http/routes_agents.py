"""Calls about agents, the channels they are bound to, commands, and what is up."""

from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.agents.info import Info
from shoal.agents.roster import AgentCard
from shoal.chat.commands import parse_command
from shoal.domain.agents import AgentBudget
from shoal.domain.commands import COMMANDS, Asked, CommandSpec
from shoal.domain.errors import InvalidInput, NotFound
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.registry import Binding
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, EVERYONE, READERS, TALKERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.parse import checked_text, path_part, path_thread, read_json, read_query
from shoal.surfaces.http.principal import Principal

CONFINED_COMMANDS = ("new", "stop", "steer")
"""Commands that change and tell of nothing but the thread they are given in."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Part = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Settings = dict[str, Annotated[str, msgspec.Meta(max_length=20_000)]]


class AgentView(msgspec.Struct, frozen=True):
    """An agent. Empty `tools` are all; `channels` are PLATFORM:CHANNEL; `error` says what is wrong with its file, then
    what stands in that is empty."""

    name: str
    model: str = ""
    profile: str = ""
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    at_work: int = 0
    is_default: bool = False
    idle_minutes: float = 0.0
    budget: AgentBudget = AgentBudget()
    error: str = ""


class NewAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent to make from the template. `settings` are keys of its agent.toml, each as text.

    `beside`, PLATFORM:CHANNEL: have the platform make a channel there, and bind it.
    """

    name: Name
    settings: Settings = {}
    beside: Annotated[str, msgspec.Meta(max_length=400)] = ""


class CreatedAgent(msgspec.Struct, frozen=True):
    """The new agent; `note` says why it has no channel although one was wanted."""

    agent: AgentView
    note: str


class AgentChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of the agent's agent.toml, each as text, set in this order; an empty text takes a key out."""

    settings: Settings


class DestroyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the agent's files are moved to removed/ instead of being deleted."""

    keep_files: bool = False


class Destroyed(msgspec.Struct, frozen=True):
    """The agent is gone; `files` is where its files are, empty when they are deleted."""

    destroyed: bool
    files: str


class BindingView(msgspec.Struct, frozen=True):
    """A channel and the agent that answers in it; `made` when the channel was made for it."""

    platform: str
    channel: str
    agent: str
    bound_by: str
    made: bool
    created_at: datetime


class NewBinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let an agent answer in a channel."""

    platform: Part
    channel: Part
    agent: Name


class Unbound(msgspec.Struct, frozen=True):
    """The channel is bound to no agent."""

    unbound: bool


class CommandText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A slash command as it is written in a chat."""

    text: str


class CommandAnswer(msgspec.Struct, frozen=True):
    """What the command answers, as Markdown; often nothing."""

    answer: str


def _view(card: AgentCard) -> AgentView:
    spec = card.spec
    if spec is None:
        return AgentView(
            card.name, channels=card.places, at_work=card.at_work, is_default=card.is_default, error=card.error
        )
    return AgentView(
        name=card.name,
        model=spec.model,
        profile=spec.profile,
        system_prompt=spec.system_prompt,
        tools=spec.tools,
        fallback=spec.fallback,
        channels=card.places,
        at_work=card.at_work,
        is_default=card.is_default,
        idle_minutes=spec.idle_minutes,
        budget=spec.budget,
    )


async def _agents(web: Web, request: Request) -> Response:
    own = caller(request).token.agent
    return json_answer([_view(card) for card in await web.core.roster.cards() if own in ("", card.name)])


async def _agent(web: Web, request: Request) -> Response:
    name, own = path_part(request, "name"), caller(request).token.agent
    if own not in ("", name):
        raise NotFound(f"There is no agent {name[:80]!r}. There is: {own}.")
    return json_answer(_view(await web.core.roster.card(name)))


async def _create(web: Web, request: Request) -> Response:
    body = await read_json(request, NewAgent, seconds=web.options.body_seconds)
    beside = _channel(body.beside) if body.beside else None
    await web.core.roster.create(body.name, body.settings, caller(request).person)
    note = ""
    if beside is not None:
        note = (await web.core.roster.give_channel(body.name, beside, caller(request).person)).note
    return json_answer(CreatedAgent(_view(await web.core.roster.card(body.name)), note), 201)


async def _change(web: Web, request: Request) -> Response:
    name = path_part(request, "name")
    body = await read_json(request, AgentChange, seconds=web.options.body_seconds)
    for key, value in body.settings.items():
        await web.core.roster.configure(name, key, value, caller(request).person)
    return json_answer(_view(await web.core.roster.card(name)))


async def _destroy(web: Web, request: Request) -> Response:
    query = read_query(request, DestroyQuery)
    files = await web.core.roster.destroy(path_part(request, "name"), caller(request).person, keep=query.keep_files)
    return json_answer(Destroyed(True, files))


def _binding(binding: Binding) -> BindingView:
    return BindingView(
        binding.platform, binding.channel, binding.agent, binding.bound_by, binding.made, binding.created_at
    )


async def _bindings(web: Web, _: Request) -> Response:
    return json_answer([_binding(one) for one in await web.core.store.registry.bindings()])


async def _bind(web: Web, request: Request) -> Response:
    body = await read_json(request, NewBinding, seconds=web.options.body_seconds)
    thread = make_thread_id(body.platform, body.channel, "0")
    return json_answer(_binding(await web.core.roster.bind(body.agent, thread, caller(request).person)))


async def _unbind(web: Web, request: Request) -> Response:
    await web.core.roster.unbind(
        make_thread_id(path_part(request, "platform"), path_part(request, "channel"), "0"), caller(request).person
    )
    return json_answer(Unbound(True))


def _channel(place: str) -> ThreadId:
    platform, _, channel = place.partition(":")
    if not platform or not channel:
        raise InvalidInput(f"{place[:80]!r} is no channel: write PLATFORM:CHANNEL.")
    return make_thread_id(platform, channel, "0")


async def _command(web: Web, request: Request) -> Response:
    thread = path_thread(request)
    body = await read_json(request, CommandText, seconds=web.options.body_seconds)
    text = checked_text(body.text)
    spoken = parse_command(text)
    if spoken is None:
        return json_answer(
            CommandAnswer(f"There is no command {text.split()[0][:40]}. Write /help for those there are.")
        )
    clock = web.core.clock
    by = caller(request)
    _check_command(by, spoken.name)
    key, at = clock.new_id(), clock.now()
    asked = Asked(thread, by.author, spoken.name, spoken.argument, key, at, direct=True, by=by.asker)
    return json_answer(CommandAnswer(await web.core.orchestrator.command(asked)))


def _check_command(by: Principal, name: str) -> None:
    """Raises ApiError 403 for a command that does more than the token may."""
    if by.is_confined and name not in CONFINED_COMMANDS:
        message = f"The token {by.token.name!r} has no command /{name}; it has /{', /'.join(CONFINED_COMMANDS)}."
        raise ApiError(403, "scope", message)


async def _commands(_: Web, request: Request) -> Response:
    by = caller(request)
    if by.token.scope not in TALKERS:
        return json_answer(list[CommandSpec]())
    return json_answer([one for one in COMMANDS.values() if not by.is_confined or one.name in CONFINED_COMMANDS])


async def _info(web: Web, _: Request) -> Response:
    return json_answer(web.core.info())


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/agents", handler=_agents, scopes=READERS, narrows=True,
        summary="The agents.", answer=Answer("Agents.", list[AgentView]),
    ),
    Endpoint(
        method="POST", path="/api/agents", handler=_create, scopes=ADMINS, body=NewAgent,
        summary="Make an agent from the template; 409 when there is one of this name.",
        answer=Answer("The agent.", CreatedAgent, 201),
    ),
    Endpoint(
        method="GET", path="/api/agents/{name}", handler=_agent, scopes=READERS, narrows=True,
        summary="One agent.", answer=Answer("The agent.", AgentView),
    ),
    Endpoint(
        method="PATCH", path="/api/agents/{name}", handler=_change, scopes=ADMINS, body=AgentChange,
        summary="Set keys of an agent; they count from its next turn on.",
        answer=Answer("The agent as it is now.", AgentView),
    ),
    Endpoint(
        method="DELETE", path="/api/agents/{name}", handler=_destroy, scopes=ADMINS, query=DestroyQuery,
        summary="Stop an agent's turns and remove it; its journals stay.", answer=Answer("It is gone.", Destroyed),
    ),
    Endpoint(
        method="GET", path="/api/bindings", handler=_bindings, scopes=READERS,
        summary="Which agent answers in which channel.", answer=Answer("Bindings.", list[BindingView]),
    ),
    Endpoint(
        method="PUT", path="/api/bindings", handler=_bind, scopes=ADMINS, body=NewBinding,
        summary="Bind a channel to an agent, from its next message on.", answer=Answer("The binding.", BindingView),
    ),
    Endpoint(
        method="DELETE", path="/api/bindings/{platform}/{channel}", handler=_unbind, scopes=ADMINS,
        summary="Take a channel's binding away.", answer=Answer("It is unbound.", Unbound),
    ),
    Endpoint(
        method="POST", path="/api/threads/{thread}/command", handler=_command, scopes=TALKERS, body=CommandText,
        summary="Do what a slash command of the chats does, as the token's person.",
        answer=Answer("What it answers.", CommandAnswer),
    ),
    Endpoint(
        method="GET", path="/api/commands", handler=_commands, scopes=EVERYONE, narrows=True,
        summary="The slash commands of all platforms.", answer=Answer("Commands.", list[CommandSpec]),
    ),
    Endpoint(
        method="GET", path="/api/info", handler=_info, scopes=READERS,
        summary="What is up: agents, tools, skills, models, platforms, and what the operator should know.",
        answer=Answer("What is up.", Info),
    ),
)  # fmt: skip
