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

from shoal.actors.attachments import AttachmentLimits, Attachments
from shoal.actors.backfill import Backfill, BackfillLimits
from shoal.actors.door import Door, Pairing
from shoal.actors.orchestrator import Orchestrator
from shoal.actors.parts import Parts
from shoal.agents.idle import IdleWatch
from shoal.agents.registry import Agents
from shoal.agents.snapshots import Snapshots
from shoal.backend import Backend, Role, open_backend, run_service
from shoal.config import Config, default_model
from shoal.delivery.hub import Hub
from shoal.delivery.sender import Sender
from shoal.domain.agents import AgentSpec
from shoal.domain.clock import Clock, SystemClock
from shoal.domain.errors import InvalidInput
from shoal.domain.events import Event
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.ports import ChatAdapter, Completion, Models, Sandbox
from shoal.domain.records import NewPost, NewTrigger, Trigger
from shoal.domain.web import Fetcher
from shoal.factories import (
    access_of,
    agent_defaults,
    ceilings_of,
    extension_tools,
    make_adapters,
    make_catalog,
    make_profiles,
    make_sandbox,
    make_sender,
    platform_owners,
    secrets_of,
    turn_limits,
    window_of,
    with_ollama,
)
from shoal.permissions.access import AccessRules
from shoal.permissions.rules import Profiles
from shoal.store.projections import Projections
from shoal.store.script import Driver
from shoal.store.views import DatabaseStore
from shoal.tools.artifacts import ArtifactFiles, ArtifactRetention
from shoal.tools.builtin.shell import ShellBounds
from shoal.tools.executor import Executor, ExecutorSettings
from shoal.tools.fetch import GuardedFetcher
from shoal.tools.lookups import lookup_tools
from shoal.tools.output import OutputBounds
from shoal.tools.standard import standard_tools
from shoal.triggers.event_files import EventFiles
from shoal.triggers.schedule import first_time
from shoal.triggers.service import TriggerService
from shoal.turn.compactor import Compactor
from shoal.turn.context import ContextBuilder, Sources
from shoal.turn.files import FileCache
from shoal.turn.loop import TurnLoop
from shoal.turn.model_step import ModelStep
from shoal.turn.prompt import PromptBuilder, PromptLimits
from shoal.turn.session import Session
from shoal.turn.spending import Spending
from shoal.turn.tool_step import ToolStep
from shoal.upkeep import anchor_audit, tell_completions, watch_approvals, watch_files

log = logging.getLogger(__name__)

State = Literal["starting", "running", "draining", "stopped"]

OWN_PLATFORMS = {"web", "openai", "terminal"}
"""Platforms that only the owner can reach."""
OWNERS = ("web:owner", "openai:owner", "terminal:owner")
"""Whoever uses the page, the API or this machine's shell is the owner."""


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


NO_DOUBLES = Doubles()


