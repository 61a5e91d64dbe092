"""The wiring, read first: `open_app` builds the running system from a configuration, each part after what it needs.

config ─► database, engine ─► platforms, models, sandbox ─► delivery ─► tools ─► turn loop ─► orchestrator
                                                                                 └─► agents, commands, gates, triggers
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from shoal.accounts import OWNERS, account_agents, links_of, make_adapters, platform_owners
from shoal.actors.access_gate import AccessGate, Admissions, OpenInbox, Pairing
from shoal.actors.access_tokens import AccessTokens
from shoal.actors.actor import ActorServices
from shoal.actors.commands import AgentCommands, CommandRouter, activity_of
from shoal.actors.orchestrator import Orchestrator
from shoal.actors.prompt_inputs import Attachments, Backfill
from shoal.agents.children import Children
from shoal.agents.lifecycle import AgentLifecycle, Checks
from shoal.agents.registry import AgentDefaults, AgentRegistry, ChannelBindings, RuntimeInfo
from shoal.agents.self_edit import Rules, SelfEditor, self_edit_tools
from shoal.agents.snapshots import ConversationSnapshots, IdleWatch
from shoal.backend import Backend, Role, open_backend, unwrapped
from shoal.backups import Backups, backup_place
from shoal.config import Config, default_model
from shoal.config.ollama import with_ollama
from shoal.config.secrets import watch_secrets
from shoal.delivery.hub import Hub
from shoal.delivery.sender import Senders
from shoal.domain.agents import TurnLimits
from shoal.domain.clock import Clock, SystemClock
from shoal.domain.errors import ConfigError, InvalidInput
from shoal.domain.files import Files, Folders
from shoal.domain.home import Home
from shoal.domain.ids import OWN_PLATFORMS, make_thread_id
from shoal.domain.permissions import Asker
from shoal.domain.ports import ChatAdapter, Completion, Engine, Models, Sandbox
from shoal.domain.records import NewPost
from shoal.domain.triggers import NewTrigger, Trigger, first_time
from shoal.extensions import extension_providers, extension_sandbox, extension_tools
from shoal.maintenance import (
    ReadableFiles,
    anchor_audit,
    look_through_daily,
    note_settings,
    tell_completions,
    watch_approvals,
    watch_files,
    watch_health,
    watch_retries,
)
from shoal.notices import Notices
from shoal.permissions.access import AccessRules, Audiences, is_among
from shoal.permissions.profiles import Profiles
from shoal.providers.catalog import Catalog, existing_model, key_lines, model_names
from shoal.sandbox import processes as host_processes
from shoal.sandbox.choose import open_sandbox, server_enclosure
from shoal.store.driver import Driver
from shoal.store.health import Health
from shoal.store.retention import RowRetention, bookkeeping_days
from shoal.store.store import Store
from shoal.tools.builtin.schedule import schedule_tool
from shoal.tools.builtin.subagent import subagent_tools
from shoal.tools.executor import Executor, ExecutorSettings
from shoal.tools.fetch import GuardedFetcher
from shoal.tools.mcp.connection import McpServers
from shoal.tools.mcp.pins import Pins, any_tool_of
from shoal.tools.process_tools import process_tools
from shoal.tools.processes import ProcessService, ProcessSettings, ProcessTable
from shoal.tools.registry import Registry, command_actions, lookup_tools, standard_tools
from shoal.tools.retention import Retention
from shoal.tools.storage import open_files, open_folders
from shoal.tools.tainted_files import SYSTEM_FILE_CLOCK, FileClock, MarkedFiles, PromptFiles
from shoal.triggers.files import EventFiles
from shoal.triggers.service import Alarm, TriggerService, tell_switched_off
from shoal.turn.budget import meter_of
from shoal.turn.compaction import Compactor
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop
from shoal.turn.prompt import PromptBuilder, PromptLimits
from shoal.turn.spending import Spending

State = Literal["starting", "running", "draining", "stopped"]


class Overrides(msgspec.Struct, frozen=True):
    """What a test or an embedding program puts in place of the real parts, or adds to them.

    `on_complete` is awaited with thread, turn and reply of each turn that has finished in this process; what it raises
    stops the app.
    """

    clock: Clock | None = None
    models: Models | None = None
    sandbox: Sandbox | None = None
    adapters: tuple[ChatAdapter, ...] = ()
    access: Mapping[str, AccessRules] = {}
    on_complete: Completion | None = None
    wrap_driver: Callable[[Driver], Driver] | None = None
    file_clock: FileClock = SYSTEM_FILE_CLOCK


NO_OVERRIDES = Overrides()


@dataclass(kw_only=True)
class LiveToolServices:
    """Implements `domain.ports.ToolServices`: what tools may ask of the rest of Shoal."""

    store: Store
    clock: Clock
    senders: Senders
    artifacts: Files
    due_triggers: Alarm

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        await self.senders.post(post)

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn. Raises InvalidInput on a schedule that never comes."""
        added = await self.store.triggers.add(trigger, first_time(trigger, self.clock.now()))
        self.due_triggers.ring()
        return added


