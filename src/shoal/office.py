"""The agents' lives and the commands of all platforms put together, and what is up, for the log, the API and people."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

import anyio

from shoal.actors.access_gate import OWNER_IN
from shoal.actors.commands import (
    AgentCommands,
    CommandRouter,
    describe_state,
    describe_work,
)
from shoal.actors.orchestrator import Orchestrator
from shoal.agents.lifecycle import AgentLifecycle, Checks
from shoal.agents.registry import AgentRegistry, RuntimeInfo
from shoal.agents.self_edit import Rules, SelfEditor, self_edit_tools
from shoal.agents.snapshots import ConversationSnapshots
from shoal.config import Config, default_model
from shoal.domain.agents import AgentSpec, Work
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, InvalidInput, PlatformError, StoreError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.permissions import Asker
from shoal.domain.ports import ChatAdapter, Models, Sandbox
from shoal.domain.posts import OutboundPost
from shoal.domain.records import NewPost
from shoal.domain.triggers import NewTrigger, Trigger, first_time
from shoal.permissions.access import Audiences, is_among
from shoal.permissions.profiles import Profiles
from shoal.providers.catalog import existing_model, key_lines, model_names
from shoal.sandbox import processes as machine
from shoal.store.agents import AgentStore
from shoal.store.store import Store
from shoal.tools.builtin.schedule import schedule_tool
from shoal.tools.executor import Executor
from shoal.tools.mcp.connection import McpConnection
from shoal.tools.mcp.pins import any_tool_of
from shoal.tools.process_tools import process_tools
from shoal.tools.processes import ProcessService, ProcessSettings, ProcessTable, line_of
from shoal.tools.registry import Registry as Tools
from shoal.tools.registry import command_actions
from shoal.tools.tainted_files import PromptFiles
from shoal.turn.context import LINES_MAX, Activity
from shoal.turn.prompt import PromptBuilder

log = logging.getLogger(__name__)

CHANNELS_AFTER_SECONDS = 20.0
"""Bound channels are looked for when the platforms have had time to connect."""
CHANNELS_TRIES = 5
DOINGS_MAX = LINES_MAX + 2
"""Threads at work and running processes that are looked up for an agent: those it is told of, its own thread among
them, and one that stands for all more."""
PLACE = make_thread_id("web", "lobby", "info")


class Host(Protocol):
    """What of the backend the processes stand on."""

    @property
    def recovers(self) -> bool: ...

    def beside(self, serve: Callable[[], Coroutine[object, object, None]], /) -> None:
        """Have `serve` run in this process."""
        ...


class Running(Protocol):
    """What of the app the office stands on."""

    config: Config
    home: Home
    clock: Clock
    notes: list[str]
    tools: Tools
    agents: AgentRegistry
    models: Models
    profiles: Profiles
    audiences: Audiences
    sandbox: Sandbox
    prompts: PromptBuilder
    prompt_files: PromptFiles
    snapshots: ConversationSnapshots
    orchestrator: Orchestrator
    commands: CommandRouter
    adapters: dict[str, ChatAdapter]
    roster: AgentLifecycle
    mcp: list[McpConnection]
    executor: Executor
    processes: ProcessService

    @property
    def store(self) -> Store: ...

    @property
    def backend(self) -> Host: ...

    async def post(self, post: NewPost) -> None:
        """Put a message into the outbox."""
        ...

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn."""
        ...


def open_processes(app: Running) -> ProcessService:
    """Give the app the service that runs its agents' processes, with the tools for them and for schedules."""
    settings = ProcessSettings(f"{socket.gethostname()} {machine.identity_of(os.getpid())}", app.backend.recovers)
    send, redact = app.orchestrator.send, app.executor.redactor.redact
    table = ProcessTable(machine.identity_of, machine.is_alive, machine.kill_leftovers)
    service = ProcessService(app.store.processes, app.home, app.clock, send, redact, table, settings)
    for tool in (
        *process_tools(service, command_actions, app.executor.source_of),
        schedule_tool(app.store.triggers, first_time),
    ):
        app.tools.add(tool)
    app.backend.beside(service.run)
    return service


def open_office(app: Running, people: Sequence[str]) -> None:
    """Give the app its processes, its roster and its desk.

    `people` beside agents.managers may change agents and settings.
    """
    app.processes = open_processes(app)
    checks = make_checks(app.models, app.profiles, partial(_tool_names, app))
    app.roster = AgentLifecycle(
        app.home, app.store, app.agents, app.clock, checks, app.adapters, app.prompt_files, app.orchestrator.send
    )
    may = partial(_may, (*app.config.agents.managers, *people))
    editor = SelfEditor(app.store, app.home.agent, Rules(checks.model, checks.profile, may), app.prompt_files)
    for tool in self_edit_tools(editor):
        app.tools.add(tool)
    app.commands = CommandRouter(
        app.orchestrator,
        app.store,
        app.agents,
        app.snapshots,
        app.clock,
        app.audiences,
        AgentCommands(
            app.store,
            app.agents,
            app.roster,
            editor,
            app.audiences,
            may_manage=may,
            check_keys=partial(key_lines, app.models),
        ),
        add_trigger=app.add_trigger,
        check_model=checks.model,
        known_models=partial(model_names, app.models),
        processes=app.processes.lines,
    )


