"""The ports: what the core needs from the outside, each with one contract suite in shoal.testing.contracts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from shoal.kernel.agents import AgentSpec, Listen, Purpose, Watch
from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandRequest, CommandTable
from shoal.kernel.events import Event, GivenLinks, LiveData, Scope
from shoal.kernel.files import Files
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId
from shoal.kernel.messages import (
    Image,
    Inbound,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    Prompt,
    Reaction,
    Receipt,
    ToolSpec,
    Usage,
)
from shoal.kernel.permissions import Action, Asker
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.kernel.records import NewPost
from shoal.kernel.speech import AudioFormat, Heard, Spoken
from shoal.kernel.traits import Traits

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
    """Where a model name leads: the provider, its own name for the model, and the model's window in tokens (0 where
    nobody knows it)."""

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


class RunFile(msgspec.Struct, frozen=True):
    """A file that a command may only run as it was when a person allowed it.

    `path` is where the command finds it, links followed, and `host` where it is on the host. `digest` is the SHA-256
    (hex) of the bytes; empty: there must be no file. `identity` is its device, inode and `st_ctime_ns`. Where `content`
    is given, a sandbox that can shows the command these bytes in the file's place, with the rights `mode`. `folders`
    are those on the way to it, by the command's path, inode and `st_mtime_ns`: whoever puts another file or folder into
    its place changes one of them.
    """

    path: str
    digest: str
    host: Path | None = None
    identity: tuple[int, ...] = ()
    content: bytes | None = None
    mode: int = 0o644
    folders: tuple[tuple[str, int, int], ...] = ()


SeeOutput: TypeAlias = Callable[[int, bytes], None]
"""Is given each piece of a command's standard output (1) and error (2) as it comes; may neither wait nor fail."""


class Command(msgspec.Struct, frozen=True):
    """One shell command for a sandbox. `cwd` is a host path below a mount; `env` comes beside PATH and HOME.

    `runs` are files that have to be as they were allowed; else it raises ContentChanged. `see` is told what it writes,
    which is in the result all the same.
    """

    text: str
    cwd: Path
    mounts: tuple[Mount, ...]
    timeout_seconds: float = 120.0
    output_bytes_max: int = 10_485_760
    env: tuple[tuple[str, str], ...] = ()
    watch: Watch | None = None
    runs: tuple[RunFile, ...] = ()
    see: SeeOutput | None = None


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


Enclose: TypeAlias = Callable[[Command], AbstractAsyncContextManager[tuple[str, ...]]]
"""What a sandbox offers to hold a process for as long as it likes to run: the argument vector that runs the command
inside, while the block lasts. Raises SandboxError."""


class ToolOutput(msgspec.Struct, frozen=True):
    """A tool's result. `tainted_by` names the untrusted source of the text, if any.

    `is_piece` means that the model requested a piece of a stored result, so it is not stored again. `answers` means
    that the tool gave the person the turn's answer, so the turn's last text is not posted. `is_pending` means that the
    result will follow: the turn rests until its thread is woken, and the call then runs again. `found` lists newly
    available tools; their definitions follow the text. `exit_code` is a command's exit code. `raw` is a command's full
    output if the text is only its last state on a terminal; it is stored instead of the text. `quotes` are files of
    which the text shows a name or a line: their marks taint it as well. `links` are addresses that it gives to be read.
    """

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    tainted_by: str = ""
    is_piece: bool = False
    answers: bool = False
    is_pending: bool = False
    found: tuple[ToolSpec, ...] = ()
    raw: str = ""
    exit_code: int = 0
    quotes: tuple[Path, ...] = ()
    links: GivenLinks | None = None


class ToolServices(Protocol):
    """What built-in tools may ask of the rest of Shoal."""

    artifacts: Files
    """Where results are kept whole."""

    @property
    def virtual_folders(self) -> Sequence["VirtualFolder"]:
        """What file tools show beside the folders of the disk."""
        ...

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        ...


class ToolContext(msgspec.Struct, frozen=True):
    """The place and the caller of a tool call, built by the executor and never from model output.

    `tools` are the agent's tools here that no profile hides. `timezone` is the asker's.
    """

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
    purpose: Purpose
    tools: Callable[[], tuple[ToolSpec, ...]] = tuple
    timezone: str = "UTC"

    @property
    def chat(self) -> ThreadId:
        """Where people read along: the thread itself, or the one at the root of a subagent's."""
        return self.purpose.caller.root if self.purpose.caller is not None else self.thread

    @property
    def within(self) -> str:
        """What the ids of the threads begin with of which the call may tell something; empty for all."""
        return self.purpose.audience.within(self.chat)


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


class VirtualFile(NamedTuple):
    """A file of a virtual folder as a turn sees it. `path` is the file on the disk that it shows parts of."""

    shown: str
    text: str
    path: Path


class VirtualFolder(NamedTuple):
    """A folder that the tools for files offer and no mount has, such as `/memory`. Its functions raise ToolError.

    `names` returns the paths of its files. `change` plans to replace a file's text, as a call of the tool of a name.
    """

    root: str
    names: Callable[[ToolContext], list[str]]
    open: Callable[[ToolContext, str], VirtualFile]
    change: Callable[[ToolContext, str, VirtualFile, str], Invocation]


class Tool(Protocol):
    """Something a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        ...

    @property
    def traits(self) -> Traits:
        """What the tool is."""
        ...

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON text and resolve paths. Raises ToolError saying which argument is wrong."""
        ...


