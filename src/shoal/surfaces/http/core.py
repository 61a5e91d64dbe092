"""What the HTTP surface needs of a running Shoal, as Protocols, and what its handlers share."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.calls import Webhook
from shoal.domain.clock import Clock
from shoal.domain.commands import Asked
from shoal.domain.events import Event, LiveEvent, Scope
from shoal.domain.files import Files, Folders
from shoal.domain.home import Home
from shoal.domain.ids import ApprovalId, ThreadId
from shoal.domain.messages import Author, Inbound, Receipt
from shoal.domain.permissions import Asker
from shoal.domain.ports import ChatAdapter, Engine
from shoal.domain.records import NewTrigger, Opening, Snapshot, Trigger
from shoal.domain.store import Store
from shoal.permissions.access import Bucket

if TYPE_CHECKING:
    from shoal.actors.access_tokens import AccessTokens
    from shoal.actors.pairing import Pairing
    from shoal.agents.info import Info
    from shoal.agents.roster import Roster
    from shoal.backups import Backups
    from shoal.store.health import Health
    from shoal.surfaces.http.auth import Gate
    from shoal.surfaces.http.metrics import Counters
    from shoal.surfaces.http.page import Page
    from shoal.surfaces.http.streams import Streams
    from shoal.tools.marked import MarkedFiles
    from shoal.tools.mcp.pins import Pins
    from shoal.tools.processes.service import ProcessService

BODY_BYTES_MAX = 1_048_576
"""Largest JSON body."""
ATTACHMENT_BYTES_MAX = 26_214_400
"""Largest uploaded file."""


class Subscription(Protocol):
    """What happens from now on. Iteration ends when the reader fell behind (`lost`) or the hub closed."""

    @property
    def lost(self) -> bool: ...

    def __aiter__(self) -> AsyncIterator[Event | LiveEvent]: ...


class Hub(Protocol):
    """Where journal events and live events of this process can be watched."""

    def subscribe(self, thread: ThreadId | None, /) -> AbstractContextManager[Subscription]:
        """Watch one thread, or all of them."""
        ...

    def tap(self, count: Callable[[Event], None]) -> None:
        """Have every journal event shown to `count`, which neither waits nor fails."""
        ...


class Orchestrator(Protocol):
    """Where everything enters; see shoal.actors.orchestrator."""

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or say why not."""
        ...

    async def send_to_channel(
        self, platform: str, channel: str, text: str, author: Author, agent: str = ""
    ) -> ThreadId:
        """Post to a channel, which opens a thread, and let its agent answer."""
        ...

    async def open(self, opening: Opening) -> bool:
        """Have a prompt begin a thread in a channel, once for its key; durable. Raises InvalidInput if it cannot be."""
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval; returns its new state. Raises NotFound, Conflict or Gone."""
        ...

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the model's window anew. Raises NotFound."""
        ...

    async def command(self, asked: Asked) -> str:
        """Do what a slash command asks; returns what to tell the person."""
        ...


class Snapshots(Protocol):
    """Saved conversations; see shoal.agents.snapshots."""

    async def save(self, thread: ThreadId, description: str = "") -> Snapshot:
        """Save the window. Raises NotFound, InvalidInput for an empty one."""
        ...

    async def begin_anew(self, thread: ThreadId, by: str) -> Snapshot | None:
        """Save the window, then clear it. Raises NotFound, Conflict while a turn runs."""
        ...

    async def history(self, thread: ThreadId) -> list[Snapshot]:
        """What was saved in the thread's channel. Raises NotFound."""
        ...

    async def restore(self, thread: ThreadId, snapshot: str, by: str) -> Snapshot:
        """Bring a window back. Raises NotFound, Conflict while a turn runs."""
        ...


class Agents(Protocol):
    """The configured agents."""

    def names(self) -> Sequence[str]:
        """Their names."""
        ...

    def spec(self, name: str) -> AgentSpec:
        """One agent as its file is now. Raises InvalidInput for a broken file."""
        ...


class Core(Protocol):
    """The running application; `shoal.app.App` is one."""

    @property
    def home(self) -> Home: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> Store: ...

    @property
    def backups(self) -> "Backups": ...

    @property
    def health(self) -> "Health": ...

    @property
    def orchestrator(self) -> Orchestrator: ...

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def pairing(self) -> "Pairing": ...

    @property
    def tokens(self) -> "AccessTokens": ...

    @property
    def artifacts(self) -> Files: ...

    @property
    def folders(self) -> Folders: ...

    @property
    def marked(self) -> "MarkedFiles": ...

    @property
    def engine(self) -> Engine: ...

    @property
    def hub(self) -> Hub: ...

    @property
    def agents(self) -> Agents: ...

    @property
    def roster(self) -> "Roster": ...

    @property
    def processes(self) -> "ProcessService": ...

    @property
    def pins(self) -> "Pins": ...

    def info(self) -> "Info":
        """What is up."""
        ...

    @property
    def adapters(self) -> Mapping[str, ChatAdapter]: ...

    @property
    def state(self) -> str:
        """`running` when the engine serves; anything else says what it does instead."""
        ...

    def due(self, what: str) -> None:
        """Something became due: `triggers`, or a platform's post."""
        ...

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn. Raises InvalidInput on a schedule that never comes."""
        ...


NO_HOOKS: Mapping[str, Webhook] = {}


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the surface is served.

    `allowed_origins` are further origins (scheme://host[:port]) under which a browser may use it, e.g. of a proxy.
    `hooks` are the webhooks by name. `linger_seconds`: how long the rest of a body that was answered already may pause.
    """

    token: str
    host: str = "127.0.0.1"
    port: int = 8420
    allowed_origins: tuple[str, ...] = ()
    heartbeat_seconds: float = 15.0
    streams_max: int = 256
    slow_reader_seconds: float = 60.0
    body_seconds: float = 60.0
    upload_seconds: float = 600.0
    linger_seconds: float = 2.0
    hooks: Mapping[str, Webhook] = NO_HOOKS


class Web:
    """What every handler gets beside its request."""

    __slots__ = ("buckets", "core", "counters", "describe", "gate", "options", "page", "probed", "probing", "streams")

    def __init__(
        self,
        core: Core,
        options: WebOptions,
        *,
        gate: "Gate",
        streams: "Streams",
        counters: "Counters",
        page: "Page",
        describe: Callable[[], bytes],
    ) -> None:
        self.core = core
        self.options = options
        self.gate = gate
        self.streams = streams
        self.counters = counters
        self.page = page
        self.describe = describe
        self.buckets: OrderedDict[str, Bucket] = OrderedDict()
        self.probed: tuple[float, str] | None = None
        self.probing = asyncio.Lock()