class App:
    """The running system. Made by `open_app`."""

    def __init__(self, config: Config, home: Home, clock: Clock, backend: Backend, role: Role) -> None:
        self.config = config
        self.home = home
        self.clock = clock
        self.backend = backend
        self.role: Role = role
        self.store = DatabaseStore(backend.driver, clock)
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
        )
        self._artifacts = ArtifactFiles(home.artifacts)
        self.adapters: dict[str, ChatAdapter] = {}
        for tool in lookup_tools(self.store, self._artifacts, self.adapters, OWNERS):
            self.tools.add(tool)
        self.senders: dict[str, Sender] = {}
        self.doors: dict[str, Door] = {}
        self.pairing = Pairing(self.store, clock)
        self.agents: Agents
        self.models: Models
        self.profiles: Profiles
        self.sandbox: Sandbox
        self.executor: Executor
        self.prompts: PromptBuilder
        self.snapshots: Snapshots
        self.attachments: Attachments
        self.compactor: Compactor
        self.orchestrator: Orchestrator
        self.triggers: TriggerService
        self._projections = Projections(home)

    # ---- what tools may ask for (domain.ports.ToolServices) ----

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        await self.store.outbox.put(post)
        self.poke_sender(post.thread)

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn. Raises InvalidInput on a schedule that never comes."""
        added = await self.store.triggers.add(trigger, first_time(trigger, self.clock.now()))
        self.triggers.poke()
        return added

    async def tell(self, trigger: Trigger, text: str) -> None:
        """Say something about a trigger in the thread it belongs to."""
        if trigger.spec.thread is not None:
            await self.post(NewPost(f"trigger:{trigger.id}:{self.clock.new_id()}", trigger.spec.thread, text))

    # ---- what actors ask for ----

    def poke_sender(self, thread: ThreadId) -> None:
        """The outbox has something for a thread."""
        sender = self.senders.get(thread_address(thread).platform)
        if sender is not None:
            sender.poke()

    async def project(self, thread: ThreadId, events: list[Event]) -> None:
        """Write a finished turn into the thread's readable files; the journal stays the truth if that fails."""
        try:
            await asyncio.to_thread(self._projections.append, thread, events)
        except OSError as error:
            log.warning(
                "log.jsonl and context.jsonl could not be written; `shoal threads rebuild` makes them anew",
                extra={"thread_id": thread, "why": str(error)},
            )

    async def settle(self, session: Session) -> None:
        """Tidy a thread up that has nothing to do: summarise what has grown long."""
        try:
            route = self.models.route(session.who.model)
            await self.compactor.after_turn(session, route)
        except InvalidInput as error:
            log.warning("a conversation was not summarised", extra={"thread_id": session.thread, "why": str(error)})

    def stopping(self) -> bool:
        """Whether no further turn is to be opened."""
        return self.state in ("draining", "stopped")

    def others(self, thread: ThreadId, agent: AgentSpec) -> tuple[str, ...]:
        """What the agent's other threads do now, a line each."""
        return self.orchestrator.busy(agent.name, thread)

    # ---- life ----

    async def drain(self) -> None:
        """Stop intake, give running turns `engine.drain_seconds`, leave the rest to the next start."""
        self.state = "draining"
        await self.engine.drain(self.config.engine.drain_seconds)

    def services(self) -> Sequence[Coroutine[object, object, None]]:
        """The engine, which ends when drained, and everything that runs beside it for ever."""
        lasting = self.backend.lasting
        found = [self.engine.run(self.orchestrator), self.orchestrator.deactivate_idle()]
        found.append(run_service(lasting(partial(watch_approvals, self.orchestrator, self.clock))))
        if self.role != "worker":
            anchors = partial(anchor_audit, self.store.audit, self.clock)
            found += [run_service(lasting(self.triggers.run)), run_service(lasting(anchors))]
            files = EventFiles(self.home.events, self.store.triggers, self.orchestrator, self.clock, self.triggers.poke)
            minutes = self.config.triggers.heartbeat_minutes
            self.backend.alone("files", partial(watch_files, self.home, self.orchestrator, self.clock, files, minutes))
            kept = ArtifactRetention(
                self.store.artifacts, self._artifacts, self.clock, self.config.context.artifact_days
            )
            self.backend.alone("artifact retention", kept.run)
            default = self.config.agents.default_agent
            idle = IdleWatch(self.store, self.agents, self.snapshots, self.clock, self.post, default)
            self.backend.alone("idle agents", idle.run)
            for platform in self.adapters:
                self.backend.alone(f"platform {platform}", partial(self._serve_platform, platform))
        if self.on_complete is not None:
            found.append(tell_completions(self.hub, self.on_complete))
        return [*found, *self.backend.services()]

    async def _serve_platform(self, platform: str) -> None:
        """Receive from and deliver to one platform, in one process at a time."""
        async with anyio.create_task_group() as tasks:
            receive = partial(self.adapters[platform].run, self.doors.get(platform, self.orchestrator))
            for serve in (self.senders[platform].run, receive):
                tasks.start_soon(run_service, self.backend.lasting(serve))

    def due(self, what: str) -> None:
        """Another process made something due: a post for the platform of that name, `triggers`, or who knows what."""
        for platform, sender in self.senders.items():
            if what in (platform, ""):
                sender.poke()
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
        app = App(config, home, clock, backend, role)
        app.on_complete = doubles.on_complete
        await _wire(app, doubles, stack)
        async with _unwrapped(), _running(app):
            yield app


@asynccontextmanager
async def _running(app: App) -> AsyncGenerator[None]:
    """Run the engine and all services while the block runs; then drain."""
    async with asyncio.TaskGroup() as tasks:
        engine, *services = [tasks.create_task(service) for service in app.services()]
        if app.backend.recovers:
            await app.orchestrator.recover()
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


