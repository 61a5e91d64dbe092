"""The wiring, read first: `open_app` builds the running system from a configuration, each part after what it needs.

config ─► database, engine ─► platforms, models, sandbox ─► delivery ─► tools ─► turn loop ─► orchestrator
                                                                                 └─► agents, commands, gates, triggers
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, Protocol, Self, TypeVar, cast

import msgspec

from shoal.accounts import OWNERS, account_agents, links_of, make_adapters, platform_owners
from shoal.agents.children import Children
from shoal.agents.lifecycle import AgentLifecycle, Checks, EditCheck
from shoal.agents.registry import AgentDefaults, AgentRegistry, ChannelBindings, RuntimeInfo
from shoal.agents.self_edit import SelfEditor, self_edit_tools
from shoal.agents.snapshots import ConversationSnapshots, IdleWatch
from shoal.backend import Backend, Role, open_backend, unwrapped
from shoal.backups import Backups, backup_place
from shoal.config import Config, default_model, open_catalog, with_ollama
from shoal.config.secrets import watch_secrets
from shoal.delivery.barred import BarredChats
from shoal.delivery.hub import Hub
from shoal.delivery.sender import Senders
from shoal.extensions import extension_commands, extension_hooks, extension_sandbox, extension_tools
from shoal.feature import Feature, features
from shoal.kernel.begun import Begun
from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.commands import ChatCommand
from shoal.kernel.files import Files, Folders
from shoal.kernel.home import Home
from shoal.kernel.hooks import Hooks
from shoal.kernel.ids import OWN_PLATFORMS, make_thread_id
from shoal.kernel.ports import ChatAdapter, Completion, Engine, Models, Sandbox, TellsOwner, Tool
from shoal.maintenance import (
    Upkeep,
    anchor_audit,
    look_through_daily,
    note_settings,
    tell_completions,
    watch_approvals,
    watch_begun,
    watch_clock,
    watch_files,
    watch_health,
    watch_set_aside,
)
from shoal.models.catalog import (
    SPEECH_KEYS,
    build_speech,
    existing_model,
    key_lines,
    model_names,
)
from shoal.net.fetch import GuardedFetcher
from shoal.notices import Notices
from shoal.permissions.access import AccessRules, Links, People, among
from shoal.permissions.profiles import Profiles
from shoal.sandbox import processes as host_processes
from shoal.sandbox.choose import open_sandbox, server_enclosure
from shoal.store.driver import Driver
from shoal.store.retention import bookkeeping_days
from shoal.store.store import Store
from shoal.threads.access_gate import AccessGate, OpenInbox
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.actor import ActorServices
from shoal.threads.admissions import Admissions
from shoal.threads.attachments import Attachments
from shoal.threads.backfill import Backfill
from shoal.threads.commands import AgentCommands, CommandRouter
from shoal.threads.departures import Departures
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.pairing import Pairing
from shoal.threads.presence import Presence
from shoal.threads.readable_files import ReadableFiles
from shoal.threads.scope import Scopes
from shoal.threads.timezones import TimeZones
from shoal.threads.voice import VoiceService
from shoal.tools.documents import DocumentState
from shoal.tools.executor import Executor, LiveToolServices
from shoal.tools.hooks import HookRunner
from shoal.tools.mcp.connection import McpServers
from shoal.tools.mcp.definitions import any_tool_of
from shoal.tools.mcp.pins import Pins
from shoal.tools.process_tools import process_tools
from shoal.tools.processes import ProcessService, ProcessSettings, ProcessTable
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.registry import Registry, command_actions, lookup_tools, standard_tools
from shoal.tools.storage import Retention, open_checkpoints, open_files, open_folders
from shoal.tools.taint_spans import SYSTEM_FILE_CLOCK, FileClock
from shoal.tools.tainted_files import MarkedFiles
from shoal.triggers.service import TriggerService, tell_switched_off
from shoal.turn.compaction import Compactor, ThreadTitles
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop
from shoal.turn.spending import Spending
from shoal.turn.tokens import meter_as_set

State = Literal["starting", "running", "draining", "stopped"]


class Overrides(msgspec.Struct, frozen=True):
    """What a test or an embedding program puts in place of the real parts, or adds to them.

    `tools` are there before turns that were under way go on. `hooks` have names, as those of packages have.
    `on_complete` is awaited with thread, turn and reply of each turn that has finished in this process; what it raises
    is logged.
    """

    clock: Clock | None = None
    models: Models | None = None
    sandbox: Sandbox | None = None
    adapters: tuple[ChatAdapter, ...] = ()
    access: Mapping[str, AccessRules] = {}
    tools: tuple[Tool, ...] = ()
    commands: tuple[ChatCommand, ...] = ()
    hooks: Mapping[str, Hooks] = {}
    on_complete: Completion | None = None
    wrap_driver: Callable[[Driver], Driver] | None = None
    file_clock: FileClock = SYSTEM_FILE_CLOCK


NO_OVERRIDES = Overrides()


@dataclass
class Standing:
    """Who may speak on each platform and decide, and whose agent an account has; settled anew when that changes.

    `access` are rules in the place of the configuration's, `gated` the platforms before which a gate stands.
    """

    access: Mapping[str, AccessRules]
    links: Links
    gated: set[str]
    approvers: list[str]
    accounts: dict[str, str]

    def settle(self, config: Config, platforms: Iterable[str]) -> None:
        """Let all of it be as a configuration says, for everybody who holds a part of it."""
        self.links.become(links_of(config, platforms, self.access))
        self.approvers[:] = approvers_of(config)
        self.accounts.clear()
        self.accounts.update(account_agents(config))


class Service(Protocol):
    """A part of a feature that is made of the running system when it is asked for first."""

    @classmethod
    def of(cls, app: "App") -> Self: ...


ServiceT = TypeVar("ServiceT", bound=Service)


class FeatureServices:
    """The parts of features, by class."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._made: dict[type[Service], Service] = {}

    def __getitem__(self, kind: type[ServiceT]) -> ServiceT:
        service = self._made.get(kind)
        if service is None:
            service = self._made[kind] = kind.of(self._app)
        assert isinstance(service, kind)
        return service


