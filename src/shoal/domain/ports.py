"""The ports: what the core needs from the outside, each with one contract suite in shoal.testing.contracts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.clock import Clock
from shoal.domain.events import Event, LiveData, Scope
from shoal.domain.home import Home
from shoal.domain.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.domain.messages import Image, Inbound, ModelEvent, ModelInfo, ModelRequest, Prompt, Receipt, ToolSpec, Usage
from shoal.domain.permissions import Action, Asker
from shoal.domain.records import NewPost, NewTrigger, Trigger

# ---- models ----


class Provider(Protocol):
    """A service or library that runs models."""

    @property
    def name(self) -> str:
        """The name in the configuration, e.g. `openai`."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Call the model. Ends with exactly one ModelDone or ModelFailed; never raises but CancelledError.

        Closing the iterator or cancelling ends the call at the provider too.
        """
        ...

    async def models(self) -> list[ModelInfo]:
        """The models offered, which also shows that the key is valid. Raises ProviderRefused or ProviderDown."""
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...


class Route(msgspec.Struct, frozen=True):
    """Where a model name leads: the provider, its own name for the model, and the model's window in tokens."""

    provider: Provider
    model: str
    context_tokens: int
    max_output_tokens: int = 0


class Models(Protocol):
    """All configured providers and their models."""

    def route(self, name: str) -> Route:
        """Find `PROVIDER/MODEL` or a bare model name. Raises InvalidInput naming what is configured."""
        ...

    def usd(self, route: Route, usage: Usage) -> float | None:
        """What this use costs in US dollars; None when the price is unknown (never a guess of 0)."""
        ...


# ---- tools and sandbox ----


class Mount(msgspec.Struct, frozen=True):
    """A host directory and its place inside the sandbox."""

    host: Path
    inside: str
    writable: bool = False


class Command(msgspec.Struct, frozen=True):
    """One shell command for a sandbox. `cwd` is a host path below a mount; `env` comes beside PATH and HOME."""

    text: str
    cwd: Path
    mounts: tuple[Mount, ...]
    timeout_seconds: float = 120.0
    output_bytes_max: int = 10_485_760
    env: tuple[tuple[str, str], ...] = ()


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended. A stream longer than `output_bytes_max` is cut there and marked so."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    timed_out: bool = False
    stdout_cut: bool = False
    stderr_cut: bool = False


class Sandbox(Protocol):
    """Runs commands. Cancelling `run` kills the whole process tree, `setsid` children included, before it returns."""

    @property
    def name(self) -> str:
        """`host`, `bubblewrap`, `docker`…"""
        ...

    @property
    def isolated(self) -> bool:
        """False when a command sees the whole machine; then every command is asked for."""
        ...

    async def run(self, command: Command) -> CommandResult:
        """Run it. Raises SandboxError when it cannot be started."""
        ...

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """The path by which commands (and the model) know this host path; itself where nothing is mapped."""
        ...

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """The host path of a path as commands know it; unchanged where no mount holds it."""
        ...

    async def close(self) -> None:
        """Give back what is held between commands."""
        ...


class ToolOutput(msgspec.Struct, frozen=True):
    """What a tool returns. `tainted_by` names an untrusted source the text came from.

    `is_piece`: the model asked for just this piece of something that is stored already, so it is not stored again.
    """

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    tainted_by: str = ""
    is_piece: bool = False


class ToolServices(Protocol):
    """What built-in tools may ask of the rest of Shoal."""

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        ...

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn. Raises InvalidInput on a schedule that never comes."""
        ...


class ToolContext(msgspec.Struct, frozen=True):
    """Where and for whom a call runs. Built by the executor, never from a model's words."""

    thread: ThreadId
    turn: TurnId
    call_id: CallId
    asker: Asker
    agent: AgentSpec
    home: Home
    mounts: tuple[Mount, ...]
    sandbox: Sandbox
    clock: Clock
    services: ToolServices


class Invocation(Protocol):
    """A call whose arguments are validated and resolved: what is shown, decided on and run is this one object."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """Everything the call will do; never empty."""
        ...

    @property
    def shown(self) -> str:
        """The exact content for a person to approve, e.g. the command, or the path and the diff."""
        ...

    @property
    def canonical(self) -> str:
        """Canonical JSON of all that determines the effect (resolved arguments, cwd, environment that matters)."""
        ...

    async def run(self) -> ToolOutput:
        """Do it. Raises ToolError for a failure the model should read; must kill what it started when cancelled."""
        ...


class Tool(Protocol):
    """Something a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        ...

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON text and resolve paths. Raises ToolError saying which argument is wrong."""
        ...


# ---- chat platforms ----


Markup: TypeAlias = Literal["markdown", "telegram", "slack", "discord", "matrix", "google_chat", "plain"]
"""What a platform's messages are written in; `markdown` ones are taken as they are."""