async def doings(registry: AgentStore, clock: Clock, thread: ThreadId, agent: AgentSpec, within: str) -> Activity:
    """What the agent does now beside a thread, on all machines, as far as `within` reaches.

    It stands in the prompt as Shoal's own words, so there is no word in it of anybody who is not trusted, nor a name.
    """
    works, processes = await registry.around(agent.name, DOINGS_MAX, within=within)
    now = clock.now()
    return Activity(
        tuple(_own_words(work, now) for work in works if work.thread != thread),
        tuple(line_of(process, now, is_named=not process.spec.tainted_by) for process in processes),
    )


def _own_words(work: Work, now: datetime) -> str:
    if work.trusted:
        return f"{work.thread}: {describe_work(work, now)}"
    return f"a conversation on {work.thread.partition(':')[0]}: {describe_state(work, now)}"


async def watch_channels(app: Running) -> None:
    """Look once whether the bound channels are still there, and tell the log, the notes and the owner which are not."""
    for attempt in range(CHANNELS_TRIES):
        await app.clock.sleep(CHANNELS_AFTER_SECONDS * (attempt + 1))
        try:
            lost = await app.roster.lost_channels()
        except PlatformError as error:
            log.info("bound channels cannot be checked yet", extra={"why": str(error)})
            continue
        for line in lost:
            log.warning("%s", line)
        app.notes += lost
        if lost:
            await _tell_owner(app, "\n".join(lost))
        break
    await anyio.sleep_forever()


async def tell_of_trigger(app: Running, trigger: Trigger, text: str) -> None:
    """In the thread that it belongs to; where each occurrence opens one of its own, to the owner."""
    log.warning("a trigger was switched off; see `shoal triggers list`", extra={"trigger": trigger.id, "why": text})
    if trigger.spec.thread is None:
        await _tell_owner(app, text)
    else:
        await app.post(NewPost(f"trigger:{trigger.id}:{app.clock.new_id()}", trigger.spec.thread, text))


async def _tell_owner(app: Running, text: str) -> None:
    """Where the owner last wrote; the notes have it in any case."""
    found = await app.store.settings.get("last_channel", app.agents.defaults.agent)
    if found and found.count(":") == 2:
        await app.post(NewPost(f"notice:{app.clock.new_id()}", ThreadId(found), text))


async def tell_owner_directly(app: Running, text: str) -> None:
    """In the direct conversation in which the owner wrote last, where nobody else reads along; nowhere without one."""
    found = await app.store.settings.get(*OWNER_IN)
    if found:
        await app.post(NewPost(f"notice:{app.clock.new_id()}", ThreadId(found), text))


async def tell_of_damage(app: Running, damage: str) -> None:
    """Post it where the owner wrote last in private, past the outbox, which is in the database that is damaged."""
    with contextlib.suppress(StoreError, PlatformError):
        found = await app.store.settings.get(*OWNER_IN)
        adapter = app.adapters.get(found.partition(":")[0]) if found else None
        if found and adapter is not None:
            text = f"I take no messages any more, and nothing runs: my database is damaged. {damage}"
            await adapter.post(OutboundPost(ThreadId(found), f"notice:{app.clock.new_id()}", text))


def info_of(app: Running) -> RuntimeInfo:
    """What is up now."""
    try:
        skills = [skill.name for skill in app.prompts.skills(app.agents.spec(app.agents.defaults.agent), PLACE).found]
    except InvalidInput:
        skills = []
    return RuntimeInfo(
        agents=tuple(app.agents.names()),
        tools=app.tools.names(),
        skills=tuple(skills),
        model=default_model(app.config),
        providers=tuple(app.config.providers),
        models=len(model_names(app.models)),
        platforms=tuple(app.adapters),
        sandbox=app.sandbox.name,
        isolated=app.sandbox.isolated,
        notes=tuple(app.notes),
        mcp=tuple(server.state.told for server in app.mcp),
    )


def make_checks(models: Models, profiles: Profiles, tools: Callable[[], Sequence[str]]) -> Checks:
    """What the settings of agents may name."""
    return Checks(partial(existing_model, models), partial(_existing_profile, profiles), tools)


def _tool_names(app: Running) -> Sequence[str]:
    """The tools there are, and what those of MCP servers that are not up here would be called."""
    up = {server.state.server for server in app.mcp if server.state.status == "up"}
    away = [name for name, server in app.config.mcp.items() if server.enabled and name not in up]
    return (*app.tools.names(), *map(any_tool_of, away))


def _existing_profile(profiles: Profiles, name: str) -> None:
    try:
        profiles.get(name)
    except ConfigError as error:
        known = ", ".join(profiles.names)
        raise InvalidInput(f"There is no permission profile {name[:80]!r}. There are: {known}.") from error


def _may(people: Sequence[str], asker: Asker) -> bool:
    return is_among(asker, people)