@asynccontextmanager
async def _unwrapped() -> AsyncGenerator[None]:
    """What failed in the block, by itself, as long as it was one thing."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group
        raise


async def _wire(app: App, doubles: Doubles, stack: AsyncExitStack) -> None:
    config, home, clock, store = app.config, app.home, app.clock, app.store
    model = default_model(config)
    app.profiles = make_profiles(config)
    app.agents = Agents(home, agent_defaults(config, model))
    if doubles.models is None:
        app.models = catalog = make_catalog(config, home, clock)
        stack.push_async_callback(catalog.close)
    else:
        app.models = doubles.models
    app.sandbox = doubles.sandbox or await _sandbox(app)
    stack.push_async_callback(app.sandbox.close)
    settings = ExecutorSettings(
        ask_expires_seconds=config.permissions.ask_expires_seconds,
        ask_commands=not app.sandbox.isolated and config.sandbox.kind == "auto",
        bounds=OutputBounds(config.context.artifact_chars_min, config.context.artifact_excerpt_chars),
    )
    for tool in extension_tools():
        app.tools.add(tool)
    app.executor = Executor(app.tools, app.sandbox, store.approvals, app, home, clock, settings)
    app.executor.redactor.learn(secrets_of(config))
    limits = turn_limits(config)
    app.prompts = PromptBuilder(home, FileCache(), PromptLimits(notes_days=config.context.daily_notes_days), clock)
    spending = Spending(store.budget, app.models, clock, ceilings_of(config), app.post)
    sources = Sources(
        profiles=lambda agent, asker: app.profiles.effective(agent.profile, asker, agent.name),
        others=app.others,
        spend_left=spending.left,
    )
    context = ContextBuilder(home, app.executor, app.prompts, clock, window_of(config), sources)
    app.compactor = Compactor(context)
    loop = TurnLoop(
        ModelStep(app.models, context, app.compactor, spending, clock, limits),
        ToolStep(app.executor, context, clock, limits),
        limits,
    )
    shown = app.backend.hub(app.hub, store.journal, clock.new_id())
    if app.role != "worker":
        app.backend.on_due(app.due)
    app.snapshots = Snapshots(store, app.agents, clock, app.models, shown.publish)
    files = AttachmentLimits(config.context.attachment_bytes_max, config.context.attachment_image_bytes_max)
    app.attachments = Attachments(home, app.web, files)
    missed = BackfillLimits(config.context.backfill_messages_max, config.context.backfill_hours)
    parts = Parts(
        store,
        shown,
        clock,
        app.agents,
        context,
        loop,
        limits,
        app,
        app.poke_sender,
        app.stopping,
        app.settle,
        Backfill(app.adapters, clock, missed).before,
        app.attachments.take,
    )
    _connect(app, parts, doubles)


def _connect(app: App, parts: Parts, doubles: Doubles) -> None:
    """Put the platforms, the front door and the triggers before the machinery."""
    config, home, clock, store = app.config, app.home, app.clock, app.store
    for adapter in (*make_adapters(config, home, store.settings, clock), *doubles.adapters):
        app.adapters[adapter.platform] = adapter
        app.senders[adapter.platform] = make_sender(adapter, store, app.hub, clock)
    app.orchestrator = Orchestrator(
        parts,
        app.engine,
        app.adapters,
        prompts_max=config.mailbox.prompts_max,
        idle_seconds=config.mailbox.idle_seconds,
        approvers=(*config.permissions.approvers, *OWNERS, *platform_owners(config)),
    )
    for platform in app.adapters.keys() - OWN_PLATFORMS:
        rules = doubles.access.get(platform) or access_of(config, platform)
        app.doors[platform] = Door(app.orchestrator, rules, app.pairing, store, clock, app)
    app.triggers = TriggerService(
        store.triggers, app.orchestrator, clock, catch_up_seconds=config.triggers.catch_up_seconds, tell=app.tell
    )


def _make_directories(home: Home) -> None:
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.data.mkdir(exist_ok=True)


async def _sandbox(app: App) -> Sandbox:
    chosen = await make_sandbox(app.config)
    if chosen.note:
        app.notes.append(chosen.note)
    return chosen.sandbox