class Window(msgspec.Struct, frozen=True):
    """At most `posts` posts in any `seconds` seconds, counted for a thread, a channel or the whole account."""

    posts: int
    seconds: float
    scope: Literal["thread", "channel", "account"] = "channel"
    groups_only: bool = False


class ChatLimits(msgspec.Struct, frozen=True):
    """What a platform can and cannot do, as data.

    `text_chars_max` is counted in `text_unit` over the text in its `markup`. Channels whose names begin with
    `group_prefix` are groups; edits there keep `group_edit_seconds_min` apart.
    """

    text_chars_max: int
    markup: Markup = "markdown"
    text_unit: Literal["characters", "utf16", "bytes"] = "characters"
    edit_seconds_min: float = 0.5
    group_edit_seconds_min: float = 0.0
    group_prefix: str = ""
    windows: tuple[Window, ...] = ()
    button_bytes_max: int = 0
    idempotent_posts: bool = False
    can_edit: bool = False
    can_upload: bool = False
    can_stream: bool = False
    has_preview: bool = False
    has_buttons: bool = False
    has_ephemeral: bool = False
    has_history: bool = False
    upload_bytes_max: int = 26_214_400


class Button(msgspec.Struct, frozen=True):
    """A choice under a message; `value` comes back with the click."""

    label: str
    value: str


class OutboundPost(msgspec.Struct, frozen=True):
    """One message for a platform, already short enough. `key` is its idempotency key, stable over retries."""

    thread: ThreadId
    key: str
    markdown: str
    kind: Literal["text", "file", "card", "ephemeral"] = "text"
    file: Path | None = None
    buttons: tuple[Button, ...] = ()
    reply_to: str = ""
    user: str = ""


class InboxPort(Protocol):
    """What adapters call with what people do."""

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or say why not; returns in about a millisecond and never waits for a turn."""
        ...

    async def admits(self, message: Prompt) -> bool:
        """Whether its author may speak there; a stranger is turned away, with a pairing code where that is due."""
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval; returns what it became. Raises NotFound, Conflict (decided already), Gone (expired) or
        Forbidden (`by` may not decide it)."""
        ...

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Start the model's window anew; the journal keeps everything. Raises NotFound for an unknown thread."""
        ...

    async def status(self, thread: ThreadId) -> str:
        """What the thread does, in a line for a person."""
        ...


class ChatAdapter(Protocol):
    """A chat platform under one account."""

    @property
    def platform(self) -> str:
        """The first part of its thread ids."""
        ...

    @property
    def limits(self) -> ChatLimits:
        """What it can do."""
        ...

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        ...

    async def post(self, post: OutboundPost) -> str:
        """Post and return the platform's message id. Raises PlatformError."""
        ...

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message. Raises PlatformError."""
        ...

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show that the agent works; an empty status ends it. Failures are ignored by the caller."""
        ...

    async def open_thread(self, channel: str, text: str) -> ThreadId:
        """Post a top-level message to a channel and return the thread it opens. Raises PlatformError."""
        ...

    def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Messages the platform has, oldest first. Raises PlatformError."""
        ...


# ---- the engine, and watching ----

SignalKind: TypeAlias = Literal["steer", "abort", "decision"]


class ThreadHandler(Protocol):
    """What an engine drives; implemented by the orchestrator."""

    async def advance(self, thread: ThreadId) -> None:
        """Run whatever the thread has to do until nothing is left or it waits for a person."""
        ...

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Make a change of the thread's rows known to this turn, if it runs here; never waits."""
        ...


class Engine(Protocol):
    """Decides which worker advances which thread, now; knows nothing of what a turn is."""

    async def wake(self, thread: ThreadId) -> None:
        """See to it that `advance(thread)` runs soon; any number of wakes before it starts are one.

        A wake while it runs makes it run once more. At most one `advance` of a thread runs at a time.
        """
        ...

    async def woken(self, thread: ThreadId) -> None:
        """Told after a transaction of the store that made work; wakes the thread where that was not part of it."""
        ...

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Tell whoever advances the thread that a row about this turn of it changed."""
        ...

    async def run(self, handler: ThreadHandler) -> None:
        """Serve until drained or cancelled."""
        ...

    async def drain(self, seconds: float) -> None:
        """Take no new work, give running turns this long, then cancel them; they go on at the next start."""
        ...


Watcher: TypeAlias = Callable[[Event | LiveData], None]


class LiveHub(Protocol):
    """Publishes what happens in threads to whoever watches in this process."""

    def publish(self, events: Sequence[Event]) -> None:
        """Journal events that are now durable."""
        ...

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        """A live event; cheap when nobody watches."""
        ...

    def watched(self, thread: ThreadId) -> bool:
        """Whether anybody watches this thread."""
        ...


Completion: TypeAlias = Callable[[ThreadId, TurnId, str], Awaitable[None]]
"""For an embedding program: called with thread, turn and reply when a turn has finished."""
