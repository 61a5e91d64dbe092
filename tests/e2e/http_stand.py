"""A small running system behind the HTTP API, with a real store, hub and agent files. Tests write the turns."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx2

from shoal.agents.lifecycle import AgentLifecycle, Checks
from shoal.agents.registry import AgentDefaults, AgentRegistry, ChannelBindings, RuntimeInfo
from shoal.agents.versions import AgentVersions
from shoal.backend import Backend
from shoal.config import Config
from shoal.connections import Connections
from shoal.delivery.hub import Hub
from shoal.engine.local import LocalEngine
from shoal.features.backups.service import Backups
from shoal.features.backups.settings import BackupSettings
from shoal.features.backups.storage import DirectoryStorage
from shoal.features.mcp.pins import Pins
from shoal.features.mcp.servers import McpServers
from shoal.features.mcp.settings import McpServerSettings
from shoal.features.openai_api.routes import Conversations
from shoal.features.processes.service import ProcessService, ProcessSettings, ProcessTable
from shoal.features.processes.store import ProcessStore
from shoal.features.snapshots.service import ConversationSnapshots
from shoal.features.triggers.attach import plans
from shoal.features.triggers.commands import REMIND
from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.service import TriggerService, TriggerTarget
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.commands import CommandRequest, CommandTable
from shoal.kernel.errors import InvalidInput
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    EventData,
    Outcome,
    Scope,
    TextStreamed,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.files import STILL_FOLDERS, Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CardId, ThreadId, TurnId, make_thread_id, thread_address
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.messages import Author, Inbound, Prompt, Receipt, Usage
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import ChatAdapter, Models, SignalKind
from shoal.kernel.records import Commit, NewPost, Opening
from shoal.kernel.settings import WebSettings
from shoal.models.catalog import Catalog
from shoal.net.connections import default_tls
from shoal.notices import Notices
from shoal.permissions.access import AccessRules, Links, People, Person
from shoal.permissions.profiles import Profiles
from shoal.permissions.redact import Redactor
from shoal.running import Runtime, Status
from shoal.sandbox import processes as host
from shoal.services import Services
from shoal.store.approvals import card_verdicts, verdicts_text
from shoal.store.files import LocalFiles
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.surfaces.http.table import api
from shoal.testing.database import empty_database
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.attachments import Attachments
from shoal.threads.commands import AgentCommands, CommandRouter
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import Orchestrator
from shoal.threads.pairing import Pairing
from shoal.threads.timezones import TimeZones
from shoal.tools.builtin.overview import Agenda
from shoal.tools.executor import LiveToolServices
from shoal.tools.prompt_files import PromptFiles
from shoal.tools.registry import Registry
from shoal.tools.tainted_files import MarkedFiles
from shoal.turn.compaction import ThreadTitles

PEOPLE = People([Person(("telegram:4711", "web:ada"), ("ops",), "ada")])
RULES = {
    "web": AccessRules(("owner",), ("trudy",)),
    "openai": AccessRules(("owner",)),
    "telegram": AccessRules(("1",), ("4711", "*")),
}
TOKEN = "a-token-that-is-long-enough-to-be-unguessable"
USAGE = Usage(input_tokens=12, output_tokens=3, cached_tokens=4)


class FakeOrchestrator:
    """A substitute for the orchestrator. It calls `on_prompt` for each accepted prompt."""

    def __init__(self, stand: "Stand") -> None:
        self._stand = stand
        self.received: list[Inbound] = []
        self.arrived = asyncio.Event()
        self.on_prompt: Callable[[Prompt], object] | None = None
        self.prompts_max = 5

    async def send(self, message: Inbound) -> Receipt:
        store = self._stand.store
        self.received.append(message)
        if not isinstance(message, Prompt):
            return Receipt("delivered") if self._stand.open_turns else Receipt("dropped")
        receipt = await store.inbox.accept(message, self.prompts_max)
        if receipt.status == "accepted":
            if self.on_prompt is not None:
                self._stand.start(self.on_prompt(message))
            self.arrived.set()
        return receipt

    async def send_to_channel(
        self, platform: str, channel: str, text: str, author: Author, agent: str = ""
    ) -> ThreadId:
        """Open a thread. Only the platform `web` is connected."""
        if platform != "web":
            raise InvalidInput(f"Platform {platform!r} is not connected.")
        clock = self._stand.clock
        thread, key = make_thread_id(platform, channel, clock.new_id()), clock.new_id()
        await self.send(Prompt(thread, key, text, author, clock.now(), agent=agent))
        return thread

    async def open(self, opening: Opening) -> bool:
        prompt = opening.prompt
        where = thread_address(prompt.thread)
        await self.send_to_channel(where.platform, where.channel, prompt.text, prompt.author, prompt.agent)
        return True

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        store = self._stand.store
        verdict = "allow" if allow else "deny"
        settlement = await store.approvals.record_decision(approval, verdict, scope, by.user, by.trust, token=by.token)
        self._stand.hub.publish([settlement.event])
        return settlement.approval.state

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        store = self._stand.store
        calls = await store.approvals.on_card(card)
        verdicts = card_verdicts(calls, allow, numbers)
        settlements = await store.approvals.record_decisions(verdicts, scope, by.user, by.trust, token=by.token)
        self._stand.hub.publish([settlement.event for settlement in settlements])
        return verdicts_text(calls, verdicts)

    async def clear(self, thread: ThreadId, by: str) -> None:
        self._stand.hub.publish(await self._stand.store.journal.append(thread, [Cleared(by=by)]))


class Commands:
    """The owner's commands /agent and /settings."""

    def __init__(self, stand: "Stand") -> None:
        self.table = CommandTable()
        self.table.add(REMIND)
        versions = AgentVersions(stand.store, stand.home.agent, stand.prompt_files)
        self._agents = AgentCommands(
            stand.store, stand.agents, stand.lifecycle, versions, LINKS, may_manage=is_owner, check_keys=no_keys
        )

    async def command(self, asked: CommandRequest) -> str:
        return await (self._agents.agent if asked.name == "agent" else self._agents.settings)(asked)


