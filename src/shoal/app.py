"""The wiring, read first: builds the running system from a configuration. The only module that names concrete classes.

config ─► home, lock, store ─► hub, engine ─► tools, permissions, sandbox ─► executor
                            └─► providers ─► turn loop ─► actors/orchestrator ─► senders, adapters, triggers
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Literal

import anyio
import msgspec

from shoal.accounts import OWNERS, account_agents, links_of, make_adapters, people_of, platform_owners
from shoal.actors.access_gate import AccessGate, Links, OpenInbox, Pairing, asked_for, judged
from shoal.actors.access_tokens import AccessTokens
from shoal.actors.actor import ActorServices
from shoal.actors.commands import CommandRouter
from shoal.actors.orchestrator import Orchestrator
from shoal.actors.prompt_inputs import Attachments, Backfill
from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry, ChannelBindings, RuntimeInfo
from shoal.agents.snapshots import ConversationSnapshots, IdleWatch
from shoal.backend import Backend, Role, open_backend, run_service, unwrapped
from shoal.config import Config, default_model
from shoal.config.secrets import watch_secrets
from shoal.delivery.hub import Hub
from shoal.delivery.sender import Senders
from shoal.domain.clock import Clock, SystemClock
from shoal.domain.files import Files, Folders
from shoal.domain.home import Home
from shoal.domain.ids import OWN_PLATFORMS
from shoal.domain.ports import ChatAdapter, Completion, Models, Sandbox
from shoal.domain.records import NewPost
from shoal.domain.triggers import NewTrigger, Trigger, first_time
from shoal.domain.web import Fetcher
from shoal.factories import (
    agent_defaults,
    executor_settings,
    extension_tools,
    make_backups,
    make_catalog,
    make_children,
    make_files,
    make_folders,
    make_profiles,
    make_row_retention,
    make_sandbox,
    make_sender,
    meter_of,
    turn_limits,
    with_ollama,
)
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
from shoal.office import (
    doings,
    info_of,
    open_office,
    tell_of_damage,
    tell_of_trigger,
    tell_owner_directly,
    watch_channels,
)
from shoal.permissions.access import AccessRules, Audiences
from shoal.permissions.profiles import Profiles
from shoal.providers.catalog import model_names
from shoal.sandbox.processes import kill_orphans
from shoal.servers import make_mcp, make_pins, settled
from shoal.store.driver import Driver
from shoal.store.projections import Projections
from shoal.store.store import Store
from shoal.tools.builtin.shell import ShellBounds
from shoal.tools.executor import Executor
from shoal.tools.fetch import GuardedFetcher
from shoal.tools.processes import ProcessService
from shoal.tools.registry import lookup_tools, standard_tools
from shoal.tools.retention import Retention
from shoal.tools.tainted_files import SYSTEM_FILE_CLOCK, FileClock, MarkedFiles, PromptFiles
from shoal.triggers.files import EventFiles
from shoal.triggers.service import TriggerService, tell_switched_off
from shoal.turn.compaction import Compactor
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop
from shoal.turn.prompt import PromptBuilder, PromptLimits
from shoal.turn.spending import Spending
from shoal.turn.text_files import FileCache

log = logging.getLogger(__name__)

State = Literal["starting", "running", "draining", "stopped"]


class Doubles(msgspec.Struct, frozen=True):
    """What a test or an embedding program puts in place of the real parts, or beside them.

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


NO_DOUBLES = Doubles()