@dataclass(kw_only=True)
class App:
    """The running system, as the surfaces use it. Made by `open_app`."""

    config: Config
    home: Home
    clock: Clock
    role: Role
    backend: Backend
    store: Store
    adapters: dict[str, ChatAdapter]
    standing: Standing
    admissions: Admissions
    pairing: Pairing
    tokens: AccessTokens
    inbox: OpenInbox
    commands: CommandRouter
    artifacts: Files
    folders: Folders
    tainted_files: MarkedFiles
    prompt_files: PromptFiles
    hub: Hub
    senders: Senders
    due_triggers: asyncio.Event
    outlets: LiveToolServices
    notices: Notices
    triggers: TriggerService
    backups: Backups
    sandbox: Sandbox
    models: Models
    agents: AgentRegistry
    profiles: Profiles
    titles: ThreadTitles
    tools: Registry
    pins: Pins
    mcp: McpServers
    executor: Executor
    context: ContextBuilder
    spending: Spending
    attachments: Attachments
    snapshots: ConversationSnapshots
    voice: VoiceService
    timezones: TimeZones
    scopes: Scopes
    departures: Departures
    orchestrator: Orchestrator
    processes: ProcessService
    lifecycle: AgentLifecycle
    editor: SelfEditor
    edit_checks: list[EditCheck]
    stopping: asyncio.Event
    document_states: list[DocumentState] = field(default_factory=list[DocumentState])
    gates: dict[str, AccessGate] = field(default_factory=dict[str, AccessGate])
    state: State = "starting"
    fetcher: GuardedFetcher = field(default_factory=GuardedFetcher)

    @property
    def engine(self) -> Engine:
        return self.backend.engine

    @cached_property
    def features(self) -> FeatureServices:
        return FeatureServices(self)

    def upkeep(self, name: str, run: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[object, object, None]]:
        """Return a service that begins `run` again when it fails, and tells the owner."""
        return Upkeep(self.store.settings, self.clock, self.notices.tell_owner).keep(name, run)

    async def drain(self) -> None:
        """Stop intake, give running turns `engine.drain_seconds`, leave the rest to the next start."""
        self.state = "draining"
        self.stopping.set()
        await self.engine.drain(self.config.engine.drain_seconds)

    def due(self, what: str) -> None:
        """Another process made something due: a post for the platform of that name, `triggers`, or anything (empty)."""
        self.senders.poke_platform(what)
        if what in ("triggers", ""):
            self.due_triggers.set()

    def add_platform(self, adapter: ChatAdapter) -> None:
        """Connect one more account, in a Shoal that runs already."""
        name = adapter.platform
        self.adapters[name] = adapter
        self.standing.gated.add(name)
        self.senders.add(adapter)
        self.serve_platform(adapter)

    def serve_platform(self, adapter: ChatAdapter) -> None:
        """Take messages of an account in, and deliver its posts."""
        name = adapter.platform
        if name in self.standing.gated:
            self.gates[name] = AccessGate(
                self.inbox, self.admissions, self.pairing, self.store, self.clock, self.outlets.post, self.scopes
            )
        opened, gave_up = self.orchestrator.opened, self.orchestrator.gave_up
        if isinstance(adapter, TellsOwner):
            adapter.tell_owner = self.notices.tell_owner
        receive = partial(adapter.run, self.gates.get(name, self.inbox))
        barred = BarredChats(name, self.store.settings, partial(self.notices.of_unposted, is_kept=True))
        send = partial(self.senders.run, name, opened, gave_up, self.voice.say, barred)
        self.backend.add_single(f"platform {name}", receive, send)

    async def remove_platform(self, name: str) -> None:
        """End an account's connection; what its threads have to post waits until it is there again."""
        await self.backend.end(f"platform {name}")
        self.adapters.pop(name, None)
        self.senders.drop(name)
        self.gates.pop(name, None)
        self.standing.gated.discard(name)

    def settle_people(self, config: Config) -> None:
        """Let who may speak and decide, and whose agent an account has, be as a configuration says."""
        self.config = config
        self.standing.settle(config, self.adapters)

    def info(self) -> RuntimeInfo:
        """What is up now."""
        default, lobby = self.agents.default(), make_thread_id("web", "lobby", "info")
        skills = self.context.prompts.skills(default, lobby).found if default is not None else ()
        return RuntimeInfo(
            agents=tuple(self.agents.names()),
            tools=self.tools.names(),
            skills=tuple(skill.name for skill in skills),
            model=self.agents.defaults.model,
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
    clock = overrides.clock or SystemClock(config.zone)
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.data.mkdir(exist_ok=True)
    with suppress(OSError):  # a link to a disk that was taken away, say
        home.events.mkdir(exist_ok=True)  # before the first turn, which may put a file there
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
            tools = Registry()
            profiles = Profiles(tools.traits, config.permissions.profiles, config.permissions.overrides)
            models = overrides.models
            if models is None:
                models = catalog = open_catalog(config, os.environ, clock)
                stack.push_async_callback(catalog.close)
        sandbox, notes = trial.result()
        links = links_of(config, adapters, overrides.access)

        def look_for_departures() -> None:
            departures.sweep_soon()

        pairing = Pairing(store, clock, look_for_departures)
        gated = set(adapters.keys() - OWN_PLATFORMS)
        admissions = Admissions(links, pairing, gated)
        accounts = account_agents(config)
        bindings = ChannelBindings(store.registry, clock, accounts)
        agents = AgentRegistry(home, AgentDefaults.of(config, default_model(config)), bindings)

        # ---- delivery ----

        files = await open_files(config.files, home)
        artifacts = files.below("artifacts")
        tainted_files = MarkedFiles(store.settings, home, overrides.file_clock)
        prompt_files = PromptFiles(tainted_files, home)
        folders = open_folders(config.files, files, store.settings, home, tainted_files)
        begun = Begun(home.root / "begun" / f"work-{role}")
        begun.open()
        await begun.share(store.settings, has_others=bool(config.database.url))
        restored_at = home.restored_at()
        senders = Senders(adapters, hub, store.outbox, clock, folders, begun, restored_at)
        due_triggers = asyncio.Event()
        outlets = LiveToolServices(store, clock, artifacts, senders.post, due_triggers.set)
        approvers = approvers_of(config)
        notices = Notices(
            store, clock, adapters, config.agents.default_agent, senders.post, notes, lambda: tuple(approvers)
        )
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

        for tool in (
            *standard_tools(config.sandbox, config.tools, web := GuardedFetcher()),
            *lookup_tools(store, artifacts, adapters, admissions.judge),
            *extension_tools(),
        ):
            tools.add(tool)
        pins = Pins(store.settings, store.audit, clock, config.mcp)
        servers, enclosure = config.mcp if role != "serve" else {}, server_enclosure(config.sandbox)
        mcp = McpServers(servers, home, tools, clock, enclosure, pins, notices.tell_owner)

        tokens = AccessTokens(store, clock, pairing, links, agents.names)
        presence = Presence(admissions, tokens, adapters, approvers)

        hooks = HookRunner({**extension_hooks(), **overrides.hooks})
        checkpoints = open_checkpoints(config.checkpoints, files, home, tainted_files)
        executor = Executor(
            tools,
            sandbox,
            store,
            outlets,
            home,
            clock,
            prompt_files,
            config,
            everyones_hub,
            hooks,
            presence.upholds,
            checkpoints.gap,
        )
        watch_secrets(config, executor.redactor.learn)

        # ---- the turn ----

        spending = Spending(store, models, clock, config.budget, outlets.post, agents.budget, links.people)
        context = ContextBuilder(
            home,
            store,
            executor,
            clock,
            config,
            await asyncio.to_thread(meter_as_set, config.context.tokenizer, config.model.name),
            profile_of=profiles.of_agent,
            spend_left=spending.left,
            tainted_files=prompt_files.sources,
        )
        titles = ThreadTitles(store.threads, spending, clock, config.threads)
        children = Children(store, backend.engine, agents, models, clock, config.subagents)
        for tool in children.tools():
            tools.add(tool)
        loop = TurnLoop(
            models,
            executor,
            context,
            Compactor(context, spending, clock),
            spending,
            clock,
            config.turns,
            confirm=backend.engine.confirm,
            stop_children=children.stop,
            push=folders.push,
            checkpoints=checkpoints,
            known_models=partial(model_names, models),
            tell_unknown_window=notices.of_window,
            outage_seconds=config.model.outage_seconds,
            trigger_outage_seconds=config.triggers.outage_seconds,
        )

        # ---- the threads' actors ----

        stopping = asyncio.Event()
        attachments = Attachments(home, web, config.context, clock, tainted_files)
        voice = _open_voice(config, clock, stack, spending, store, home, links.people, adapters, folders, outlets)
        timezones = TimeZones(store.settings, links.people, clock)
        snapshots = ConversationSnapshots(store, agents, clock, spending, everyones_hub.publish, prompt_files, folders)
        scopes = Scopes(links, agents, store.settings, timezones)

        async def end_departed() -> None:
            await departures.sweep()

        orchestrator = Orchestrator(
            ActorServices(
                store=store,
                hub=everyones_hub,
                clock=clock,
                agents=agents,
                children=children,
                context=context,
                loop=loop,
                titles=titles,
                senders=senders,
                attachments=attachments,
                backfill=Backfill(adapters, admissions.judge, clock, config.context),
                voice=voice,
                presence=presence,
                scopes=scopes,
                links=links,
                folders=folders,
                begun=begun,
                restored_at=restored_at,
                pause_seconds=config.mailbox.pause_seconds,
                turn_ended=hooks.turn_ended,
                end_departed=end_departed,
                project=ReadableFiles(home, store.journal).project,
                stopping=stopping.is_set,
            ),
            backend.engine,
            adapters,
            prompts_max=config.mailbox.prompts_max,
            idle_seconds=config.mailbox.idle_seconds,
            approvers=approvers,
            tell_disabled=partial(tell_switched_off, store.triggers, notices.of_trigger),
            snapshots=snapshots,
            tell_unposted=partial(notices.of_unposted, is_kept=False),
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
        departures = Departures(
            store, clock, presence, pairing, tokens, orchestrator.send, notices.tell_owner, [processes.end_left]
        )
        context.activities.append(processes)
        for tool in process_tools(processes, command_actions, executor.source_of):
            tools.add(tool)

        # ---- agents and commands ----

        def known_tools() -> list[str]:
            away = [name for name, server in app.config.mcp.items() if server.enabled and name not in mcp.up]
            return [*tools.names(), *map(any_tool_of, away)]

        may_manage = among(config.agents.managers, approvers)
        checks = Checks(partial(existing_model, models), profiles.check, known_tools)
        lifecycle = AgentLifecycle(home, store, agents, clock, checks, adapters, prompt_files, orchestrator.send)

        edit_checks = list[EditCheck]()
        editor = SelfEditor(store, home.agent, checks, profiles.hides, may_manage, prompt_files, edit_checks)
        for tool in (*self_edit_tools(editor), *overrides.tools):
            tools.add(tool)
        commands = CommandRouter(
            orchestrator,
            store,
            agents,
            snapshots,
            clock,
            links,
            AgentCommands(
                store,
                agents,
                lifecycle,
                editor,
                links,
                may_manage=may_manage,
                check_keys=partial(key_lines, models),
            ),
            add_trigger=outlets.add_trigger,
            check_model=checks.model,
            known_models=partial(model_names, models),
            activities=context.activities,
            voice=voice,
            timezones=timezones,
        )

        for command in (*extension_commands(), *overrides.commands):
            commands.add(command)

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
            standing=Standing(overrides.access, links, gated, approvers, accounts),
            admissions=admissions,
            pairing=pairing,
            tokens=tokens,
            inbox=inbox,
            commands=commands,
            artifacts=artifacts,
            folders=folders,
            tainted_files=tainted_files,
            prompt_files=prompt_files,
            hub=hub,
            senders=senders,
            due_triggers=due_triggers,
            outlets=outlets,
            notices=notices,
            triggers=TriggerService(
                store.triggers,
                orchestrator,
                clock,
                due_triggers,
                catch_up_seconds=config.triggers.catch_up_seconds,
                outage_seconds=config.triggers.outage_seconds,
                tell=notices.of_trigger,
                begun=begun,
                restored_at=restored_at,
            ),
            backups=backups,
            sandbox=sandbox,
            models=models,
            agents=agents,
            profiles=profiles,
            titles=titles,
            tools=tools,
            pins=pins,
            mcp=mcp,
            executor=executor,
            context=context,
            spending=spending,
            edit_checks=edit_checks,
            attachments=attachments,
            snapshots=snapshots,
            voice=voice,
            timezones=timezones,
            scopes=scopes,
            departures=departures,
            orchestrator=orchestrator,
            processes=processes,
            lifecycle=lifecycle,
            editor=editor,
            stopping=stopping,
        )
        for feature in features():
            await _add_feature(app, feature, stack)
        notices.notes += await lifecycle.reconcile()
        if restored_at is not None and role != "worker":
            await notices.of_restored(restored_at)
        _add_services(app)
        if hooks.runs_after_turns:
            backend.add_service(hooks.run)
        if overrides.on_complete is not None:
            backend.add_service(partial(tell_completions, hub, overrides.on_complete))
        async with _running(app):
            yield app


async def _add_feature(app: App, feature: Feature, stack: AsyncExitStack) -> None:
    """Open what a feature needs, make its services, and let the core reach its parts."""
    if feature.open:
        opened = cast("Callable[[App], AbstractAsyncContextManager[None]]", feature.load(feature.open))
        await stack.enter_async_context(opened(app))
    for entry in feature.services:
        app.features[cast("type[Service]", feature.load(entry))]
    if feature.attach:
        cast("Callable[[App], None]", feature.load(feature.attach))(app)
    if feature.tools:
        for tool in cast("Callable[[App], Iterable[Tool]]", feature.load(feature.tools))(app):
            app.tools.add(tool)
    if feature.chat_commands:
        for command in cast("Callable[[App], Iterable[ChatCommand]]", feature.load(feature.chat_commands))(app):
            app.commands.add(command)


def _add_services(app: App) -> None:
    """What runs besides the engine: in every process of its role, or in one of them at a time."""
    config, clock, store, backend = app.config, app.clock, app.store, app.backend
    upkeep = app.upkeep
    backend.add_service(upkeep("idle threads", app.orchestrator.deactivate_idle))
    backend.add_service(upkeep("attachments", app.attachments.run))
    backend.add_service(app.processes.run)
    backend.add_single("departures", upkeep("departures", app.departures.run))
    backend.add_service(partial(watch_health, backend.health, clock, app.notices.past_outbox))
    expires_seconds = config.permissions.ask_expires_seconds
    backend.add_service(partial(watch_approvals, app.orchestrator.expire_approvals, clock, expires_seconds))
    backend.add_single("database check", upkeep("database check", partial(look_through_daily, backend.health, clock)))
    backend.add_single("backups", upkeep("backups", app.backups.run))
    backend.add_single(
        "row retention", upkeep("row retention", partial(store.bookkeeping.run, bookkeeping_days(config)))
    )
    for server in app.mcp.connections:
        backend.begin(f"mcp {server.server.name}", server.run)
    backend.add_service(upkeep("messages that end Shoal", partial(watch_begun, app.triggers.begun, clock)))
    if app.role != "serve":
        backend.add_service(app.orchestrator.watch_retries)
    if app.role != "worker":
        backend.on_due(app.due)
        backend.add_service(upkeep("triggers", app.triggers.run))
        backend.add_service(upkeep("audit anchors", partial(anchor_audit, store.audit, clock)))
        backend.add_service(partial(watch_clock, clock, app.due_triggers.set))
        told = partial(watch_set_aside, store.settings, clock, app.notices.tell_owner, app.notices.note)
        backend.add_single("messages set aside", upkeep("messages set aside", told))
        heard = app.orchestrator, clock, app.due_triggers.set, app.prompt_files.source_of
        minutes = config.triggers.heartbeat_minutes
        backend.add_single(
            "files",
            upkeep(
                "event files and heartbeat",
                partial(watch_files, app.home, store, *heard, minutes, app.agents.zone_of, app.triggers.begun),
            ),
        )
        days = config.context.artifact_days, config.checkpoints.days
        checkpoints = app.orchestrator.undo.checkpoints
        retention = Retention(store, app.artifacts, app.folders, checkpoints, app.home, clock, *days)
        backend.add_single("retention", upkeep("retention", retention.run))
        idle = IdleWatch(store, app.agents, app.snapshots, clock, app.outlets.post)
        backend.add_single("idle agents", upkeep("idle agents", idle.run))
        backend.add_single(
            "bound channels", upkeep("bound channels", partial(app.notices.watch_channels, app.lifecycle))
        )
        for adapter in app.adapters.values():
            app.serve_platform(adapter)


@asynccontextmanager
async def _running(app: App) -> AsyncGenerator[None]:
    """Run the engine and all services while the block runs; then drain."""
    async with asyncio.TaskGroup() as tasks:
        lasting = (app.engine.run(app.orchestrator), *app.backend.services())
        engine, *services = [tasks.create_task(service) for service in lasting]
        await app.engine.started()
        if app.role != "worker":
            await note_settings(app.config, app.store, app.home, app.agents.names())
        await app.orchestrator.undo.resume()
        await app.snapshots.end_forks()
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


def approvers_of(config: Config) -> list[str]:
    """Who may answer any question: those of the configuration, and the owner everywhere."""
    return [*config.permissions.approvers, *OWNERS, *platform_owners(config)]


def _open_voice(
    config: Config,
    clock: Clock,
    stack: AsyncExitStack,
    spending: Spending,
    store: Store,
    home: Home,
    people: People,
    adapters: Mapping[str, ChatAdapter],
    folders: Folders,
    outlets: LiveToolServices,
) -> VoiceService:
    """What hears and what speaks, as [speech] names them. Raises ConfigError."""
    settings, choices = config.speech, store.settings
    hears, speaks = (build_speech(key, settings, config.providers, clock, os.environ) for key in SPEECH_KEYS)
    for one in (hears, speaks):
        if one is not None:
            stack.push_async_callback(one.close)
    post = outlets.post
    return VoiceService(hears, speaks, settings, spending, choices, home, clock, people, adapters, folders, post)


async def _open_sandbox(config: Config, overrides: Overrides, stack: AsyncExitStack) -> tuple[Sandbox, list[str]]:
    """The sandbox of [sandbox], tried out, with what the operator should know. Raises SandboxError, ConfigError."""
    sandbox, notes = overrides.sandbox, list[str]()
    if sandbox is None:
        chosen = await open_sandbox(config.sandbox, extension_sandbox)
        sandbox, notes = chosen.sandbox, [chosen.note] if chosen.note else []
    stack.push_async_callback(sandbox.close)
    return sandbox, notes