class Idle:
    """A `ThreadHandler` that does nothing, because the tests write the turns."""

    async def advance(self, thread: ThreadId) -> None: ...

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None: ...


LINKS = Links(rules={"web": AccessRules(("owner",))})


def is_owner(asker: Asker) -> bool:
    return (asker.platform, asker.user) == ("web", "owner")


def accept(name: str) -> None: ...


async def no_keys() -> Sequence[str]:
    return ()


class SettableClock(SystemClock):
    """The system clock plus an offset that tests can set."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


class DueTriggers(TriggerService):
    """A trigger service that stores each trigger as due immediately."""

    async def add(self, spec: NewTrigger) -> Trigger:
        if spec.schedule == "never":
            raise InvalidInput("The schedule 'never' never comes.")
        return await self.triggers.add(spec, self.clock.now())


class Stand:
    """The services behind the HTTP API. Those that run turns are fakes."""

    def __init__(self, root: Path, tasks: asyncio.TaskGroup, web: WebSettings | None = None) -> None:
        root.mkdir(exist_ok=True)
        self.home = Home(root)
        self.clock = SettableClock()
        driver = SqliteDriver(empty_database(self.home.database_file), synchronous="OFF")
        self.store = Store(driver, self.clock)
        self.hub = Hub()
        self.told: list[str] = []
        self.backups = Backups(
            self.home, DirectoryStorage(root / "kept"), self.clock, self.store.settings, self._tell,
            BackupSettings(every_hours=24, keep=2), str,
        )  # fmt: skip
        self.adapters: dict[str, ChatAdapter] = {}
        self.agents = AgentRegistry(self.home, AgentDefaults(), ChannelBindings(self.store.registry, self.clock, {}))
        checks = Checks(accept, accept, lambda: ("bash", "read"))
        self.tainted_files = MarkedFiles(self.store.settings, self.home)
        self.prompt_files = PromptFiles(self.tainted_files, self.home)
        self.orchestrator = FakeOrchestrator(self)
        self.lifecycle = AgentLifecycle(
            self.home,
            self.store,
            self.agents,
            self.clock,
            checks,
            self.adapters,
            self.prompt_files,
            self.orchestrator.send,
        )
        self.commands = Commands(self)
        self.models = Catalog({}, home=self.home, clock=self.clock, environ={})
        self.folders = STILL_FOLDERS
        self.snapshots = ConversationSnapshots(
            self.store, self.agents, self.clock, None, self.hub.publish, self.prompt_files
        )
        self.forks = Forks(self.store, self.hub.publish, self.prompt_files, self.folders)
        self.pairing = Pairing(self.store, self.clock)
        links = Links(PEOPLE, RULES)
        self.timezones = TimeZones(self.store.settings, PEOPLE, self.clock)
        self.tokens = AccessTokens(self.store, self.clock, self.pairing, links, self.agents.names)
        self.config = Config(home=root, web=web or WebSettings())
        self.mcp = McpServers({}, self.home, Registry(), self.clock, None)
        self.pins = Pins(self.store.settings, self.store.audit, self.clock, {"odd": McpServerSettings(command="x")})
        settings, send = ProcessSettings("here 1 2 3"), self.orchestrator.send
        table = ProcessTable(host.identity_of, host.is_alive, host.kill_leftovers)
        self.processes = ProcessService(
            ProcessStore(driver, self.clock), self.home, self.clock, send, str, table, settings
        )
        self.engine = LocalEngine()
        self.backend = Backend(driver, driver.health, self.engine)
        self.runtime = Runtime(self.engine, 0, "running")
        artifacts = LocalFiles(self.home.artifacts)
        self.outlets = LiveToolServices(artifacts, self._post)
        self.triggers = DueTriggers(
            TriggerStore(driver, self.clock), cast(TriggerTarget, self.orchestrator), self.clock
        )
        self.open_turns: set[TurnId] = set()
        self._tasks = tasks

    async def _tell(self, text: str) -> None:
        self.told.append(text)

    def info(self) -> RuntimeInfo:
        names = tuple(self.agents.names())
        return RuntimeInfo(
            names, ("bash", "read"), (), "demo", (), 0, ("web",), "none", isolated=False, notes=("a note",)
        )

    def start(self, work: object) -> None:
        if asyncio.iscoroutine(work):
            self._tasks.create_task(work)

    async def _post(self, post: NewPost) -> None: ...

    @cached_property
    def services(self) -> Services:
        """The services for the web server. Services that the stand does not have are empty objects."""
        services = Services(
            LiveConfig(self.config), self.home, self.store, self.hub, self.backend, self.runtime, self.backups,
            self.agents, self.lifecycle, self.tainted_files, self.prompt_files, self.snapshots, self.forks,
            self.pairing, self.timezones, self.tokens, self.mcp, self.pins, self.processes, Redactor(),
        )  # fmt: skip
        services.add(self.clock, Clock)
        services.add(self.models, Models)
        services.add(self.folders, Folders)
        services.add(self.outlets)
        services.add(self.triggers, TriggerService)
        services.add(Agenda([partial(plans, self.triggers.triggers)]))
        services.add(self.orchestrator, Orchestrator)
        services.add(self.commands, CommandRouter)
        services.add(self, Status)
        services.add(SimpleNamespace(adapters=self.adapters, configured=self.adapters), Connections)
        services.add(SimpleNamespace(transcribe=None), Attachments)
        taken = {kind for endpoint in api() for kind in endpoint.services.values()} | {ThreadTitles, Notices, Profiles}
        for kind in taken:
            if kind.__module__.startswith(("shoal.surfaces.", "shoal.setup.")) or kind is Conversations:
                continue  # the web server adds this service itself
            try:
                services[kind]
            except (LookupError, AttributeError):  # it depends on a service that a fake lacks
                services.add(SimpleNamespace(), kind)
        return services

    async def open(self, prompt: Prompt) -> TurnId:
        turn = TurnId(self.clock.new_id())
        lease = await self.store.journal.lease(prompt.thread)
        assert lease is not None
        said = UserSaid(prompt.text, prompt.author, prompt.message_id, prompt.origin, prompt.attachments)
        commit = Commit(turn, (TurnStarted("main", "fake"), said))
        self.hub.publish((await self.store.journal.open_turn(lease, prompt, commit)).events)
        self.open_turns.add(turn)
        return turn

    async def add(self, thread: ThreadId, turn: TurnId, *events: EventData) -> None:
        lease = await self.store.journal.lease(thread)
        assert lease is not None
        self.hub.publish((await self.store.journal.commit(lease, Commit(turn, events))).events)

    async def finish(self, thread: ThreadId, turn: TurnId, reply: str, outcome: Outcome = "done") -> None:
        lease = await self.store.journal.lease(thread)
        assert lease is not None
        finished = TurnFinished(outcome, reply, 1, USAGE)
        self.hub.publish((await self.store.journal.finish_turn(lease, Commit(turn, (finished,)))).events)
        self.open_turns.discard(turn)

    async def answer(self, prompt: Prompt, *pieces: str) -> None:
        turn = await self.open(prompt)
        for place, piece in enumerate(pieces):
            self.hub.show(prompt.thread, turn, TextStreamed(piece, 1, len("".join(pieces[:place]))))
            await asyncio.sleep(0)
        text = "".join(pieces)
        await self.add(prompt.thread, turn, AssistantSaid(text, usage=USAGE))
        await self.finish(prompt.thread, turn, text)

    def echo(self, prompt: Prompt) -> object:
        return self.answer(prompt, "You said: ", prompt.text)


class Served(Stand):
    """A stand behind a running server. `client` sends the owner's token, and `stranger` sends none."""

    address: str
    client: httpx2.AsyncClient
    stranger: httpx2.AsyncClient

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@asynccontextmanager
async def served(
    root: Path, options: WebOptions | None = None, web: WebSettings | None = None
) -> AsyncGenerator[Served]:
    options = options or WebOptions(token=TOKEN, port=0, heartbeat_seconds=5, linger_seconds=0.5)
    async with asyncio.TaskGroup() as tasks:
        stand = Served(root, tasks, web)
        tasks.create_task(stand.engine.run(Idle()))
        await stand.engine.started()
        async with serve(stand.services, options) as address:
            stand.address = address
            stand.stranger = httpx2.AsyncClient(verify=default_tls(), base_url=address, timeout=60)
            headers = {"Authorization": f"Bearer {options.token}"}
            stand.client = httpx2.AsyncClient(verify=default_tls(), base_url=address, headers=headers, timeout=60)
            async with stand.stranger, stand.client:
                yield stand
        await stand.engine.drain(0)
        await stand.store.close()