@dataclass(kw_only=True)
class App:
    """The running system, as the surfaces use it. Made by `open_app`."""

    config: Config
    home: Home
    clock: Clock
    role: Role
    backend: Backend
    store: Store
    adapters: Mapping[str, ChatAdapter]
    pairing: Pairing
    tokens: AccessTokens
    audiences: Audiences
    gates: Mapping[str, AccessGate]
    inbox: OpenInbox
    commands: CommandRouter
    artifacts: Files
    folders: Folders
    tainted_files: MarkedFiles
    prompt_files: PromptFiles
    hub: Hub
    outlets: LiveToolServices
    notices: Notices
    triggers: TriggerService
    backups: Backups
    sandbox: Sandbox
    models: Models
    agents: AgentRegistry
    tools: Registry
    pins: Pins
    mcp: McpServers
    executor: Executor
    prompts: PromptBuilder
    compactor: Compactor
    attachments: Attachments
    snapshots: ConversationSnapshots
    orchestrator: Orchestrator
    processes: ProcessService
    lifecycle: AgentLifecycle
    stopping: asyncio.Event
    state: State = "starting"

    @property
    def engine(self) -> Engine:
        """Runs the threads' work."""
        return self.backend.engine

    @property
    def health(self) -> Health:
        """What is known to be wrong with the database."""
        return self.backend.health

    async def drain(self) -> None:
        """Stop intake, give running turns `engine.drain_seconds`, leave the rest to the next start."""
        self.state = "draining"
        self.stopping.set()
        await self.engine.drain(self.config.engine.drain_seconds)

    def due(self, what: str) -> None:
        """Another process made something due: a post for the platform of that name, `triggers`, or anything (empty)."""
        self.outlets.senders.poke_platform(what)
        if what in ("triggers", ""):
            self.outlets.due_triggers.ring()

    def _skill_names(self) -> tuple[str, ...]:
        try:
            default = self.agents.spec(self.agents.defaults.agent)
        except InvalidInput:
            return ()
        return tuple(skill.name for skill in self.prompts.skills(default, make_thread_id("web", "lobby", "info")).found)

    def info(self) -> RuntimeInfo:
        """What is up now."""
        return RuntimeInfo(
            agents=tuple(self.agents.names()),
            tools=self.tools.names(),
            skills=self._skill_names(),
            model=default_model(self.config),
            providers=tuple(self.config.providers),
            models=len(model_names(self.models)),
            platforms=tuple(self.adapters),
            sandbox=self.sandbox.name,
            isolated=self.sandbox.isolated,
            notes=tuple(self.notices.notes),
            mcp=tuple(server.state.told for server in self.mcp.connections),
        )


