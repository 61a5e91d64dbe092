"""The API while no server runs: the application over the home directory's database, opened for one call.

Nothing runs in it, neither turns nor platforms nor triggers: what a call changes takes effect at the next start.
"""

import os
import secrets
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from starlette.types import Message

from shoal.accounts import account_agents, links_of, platform_names
from shoal.agents.lifecycle import AgentLifecycle, Checks
from shoal.agents.registry import AgentDefaults, AgentRegistry, ChannelBindings
from shoal.agents.self_edit import SelfEditor
from shoal.agents.snapshots import ConversationSnapshots
from shoal.agents.toolbox import built_in_traits
from shoal.app import FeatureServices
from shoal.config import Config, default_model, open_catalog
from shoal.delivery.hub import Hub
from shoal.extensions import extension_sandbox, extension_tools
from shoal.kernel.agents import Process
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import Conflict, NotFound, ShoalError
from shoal.kernel.events import Event, Scope
from shoal.kernel.files import Files, Folders
from shoal.kernel.ids import ApprovalId, ThreadId
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.traits import NO_TOOLS, TraitsByName
from shoal.kernel.triggers import NewTrigger, Trigger, first_time
from shoal.models.catalog import Catalog, existing_model
from shoal.net.fetch import GuardedFetcher
from shoal.permissions.effects import STRICTEST, Situation
from shoal.permissions.profiles import Profiles
from shoal.permissions.redact import Redactor
from shoal.sandbox.choose import open_sandbox
from shoal.store.store import Store
from shoal.surfaces.cli.client import content_of
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.http.server import WebApp, WebOptions
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.pairing import Pairing
from shoal.threads.timezones import TimeZones
from shoal.tools.mcp.definitions import any_tool_of
from shoal.tools.mcp.pins import Pins
from shoal.tools.process_logs import LogPiece, log_of, read_log
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.storage import files_of, open_folders
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.tokens import Meter, meter_as_set

if TYPE_CHECKING:
    from shoal.app import App


class OfflineApp:
    """Stands in for `shoal.app.App` in the calls about what a home directory holds."""

    state = "stopped"
    recovers = True
    situation = STRICTEST

    def __init__(self, context: CommandContext, config: Config, store: Store) -> None:
        self._context = context
        self.config = config
        self.home = context.home
        self.clock = SystemClock(config.zone)
        self.store = store
        self.hub = Hub()
        self.adapters = cast(dict[str, ChatAdapter], dict.fromkeys(platform_names(config)))
        bindings = ChannelBindings(store.registry, self.clock, account_agents(config))
        self.agents = AgentRegistry(self.home, AgentDefaults.of(config, default_model(config)), bindings)
        self.pairing = Pairing(store, self.clock)
        links = links_of(config, self.adapters, {})
        self.tokens = AccessTokens(store, self.clock, self.pairing, links, self.agents.names)
        self.timezones = TimeZones(store.settings, links.people, self.clock)
        self.prompt_files = PromptFiles(MarkedFiles(store.settings, self.home), self.home)
        self.features = FeatureServices(cast("App", self))
        self.pins = Pins(store.settings, store.audit, self.clock, config.mcp)
        self.fetcher = GuardedFetcher()
        self.orchestrator = self.processes = self.outlets = self.context = self.executor = self
        self.backend = self.tools = self

    # What most calls do without is made when it is asked for.

    @cached_property
    def _files(self) -> Files:
        return files_of(self.config.files, self.home)

    @property
    def redactor(self) -> Redactor:
        return self._context.redactor()

    @property
    def artifacts(self) -> Files:
        return self._files.below("artifacts")

    @cached_property
    def folders(self) -> Folders:
        marks = self.prompt_files.marks
        return open_folders(self.config.files, self._files, self.store.settings, self.home, marks)

    @cached_property
    def models(self) -> Catalog:
        return open_catalog(self.config, os.environ, self.clock)

    @cached_property
    def lifecycle(self) -> AgentLifecycle:
        """Agents are made, changed and removed; no turn of theirs runs that would have to end first."""
        checks = agent_checks(self.config, self.models)
        return AgentLifecycle(
            self.home, self.store, self.agents, self.clock, checks, self.adapters, self.prompt_files, None
        )

    @cached_property
    def editor(self) -> SelfEditor:
        hides, checks = self.profiles.hides, self.lifecycle.checks
        return SelfEditor(self.store, self.home.agent, checks, hides, lambda by: by.trust == "owner", self.prompt_files)

    @cached_property
    def profiles(self) -> Profiles:
        return Profiles(self.traits, self.config.permissions.profiles, self.config.permissions.overrides)

    @cached_property
    def traits(self) -> TraitsByName:
        return known_traits(self.config)

    @cached_property
    def meter(self) -> Meter:
        return meter_as_set(self.config.context.tokenizer, self.config.model.name)

    @cached_property
    def snapshots(self) -> ConversationSnapshots:
        """Saved conversations, with a plain description instead of the model's."""
        return ConversationSnapshots(
            self.store, self.agents, self.clock, None, self.hub.publish, self.prompt_files, self.folders
        )

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Decide an approval; its turn continues at the next start."""
        verdict = "allow" if allow else "deny"
        return (await self.store.approvals.settle(approval, verdict, scope, by.user, by.trust)).approval.state

    async def go_to(self, thread: ThreadId, after: int, by: str) -> None:
        await self.store.branches.branch(thread, after, by)

    async def try_again(self, thread: ThreadId, asker: Asker, seq: int = 0, model: str = "") -> Event:
        raise Conflict("Shoal does not run, so nobody would answer. Start it with `shoal run`, then try again.")

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        return await self.store.triggers.add(trigger, first_time(trigger, self.clock.now()))

    def due(self, what: str) -> None:
        """Nothing runs that would have to look."""

    def names(self) -> tuple[str, ...]:
        return tool_names(self.config)

    async def get(self, process: str) -> Process:
        """A process. Raises NotFound."""
        found = await self.store.processes.get(process)
        if found is None:
            raise NotFound(f"There is no process {process[:80]}. `shoal processes list` shows them.")
        return found

    async def read(self, process: Process, *, offset: int, lines_max: int, contains: str) -> LogPiece:
        """A piece of a process's log, where this machine has it."""
        return read_log(log_of(self.home, process), offset=offset, lines_max=lines_max, contains=contains)

    async def kill(self, process: str, by: str) -> Process:
        """Have it ended on the machine that runs it. Raises NotFound when it does not run."""
        if not await self.store.processes.kill(process, by):
            raise NotFound(f"Process {process[:80]} does not run.")
        return await self.get(process)