class Embeddings(Protocol):
    """Turns texts into vectors that are close to each other where the texts mean the same."""

    @property
    def name(self) -> str:
        """The model, PROVIDER/MODEL; vectors of others cannot be compared with its own."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each, all of the same length. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close connections, unload a model."""
        ...


class Speech(Protocol):
    """Turns what somebody said into text, and text into speech.

    A price is None where nobody knows it, and 0 for what runs on a machine of one's own.
    """

    @property
    def name(self) -> str:
        """The model, PROVIDER/MODEL, or the program."""
        ...

    @property
    def usd_per_minute(self) -> float | None:
        """What recognising a minute costs."""
        ...

    @property
    def usd_per_million_chars(self) -> float | None:
        """What speaking a million characters costs."""
        ...

    async def hear(self, audio: bytes, media_type: str) -> Heard:
        """What is said in a recording. Raises ProviderDown, where another try may help, and ProviderRefused."""
        ...

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        """The text as a recording, in `form` where that can be had. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


# ---- chat platforms ----


class InboxPort(Protocol):
    """What adapters call with what people do. What somebody writes within `pause_seconds` belongs together."""

    pause_seconds: float
    commands: CommandTable

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or say why not; returns in about a millisecond and never waits for a turn.

        A slash command is obeyed instead, and a stranger turned away, with a pairing code where that is due.
        """
        ...

    async def admits(self, message: Prompt) -> bool:
        """Whether its author may speak there, for adapters that do something before `send`; strangers are turned away
        as there."""
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Settle an approval; returns what it became. Raises NotFound, Conflict (decided already), Gone (expired),
        Forbidden (`by` may not decide it) or InvalidInput (it can only be allowed once)."""
        ...

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Allow or deny the calls of a card that wait, or those of these numbers; returns what to tell the person.

        Allowing some denies the rest, all in one transaction. Raises what `decide` does; nothing is decided then."""
        ...

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Have a card show a tick for each call; returns what to tell the person where that is done in words."""
        ...

    async def listens(self, thread: ThreadId) -> Listen:
        """What is answered in the thread's channel. Raises StoreError."""
        ...

    async def react(self, reaction: Reaction) -> str:
        """Do what an emoji on one of our messages says; returns what to tell whoever put it there, often nothing.

        Raises StoreError.
        """
        ...

    async def command(self, asked: CommandRequest) -> str:
        """Do what a slash command asks, once a key; returns what to tell (markdown, maybe empty). Raises StoreError."""
        ...

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Whole arguments that one who writes a command, so far with this one, may mean; none for who may not speak."""
        ...

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """The thread that a message belongs to: one of ours by its id, somebody's prompt by its key.

        `channel` is `PLATFORM:CHANNEL:`, the beginning of the ids of that channel's threads. Raises StoreError.
        """
        ...


@runtime_checkable
class ChannelHost(Protocol):
    """What an adapter can do besides, where the platform lets a bot make rooms."""

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Make a channel, in the server or team of the channel `beside`; returns its id. Raises PlatformError."""
        ...

    async def has_channel(self, channel: str) -> bool:
        """Whether the channel is there and the bot may write to it. Raises PlatformError when that is not known."""
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
        """Show what the agent does, in words that go on from its name; an empty status ends it. Failures are ignored
        by the caller."""
        ...

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel; returns the thread this opens. Given a `key`, as in OutboundPost. Raises PlatformError."""
        ...

    def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Messages the platform has of a thread, or of a channel outside of threads (WHOLE_CHANNEL), oldest first.

        Raises PlatformError.
        """
        ...


ROLES_SECONDS = 60.0
"""How long a person's roles are cached."""


@runtime_checkable
class KnowsRoles(Protocol):
    """An adapter whose platform reports a person's current roles."""

    async def roles_of(self, channel: str, user: str) -> tuple[str, ...]:
        """Return a member's roles in the channel, at most ROLES_SECONDS old. Raises PlatformError."""
        ...


@runtime_checkable
class TellsOwner(Protocol):
    """An adapter that notifies the owner directly. The app provides the function."""

    tell_owner: Callable[[str], Awaitable[None]]


# ---- settings ----

ONCE = "once"
"""A scope of settings for what is done once for its key and cannot come again later than `bookkeeping_days`. A value
begins with when that was, in microseconds, and is forgotten like a message that was taken in."""


def channel_names(platform: str) -> str:
    """Return the settings scope of a platform's group names by channel id."""
    return f"channel_names:{platform}"


class Settings(Protocol):
    """Small durable values by scope (a server, a platform's polling offset, the last active channel)."""

    async def get(self, scope: str, key: str) -> str | None:
        """The value, or None."""
        ...

    async def put(self, scope: str, key: str, value: str) -> None:
        """Set it."""
        ...

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Set it if it is still as expected (None: not set); False when somebody was faster."""
        ...

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Keys and values of a scope by key, at most `limit` of those after the key `after`."""
        ...

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Forget it if it is still as expected; False when it is not."""
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

    @property
    def running(self) -> int:
        """How many threads are being advanced in this process."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it takes work now."""
        ...

    async def started(self) -> None:
        """Wait until it takes work for the first time."""
        ...

    async def confirm(self, thread: ThreadId) -> None:
        """Return while this process still advances the thread; for what must not be done once another has it.

        Raises StaleEpoch when it was given to another process, StoreError when that cannot be known.
        """
        ...

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