@asynccontextmanager
async def open_app(config: Config, overrides: Overrides = NO_OVERRIDES, role: Role = "all") -> AsyncGenerator[App]:
    """Open the home directory and run everything until the block ends; then drain.

    Raises HomeLocked, ConfigError and StoreError with what to do about each.
    """
    if overrides.models is None:
        config = await with_ollama(config, os.environ)
    home = Home(config.home)
    clock = overrides.clock or SystemClock()
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.data.mkdir(exist_ok=True)
    async with unwrapped(), AsyncExitStack() as stack:
        backend = await stack.enter_async_context(open_backend(config, home, role, overrides.wrap_driver))
        store = Store(backend.driver, clock)
        hub = Hub()
        everyones_hub = backend.hub(hub, store.journal, clock.new_id())

        # ---- platforms, models, sandbox ----

        async with asyncio.TaskGroup() as starting:
            trial = starting.create_task(_open_sandbox(config, overrides, stack))  # while this process does the rest
            await asyncio.to_thread(host_processes.kill_orphans)
            adapters = {
                adapter.platform: adapter
                for adapter in (*make_adapters(config, home, store.settings, clock), *overrides.adapters)
            }
            profiles = Profiles(config.permissions.profiles, config.permissions.overrides)
            models = overrides.models
            if models is None:
                extra = extension_providers()
                models = catalog = Catalog(config.providers, home=home, clock=clock, environ=os.environ, extra=extra)
                stack.push_async_callback(catalog.close)
        sandbox, notes = trial.result()
        links = links_of(config, adapters, overrides.access)
        audiences = Audiences(links.rules, links.people)
        pairing = Pairing(store, clock)
        gated = adapters.keys() - OWN_PLATFORMS
        admissions = Admissions(links, pairing, gated)
        bindings = ChannelBindings(store.registry, clock, account_agents(config))
        agents = AgentRegistry(home, AgentDefaults.of(config, default_model(config)), bindings)

        # ---- delivery ----

        files = await open_files(config.files, home)
        artifacts = files.below("artifacts")
        tainted_files = MarkedFiles(store.settings, home, overrides.file_clock)
        prompt_files = PromptFiles(tainted_files, home)
        folders = open_folders(config.files, files, store.settings, home, tainted_files)
        senders = Senders(adapters, hub, store.outbox, clock, folders)
        due_triggers = Alarm(clock)
        outlets = LiveToolServices(
            store=store, clock=clock, senders=senders, artifacts=artifacts, due_triggers=due_triggers
        )
        notices = Notices(store, clock, adapters, config.agents.default_agent, senders.post, notes)
        backups = Backups(
            home,
            backup_place(config, home),
            clock,
            store.settings,
            notices.tell_owner,
            config.backup,
            config.database.url.reveal,
        )

        # ---- tools ----

        web = GuardedFetcher()
        tools = standard_tools(config.sandbox, config.tools, web)
        for tool in (*lookup_tools(store, artifacts, adapters, admissions.judge), *extension_tools()):
            tools.add(tool)
        pins = Pins(store.settings, store.audit, clock, config.mcp)
        servers = config.mcp if role != "serve" else {}
        mcp = McpServers(servers, home, tools, clock, server_enclosure(config.sandbox), pins, notices.tell_owner)
        executor = Executor(
            tools,
            sandbox,
            store,
            outlets,
            home,
            clock,
            tainted_files,
            ExecutorSettings.of(config, isolated=sandbox.isolated),
        )
        watch_secrets(config, executor.redactor.learn)
        if config.telemetry.is_on(os.environ):
            await stack.enter_async_context(open_telemetry(config, hub, executor.redactor.redact))

        # ---- the turn ----

        spending = Spending(store.budget, store.ledger, models, clock, config.budget, outlets.post, agents.budget)
        prompts = PromptBuilder(home, clock, PromptLimits(notes_days=config.context.daily_notes_days))
        context = ContextBuilder(
            home,
            executor,
            prompts,
            clock,
            config.context,
            config.model.context_tokens_max,
            await meter_of(config.context.tokenizer, config.model.name),
            profile_of=lambda agent, asker: profiles.effective(agent.profile, asker, agent.name),
            activity=partial(activity_of, store.registry, clock),
            spend_left=spending.left,
            tainted_files=prompt_files.sources,
        )
        compactor = Compactor(context, spending, clock)
        children = Children(store, backend.engine, agents, models, clock, config.subagents)
        for tool in subagent_tools(children.check, children.begin, children.result):
            tools.add(tool)
        limits = TurnLimits(
            **msgspec.structs.asdict(config.turns),
            outage_seconds=config.model.outage_seconds,
            trigger_outage_seconds=config.triggers.outage_seconds,
        )
        loop = TurnLoop(
            models,
            executor,
            context,
            compactor,
            spending,
            clock,
            limits,
            confirm=backend.engine.confirm,
            stop_children=children.stop,
            push=folders.push,
            known_models=partial(model_names, models),
        )

        # ---- the threads' actors ----

        stopping = asyncio.Event()
        attachments = Attachments(home, web, config.context, clock, tainted_files)
        approvers = (*config.permissions.approvers, *OWNERS, *platform_owners(config))
        orchestrator = Orchestrator(
            ActorServices(
                store=store,
                hub=everyones_hub,
                clock=clock,
                agents=agents,
                children=children,
                context=context,
                loop=loop,
                compactor=compactor,
                senders=senders,
                attachments=attachments,
                backfill=Backfill(adapters, admissions.judge, clock, config.context),
                audiences=audiences,
                people=links.people,
                folders=folders,
                timeout_seconds=limits.timeout_seconds,
                project=ReadableFiles(home, store.journal).project,
                stopping=stopping.is_set,
            ),
            backend.engine,
            adapters,
            prompts_max=config.mailbox.prompts_max,
            idle_seconds=config.mailbox.idle_seconds,
            approvers=approvers,
            tell_disabled=partial(tell_switched_off, store.triggers, notices.of_trigger),
        )
        processes = ProcessService(
            store.processes,
            home,
            clock,
            orchestrator.send,
            executor.redactor.redact,
            ProcessTable(host_processes.identity_of, host_processes.is_alive, host_processes.kill_leftovers),
            ProcessSettings(f"{socket.gethostname()} {host_processes.identity_of(os.getpid())}", backend.recovers),
        )
        for tool in (
            *process_tools(processes, command_actions, executor.source_of),
            schedule_tool(store.triggers, first_time),
        ):
            tools.add(tool)

        # ---- agents and commands ----

        def known_tools() -> list[str]:
            away = [name for name, server in config.mcp.items() if server.enabled and name not in mcp.up]
            return [*tools.names(), *map(any_tool_of, away)]

        may_manage = partial(_is_one_of, (*config.agents.managers, *approvers))
        checks = Checks(partial(existing_model, models), profiles.check, known_tools)
        lifecycle = AgentLifecycle(home, store, agents, clock, checks, adapters, prompt_files, orchestrator.send)
        editor = SelfEditor(store, home.agent, Rules(checks.model, checks.profile, may_manage), prompt_files)
        for tool in self_edit_tools(editor):
            tools.add(tool)
        snapshots = ConversationSnapshots(store, agents, clock, spending, everyones_hub.publish, prompt_files)
        commands = CommandRouter(
            orchestrator,
            store,
            agents,
            snapshots,
            clock,
            audiences,
            AgentCommands(
                store,
                agents,
                lifecycle,
                editor,
                audiences,
                may_manage=may_manage,
                check_keys=partial(key_lines, models),
            ),
            add_trigger=outlets.add_trigger,
            check_model=checks.model,
            known_models=partial(model_names, models),
            processes=processes.lines,
        )

        # ---- where people and triggers come in ----

        inbox = OpenInbox(orchestrator, commands)
        app = App(
            config=config,
            home=home,
            clock=clock,
            role=role,
            backend=backend,
            store=store,
            adapters=adapters,
            pairing=pairing,
            tokens=AccessTokens(store, clock, pairing, links, agents.names),
            audiences=audiences,
            gates={platform: AccessGate(inbox, admissions, pairing, store, clock, outlets.post) for platform in gated},
            inbox=inbox,
            commands=commands,
            artifacts=artifacts,
            folders=folders,
            tainted_files=tainted_files,
            prompt_files=prompt_files,
            hub=hub,
            outlets=outlets,
            notices=notices,
            triggers=TriggerService(
                store.triggers,
                orchestrator,
                clock,
                due_triggers,
                catch_up_seconds=config.triggers.catch_up_seconds,
                tell=notices.of_trigger,
                judge=admissions.asked_for,
            ),
            backups=backups,
            sandbox=sandbox,
            models=models,
            agents=agents,
            tools=tools,
            pins=pins,
            mcp=mcp,
            executor=executor,
            prompts=prompts,
            compactor=compactor,
            attachments=attachments,
            snapshots=snapshots,
            orchestrator=orchestrator,
            processes=processes,
            lifecycle=lifecycle,
            stopping=stopping,
        )
        notices.notes += await lifecycle.reconcile()
        _add_services(app)
        if overrides.on_complete is not None:
            backend.add_service(partial(tell_completions, hub, overrides.on_complete))
        async with _running(app):
            yield app