def agent_checks(config: Config, catalog: Catalog) -> Checks:
    profiles = Profiles(NO_TOOLS, config.permissions.profiles, config.permissions.overrides)
    return Checks(partial(existing_model, catalog), profiles.check, partial(tool_names, config))


def tool_names(config: Config) -> tuple[str, ...]:
    """The names of all tools of a Shoal with this configuration, without starting one; patterns for MCP servers'."""
    known = known_traits(config).items()
    return (*(name for name, _ in known), *(any_tool_of(name) for name, one in config.mcp.items() if one.enabled))


def known_traits(config: Config) -> TraitsByName:
    """What all tools are of a Shoal with this configuration but those of MCP servers, without starting one."""
    traits = built_in_traits(hardware=config.tools.hardware)
    for tool in extension_tools():
        traits.add(tool.spec.name, tool.traits)
    return traits


async def situation_here(config: Config) -> Situation:
    """That of a clean turn of the owner on this machine, by a trial of the sandbox."""
    try:
        chosen = await open_sandbox(config.sandbox, extension_sandbox)
    except ShoalError:
        return Situation(trusted=True)
    await chosen.sandbox.close()
    isolated = chosen.sandbox.isolated
    sealed = isolated and config.sandbox.network == "off"
    return Situation(isolated=isolated, sealed=sealed, covered=config.checkpoints.days > 0, trusted=True)


async def call_offline(
    context: CommandContext, config: Config, store: Store, method: str, path: str, body: object
) -> tuple[int, bytes]:
    """Make one call as the owner, and return the status and content of its answer."""
    app, token = OfflineApp(context, config, store), secrets.token_urlsafe(32)
    path, _, query = path.partition("?")
    if path.startswith("/api/permissions/"):
        app.situation = await situation_here(config)
    content = content_of(body)
    headers = [("host", "localhost"), ("authorization", f"Bearer {token}"), ("content-length", str(len(content)))]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # of which on nobody asks for a disconnection
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "server": ("localhost", 80),
        "client": None,
        "root_path": "",
        "path": unquote(path),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    status, pieces = 0, list[bytes]()

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        pieces.append(message.get("body", b""))

    await WebApp(cast("App", app), WebOptions(token=token))(scope, receive, send)
    return status, b"".join(pieces)