class App:
    """The running system. Made by `open_app`."""

    def __init__(
        self, config: Config, home: Home, clock: Clock, backend: Backend, role: Role, file_clock: FileClock
    ) -> None:
        self.config = config
        self.home = home
        self.clock = clock
        self.backend = backend
        self.role: Role = role
        self.store = Store(backend.driver, clock)
        self.health = backend.health
        self.engine = backend.engine
        self.state: State = "starting"
        self.notes: list[str] = []
        self.on_complete: Completion | None = None
        self.hub = Hub()
        self.web: Fetcher = GuardedFetcher()
        self.tools = standard_tools(
            ShellBounds(
                timeout_seconds=config.sandbox.timeout_seconds, output_bytes_max=config.sandbox.output_bytes_max
            ),
            self.web,
            config.tools.brave_api_key.reveal,
            with_hardware=config.tools.hardware,
        )
        self.adapters: dict[str, ChatAdapter] = {}
        self.audiences: Audiences
        self.artifacts: Files
        self.folders: Folders
        self.pins = make_pins(config, home, self.store, clock)
        tell = partial(tell_owner_directly, self)
        self.backups = make_backups(config, home, self.store.settings, clock, tell)
        self.mcp = make_mcp(config, home, self.tools, clock, self.pins, tell) if role != "serve" else []
        self.senders: Senders
        self.inbox: OpenInbox
        self.commands: CommandRouter
        self.doors: dict[str, AccessGate] = {}
        self.pairing = Pairing(self.store, clock)
        self.tokens: AccessTokens
        self.agents: AgentRegistry
        self.roster: AgentLifecycle
        self.models: Models
        self.profiles: Profiles
        self.sandbox: Sandbox
        self.executor: Executor
        self.prompts: PromptBuilder
        self.marked = MarkedFiles(self.store.settings, home, file_clock)
        self.prompt_files = PromptFiles(self.marked, home)
        self.snapshots: ConversationSnapshots
        self.attachments: Attachments
        self.compactor: Compactor
        self.orchestrator: Orchestrator
        self.triggers: TriggerService
        self.processes: ProcessService

    # ---- what tools may ask for (domain.ports.ToolServices) ----

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        await self.store.outbox.put(post)
        self.senders.poke(post.thread)

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn. Raises InvalidInput on a schedule that never comes."""
        added = await self.store.triggers.add(trigger, first_time(trigger, self.clock.now()))
        self.triggers.poke()
        return added

    async def tell(self, trigger: Trigger, text: str) -> None:
        """Say something about a trigger in the thread it belongs to, or to the owner."""
        await tell_of_trigger(self, trigger, text)

    def info(self) -> RuntimeInfo:
        """What is up now."""
        return info_of(self)

    def stopping(self) -> bool:
        """Whether no further turn is to be opened."""
        return self.state in ("draining", "stopped")

    # ---- life ----

    async def drain(self) -> None:
        """Stop intake, give running turns `engine.drain_seconds`, leave the rest to the next start."""
        self.state = "draining"
        await self.engine.drain(self.config.engine.drain_seconds)

    def services(self) -> Sequence[Coroutine[object, object, None]]:
        """The engine, which ends when drained, and everything that runs beside it for ever."""
        lasting = self.backend.lasting
        found = [self.engine.run(self.orchestrator), self.orchestrator.deactivate_idle(), self.attachments.run()]
        seconds = self.config.permissions.ask_expires_seconds
        found.append(watch_health(self.health, self.clock, partial(tell_of_damage, self)))
        self.backend.alone("database check", partial(look_through_daily, self.health, self.clock))
        found.append(run_service(lasting(partial(watch_approvals, self.orchestrator, self.clock, seconds))))
        self.backend.alone("backups", self.backups.run)
        self.backend.alone("row retention", make_row_retention(self.config, self.store, self.clock).run)
        if self.role != "serve":
            found.append(run_service(lasting(partial(watch_retries, self.orchestrator.retry_due, self.clock))))
        if self.role != "worker":
            anchors = partial(anchor_audit, self.store.audit, self.clock)
            found += [run_service(lasting(self.triggers.run)), run_service(lasting(anchors))]
            files = EventFiles(
                self.home.events,
                self.store.triggers,
                self.orchestrator,
                self.clock,
                self.triggers.poke,
                self.prompt_files.source_of,
            )
            minutes = self.config.triggers.heartbeat_minutes
            self.backend.alone(
                "files",
                partial(
                    watch_files, self.home, self.orchestrator, self.clock, files, minutes, self.prompt_files.source_of
                ),
            )
            days = self.config.context.artifact_days
            kept = Retention(self.store, self.artifacts, self.folders, self.home, self.clock, days)
            self.backend.alone("retention", kept.run)
            default = self.config.agents.default_agent
            idle = IdleWatch(self.store, self.agents, self.snapshots, self.clock, self.post, default)
            self.backend.alone("idle agents", idle.run)
            self.backend.alone("bound channels", partial(watch_channels, self))
            for platform in self.adapters:
                self.backend.alone(f"platform {platform}", partial(self._serve_platform, platform))
        if self.on_complete is not None:
            found.append(tell_completions(self.hub, self.on_complete))
        return [*found, *(server.run() for server in self.mcp), *self.backend.services()]

    async def _serve_platform(self, platform: str) -> None:
        """Receive from and deliver to one platform, in one process at a time."""
        async with anyio.create_task_group() as tasks:
            receive = partial(self.adapters[platform].run, self.doors.get(platform, self.inbox))
            for serve in (partial(self.senders.run, platform, self.orchestrator), receive):
                tasks.start_soon(run_service, self.backend.lasting(serve))

    def due(self, what: str) -> None:
        """Another process made something due: a post for the platform of that name, `triggers`, or who knows what."""
        self.senders.poke_platform(what)
        if what in ("triggers", ""):
            self.triggers.poke()


@asynccontextmanager
async def open_app(config: Config, doubles: Doubles = NO_DOUBLES, role: Role = "all") -> AsyncGenerator[App]:
    """Open the home directory and run everything until the block ends; then drain.

    Raises HomeLocked, ConfigError and StoreError with what to do about each.
    """
    if doubles.models is None:
        config = await with_ollama(config, os.environ)
    home = Home(config.home)
    clock = doubles.clock or SystemClock()
    async with AsyncExitStack() as stack:
        _make_directories(home)
        backend = await stack.enter_async_context(open_backend(config, home, role, doubles.wrap_driver))
        app = App(config, home, clock, backend, role, doubles.file_clock)
        app.on_complete = doubles.on_complete
        await _wire(app, doubles, stack)
        app.notes += await app.roster.reconcile()
        async with unwrapped(), _running(app):
            yield app


@asynccontextmanager
async def _running(app: App) -> AsyncGenerator[None]:
    """Run the engine and all services while the block runs; then drain."""
    async with asyncio.TaskGroup() as tasks:
        engine, *services = [tasks.create_task(service) for service in app.services()]
        await app.engine.started()
        if app.role != "worker":
            await note_settings(app.config, app.store, app.home, app.agents.names())
        if app.backend.recovers:
            await app.orchestrator.recover()
        await settled(app.mcp)
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


async def _wire(app: App, doubles: Doubles, stack: AsyncExitStack) -> None:
    config, home, clock, store = app.config, app.home, app.clock, app.store
    async with unwrapped(), anyio.create_task_group() as beside:
        beside.start_soon(_open_sandbox, app, doubles, stack)  # its trial runs while this process does the rest
        await asyncio.to_thread(kill_orphans)
        model = default_model(config)
        for adapter in (*make_adapters(config, home, store.settings, clock), *doubles.adapters):
            app.adapters[adapter.platform] = adapter
        app.profiles = make_profiles(config)
        app.agents = AgentRegistry(
            home, agent_defaults(config, model), ChannelBindings(store.registry, clock, account_agents(config))
        )
        if doubles.models is None:
            app.models = catalog = make_catalog(config, home, clock)
            stack.push_async_callback(catalog.close)
        else:
            app.models = doubles.models
    links = links_of(config, app.adapters, doubles.access)
    app.audiences = Audiences(links.rules, links.people)
    settings = executor_settings(config, isolated=app.sandbox.isolated)
    files = await make_files(config, home)
    app.artifacts = files.below("artifacts")
    app.folders = make_folders(config, home, files, store.settings)
    judge = partial(judged, app.doors)
    for tool in (*lookup_tools(store, app.artifacts, app.adapters, judge), *extension_tools()):
        app.tools.add(tool)
    app.executor = Executor(app.tools, app.sandbox, store, app, home, clock, app.marked, settings)
    watch_secrets(config, app.executor.redactor.learn)
    limits = turn_limits(config)
    app.prompts = PromptBuilder(home, FileCache(), PromptLimits(notes_days=config.context.daily_notes_days), clock)
    spending = Spending(store.budget, store.ledger, app.models, clock, config.budget, app.post, app.agents.budget)
    context = ContextBuilder(
        home,
        app.executor,
        app.prompts,
        clock,
        config.context,
        config.model.context_tokens_max,
        await meter_of(config),
        profile_of=lambda agent, asker: app.profiles.effective(agent.profile, asker, agent.name),
        activity=partial(doings, store.registry, clock),
        spend_left=spending.left,
        tainted_files=app.prompt_files.sources,
    )
    app.compactor = Compactor(context, spending, clock)
    children, tools = make_children(config, app.store, app.engine, app.agents, app.models, app.clock)
    for tool in tools:
        app.tools.add(tool)
    loop = TurnLoop(
        app.models,
        app.executor,
        context,
        app.compactor,
        spending,
        clock,
        limits,
        confirm=app.engine.confirm,
        stop_children=children.stop,
        push=app.folders.push,
        known_models=partial(model_names, app.models),
    )
    shown = app.backend.hub(app.hub, store.journal, clock.new_id())
    if app.role != "worker":
        app.backend.on_due(app.due)
    app.snapshots = ConversationSnapshots(store, app.agents, clock, spending, shown.publish, app.prompt_files)
    app.attachments = Attachments(home, app.web, config.context, clock, app.marked)
    app.senders = Senders(
        {name: make_sender(adapter, store, app.hub, clock, app.folders) for name, adapter in app.adapters.items()}
    )
    services = ActorServices(
        store=store,
        hub=shown,
        clock=clock,
        agents=app.agents,
        children=children,
        context=context,
        loop=loop,
        compactor=app.compactor,
        senders=app.senders,
        attachments=app.attachments,
        backfill=Backfill(app.adapters, judge, clock, config.context),
        audiences=app.audiences,
        people=people_of(config, doubles.access),
        folders=app.folders,
        timeout_seconds=limits.timeout_seconds,
        project=ReadableFiles(Projections(home), store.journal).project,
        stopping=app.stopping,
    )
    _connect(app, services, links)


def _connect(app: App, services: ActorServices, links: Links) -> None:
    """Put the platforms, the front door and the triggers before the machinery."""
    config, clock, store = app.config, app.clock, app.store
    approvers = (*config.permissions.approvers, *OWNERS, *platform_owners(config))
    app.orchestrator = Orchestrator(
        services,
        app.engine,
        app.adapters,
        prompts_max=config.mailbox.prompts_max,
        idle_seconds=config.mailbox.idle_seconds,
        approvers=approvers,
        tell_disabled=partial(tell_switched_off, store.triggers, app.tell),
    )
    open_office(app, approvers)
    app.inbox = OpenInbox(app.orchestrator, app.commands)
    app.tokens = AccessTokens(store, clock, app.pairing, links, app.agents.names)
    for platform in app.adapters.keys() - OWN_PLATFORMS:
        app.doors[platform] = AccessGate(app.inbox, links.rules[platform], app.pairing, store, clock, app.post, links)
    app.triggers = TriggerService(
        store.triggers,
        app.orchestrator,
        clock,
        catch_up_seconds=config.triggers.catch_up_seconds,
        tell=app.tell,
        judge=partial(asked_for, app.doors),
    )


def _make_directories(home: Home) -> None:
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.data.mkdir(exist_ok=True)


async def _open_sandbox(app: App, doubles: Doubles, stack: AsyncExitStack) -> None:
    if doubles.sandbox is not None:
        app.sandbox = doubles.sandbox
    else:
        chosen = await make_sandbox(app.config)
        app.sandbox = chosen.sandbox
        if chosen.note:
            app.notes.append(chosen.note)
    stack.push_async_callback(app.sandbox.close)