def _add_services(app: App) -> None:
    """What runs besides the engine: in every process of its role, or in one of them at a time."""
    config, clock, store, backend = app.config, app.clock, app.store, app.backend
    backend.add_service(app.orchestrator.deactivate_idle)
    backend.add_service(app.attachments.run)
    backend.add_service(app.processes.run)
    backend.add_service(partial(watch_health, app.health, clock, app.notices.of_damage))
    backend.add_service(partial(watch_approvals, app.orchestrator, clock, config.permissions.ask_expires_seconds))
    backend.add_single("database check", partial(look_through_daily, app.health, clock))
    backend.add_single("backups", app.backups.run)
    backend.add_single("row retention", RowRetention(store.bookkeeping, clock, bookkeeping_days(config)).run)
    for server in app.mcp.connections:
        backend.add_service(server.run)
    if app.role != "serve":
        backend.add_service(partial(watch_retries, app.orchestrator.retry_due, clock))
    if app.role != "worker":
        backend.on_due(app.due)
        backend.add_service(app.triggers.run)
        backend.add_service(partial(anchor_audit, store.audit, clock))
        source_of, ring = app.prompt_files.source_of, app.outlets.due_triggers.ring
        events = EventFiles(app.home.events, store.triggers, app.orchestrator, clock, ring, source_of)
        minutes = config.triggers.heartbeat_minutes
        backend.add_single("files", partial(watch_files, app.home, app.orchestrator, clock, events, minutes, source_of))
        retention = Retention(store, app.artifacts, app.folders, app.home, clock, config.context.artifact_days)
        backend.add_single("retention", retention.run)
        default = config.agents.default_agent
        idle = IdleWatch(store, app.agents, app.snapshots, clock, app.outlets.post, default)
        backend.add_single("idle agents", idle.run)
        backend.add_single("bound channels", partial(app.notices.watch_channels, app.lifecycle))
        for platform, adapter in app.adapters.items():
            receive = partial(adapter.run, app.gates.get(platform, app.inbox))
            opened, gave_up = app.orchestrator.opened, app.orchestrator.gave_up
            send = partial(app.outlets.senders.run, platform, opened, gave_up)
            backend.add_single(f"platform {platform}", receive, send)


@asynccontextmanager
async def _running(app: App) -> AsyncGenerator[None]:
    """Run the engine and all services while the block runs; then drain."""
    async with asyncio.TaskGroup() as tasks:
        lasting = (app.engine.run(app.orchestrator), *app.backend.services())
        engine, *services = [tasks.create_task(service) for service in lasting]
        await app.engine.started()
        if app.role != "worker":
            await note_settings(app.config, app.store, app.home, app.agents.names())
        if app.backend.recovers:
            await app.orchestrator.recover()
        await app.mcp.wait_ready()
        app.state = "running"
        try:
            yield
        finally:
            await app.drain()
            for service in services:
                service.cancel()
            await engine
            app.hub.close()
            app.state = "stopped"


def open_telemetry(config: Config, hub: Hub, redact: Callable[[str], str]) -> AbstractAsyncContextManager[None]:
    """[telemetry], which costs an import of half a second. Raises ConfigError where the extra is missing."""
    try:
        from shoal.telemetry import telemetry
    except ImportError as error:
        raise ConfigError(["telemetry is on, and needs the extra `otel`: install shoal[otel]."]) from error
    return telemetry(config, hub, redact)


async def _open_sandbox(config: Config, overrides: Overrides, stack: AsyncExitStack) -> tuple[Sandbox, list[str]]:
    """The sandbox of [sandbox], tried out, with what the operator should know. Raises SandboxError, ConfigError."""
    sandbox, notes = overrides.sandbox, list[str]()
    if sandbox is None:
        chosen = await open_sandbox(config.sandbox, extension_sandbox)
        sandbox, notes = chosen.sandbox, [chosen.note] if chosen.note else []
    stack.push_async_callback(sandbox.close)
    return sandbox, notes


def _is_one_of(people: Sequence[str], asker: Asker) -> bool:
    return is_among(asker, people)
