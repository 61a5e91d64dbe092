"""The ports of the core. Each has a contract suite in shoal.testing.contracts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
        """Name in the configuration, for example `openai`."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Call the model. Ends with exactly one ModelDone or ModelFailed. Raises only CancelledError.

        Closing the iterator or cancelling also ends the call at the provider.
        """
        ...

    async def models(self) -> list[ModelInfo]:
        """List the models, which also validates the key. Raises ProviderRefused or ProviderDown."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Route(msgspec.Struct, frozen=True):
    """The result of resolving a model name: the provider, its name for the model, and the context window in tokens (0
    if unknown)."""

    provider: Provider
    model: str
    context_tokens: int
    max_output_tokens: int = 0


class Models(Protocol):
    """All configured providers and their models."""

    def route(self, name: str) -> Route:
        """Find `PROVIDER/MODEL` or a bare model name. Raises InvalidInput that lists the configured ones."""
        ...

    def usd(self, route: Route, usage: Usage) -> float | None:
        """Return the cost in US dollars, or None if the price is unknown."""
        ...


# ---- tools and sandbox ----


class Mount(msgspec.Struct, frozen=True):
    """A host directory and its path inside the sandbox."""

    host: Path
    inside: str
    writable: bool = False


class RunFile(msgspec.Struct, frozen=True):
    """A file that a command may run only as a person allowed it.

    `path` is the command's path with links resolved, and `host` the host's. `digest` is the SHA-256 (hex) of the bytes;
    empty means that no file may exist. `identity` is its device, inode and `st_ctime_ns`. If `content` is given, a
    sandbox may mount these bytes over the file, with the permissions `mode`. `folders` are its parents by the command's
    path, inode and `st_mtime_ns`: replacing a file or folder changes one of them.
    """

    path: str
    digest: str
    host: Path | None = None
    identity: tuple[int, ...] = ()
    content: bytes | None = None
    mode: int = 0o644
    folders: tuple[tuple[str, int, int], ...] = ()


SeeOutput: TypeAlias = Callable[[int, bytes], None]
"""Receives each piece of a command's standard output (1) and error (2). Must neither wait nor fail."""


class Command(msgspec.Struct, frozen=True):
    """One shell command for a sandbox. `cwd` is a host path below a mount. `env` is added to PATH and HOME.

    `runs` are files that must be unchanged since they were allowed; otherwise ContentChanged is raised. `see` receives
    the output, which is also in the result.
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
    """The result of a command. A stream longer than `output_bytes_max` is cut and marked."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    timed_out: bool = False
    stdout_cut: bool = False
    stderr_cut: bool = False


class Sandbox(Protocol):
    """Runs commands. Cancelling `run` kills the whole process tree, including `setsid` children, before it returns."""

    @property
    def name(self) -> str:
        """`host`, `bubblewrap`, `docker`…"""
        ...

    @property
    def isolated(self) -> bool:
        """False if commands see the whole machine. Shoal then asks before each command."""
        ...

    async def run(self, command: Command) -> CommandResult:
        """Run a command. Raises SandboxError if it cannot start."""
        ...

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """Return the path of a host path for commands and the model. Unchanged outside all mounts."""
        ...

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """Return the host path of a command's path. Unchanged outside all mounts."""
        ...

    async def close(self) -> None:
        """Release resources kept between commands."""
        ...


Enclose: TypeAlias = Callable[[Command], AbstractAsyncContextManager[tuple[str, ...]]]
"""Runs a long-lived process in a sandbox: yields the argument vector that runs the command inside, valid while the
block lasts. Raises SandboxError."""


class ToolOutput(msgspec.Struct, frozen=True):
    """A tool's result. `tainted_by` names the untrusted source of the text, if any.

    `is_piece`: the model requested a piece of a stored result, so it is not stored again. `answers`: the tool gave the
    person the turn's answer, so the turn's last text is not posted. `is_pending`: the result will follow. The turn
    waits until its thread is woken, and the call then runs again. `found` lists newly available tools; their
    definitions follow the text. `exit_code` is a command's exit code. `raw` is a command's full output if the text is
    only its last state on a terminal; it is stored instead of the text. `quotes` are files whose name or content the
    text shows; if these are tainted, so is the text. `links` are addresses that may be read afterwards.
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
    """Services for built-in tools."""

    artifacts: Files
    """Store of full results."""

    @property
    def virtual_folders(self) -> Sequence["VirtualFolder"]:
        """Virtual folders of the file tools."""
        ...

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        ...


class ToolContext(msgspec.Struct, frozen=True):
    """The thread and the caller of a tool call, built by the executor and never from model output.

    `tools` are the agent's tools that no profile hides. `timezone` is the asker's.
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
        """Return the thread that people read: this one, or the root of a subagent's."""
        return self.purpose.caller.root if self.purpose.caller is not None else self.thread

    @property
    def within(self) -> str:
        """Return the thread id prefix that the call may see; empty means all."""
        return self.purpose.audience.within(self.chat)


class Invocation(Protocol):
    """A call with validated and resolved arguments. The same object is shown, decided and run."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions of the call, at least one."""
        ...

    @property
    def shown(self) -> str:
        """The exact content for approval, for example the command, or the path and the diff."""
        ...

    @property
    def canonical(self) -> str:
        """Return canonical JSON of everything that determines the effect: resolved arguments, cwd, relevant
        environment."""
        ...

    async def run(self) -> ToolOutput:
        """Run the call. Raises ToolError for failures the model should read. Must kill its processes when cancelled."""
        ...


class VirtualFile(NamedTuple):
    """A file in a virtual folder, as a turn sees it. `path` is the file on disk whose parts it shows."""

    shown: str
    text: str
    path: Path


class VirtualFolder(NamedTuple):
    """A folder that exists only for the file tools, such as `/memory`. Its functions raise ToolError.

    `names` returns the paths of its files. `change` plans a new text for a file, as a call of the named tool. `notes`
    are added to the results of calls that write real files of these paths, which may be a mistake.
    """

    root: str
    names: Callable[[ToolContext], list[str]]
    open: Callable[[ToolContext, str], VirtualFile]
    change: Callable[[ToolContext, str, VirtualFile, str], Invocation]
    notes: Mapping[str, str] = {}

    def has(self, path: str) -> bool:
        """Whether a path is in the folder, or the folder itself."""
        return f"{path}/".startswith(f"{self.root}/")


class Tool(Protocol):
    """A tool that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """Definition for the model."""
        ...

    @property
    def traits(self) -> Traits:
        """Traits of the tool."""
        ...

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON text and resolve paths. Raises ToolError saying which argument is wrong."""
        ...


class Embeddings(Protocol):
    """Converts texts to vectors that are close for similar meanings."""

    @property
    def name(self) -> str:
        """The model, PROVIDER/MODEL. Vectors of different models are not comparable."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text, all of the same length. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close connections and unload the model."""
        ...


class Speech(Protocol):
    """Speech recognition and synthesis.

    Prices are None if unknown, and 0 for local programs.
    """

    @property
    def name(self) -> str:
        """The model, PROVIDER/MODEL, or the program."""
        ...

    @property
    def usd_per_minute(self) -> float | None:
        """Price of recognizing one minute."""
        ...

    @property
    def usd_per_million_chars(self) -> float | None:
        """Price of synthesizing a million characters."""
        ...

    async def hear(self, audio: bytes, media_type: str) -> Heard:
        """Transcribe a recording. Raises ProviderDown if a retry may help, otherwise ProviderRefused."""
        ...

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        """Synthesize a text, in `form` if available. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


# ---- chat platforms ----


class InboxPort(Protocol):
    """Receives people's actions from adapters. Messages of one person within `pause_seconds` belong together."""

    pause_seconds: float
    commands: CommandTable

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or return the reason why not. Takes about a millisecond and never waits for a turn.

        A slash command is run instead. A stranger is turned away, with a pairing code if enabled.
        """
        ...

    async def admits(self, message: Prompt) -> bool:
        """Whether the author may speak there, for adapters that do work before `send`. Turns strangers away like
        `send`."""
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Decide an approval and return the result. Raises NotFound, Conflict (already decided), Gone (expired),
        Forbidden (`by` may not decide it) or InvalidInput (it can only be allowed once)."""
        ...

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Allow or deny the waiting calls of a card, or those with these numbers. Returns the text for the person.

        Allowing some denies the rest, in one transaction. Raises like `decide`, and then decides nothing."""
        ...

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Show a checkbox for each call on a card. Returns instructions for platforms without buttons."""
        ...

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        """Allow a call, or those of a card, and make their rules; returns what to tell the person.

        Raises what `decide` does, Forbidden for all but the owner, and InvalidInput where no rule can be made; nothing
        is decided then. With `or_thread` it is allowed for the whole thread where no rule is made."""
        ...

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        """Remove the rules that `always` made of a call or a card, named by its id, or in a `thread` by the id's end;
        returns what to tell the person. Raises NotFound, Conflict, Forbidden and InvalidInput."""
        ...

    async def undo_files(self, card: CardId, by: Asker) -> str:
        """Restore the files that the turn of a discarded card changed. Returns the text for the person.

        Raises NotFound, Forbidden, Conflict, and InvalidInput if nothing can be restored."""
        ...

    async def listens(self, thread: ThreadId) -> Listen:
        """Return which messages are answered in the thread's channel. Raises StoreError."""
        ...

    async def react(self, reaction: Reaction) -> str:
        """Handle an emoji on one of the agent's messages. Returns the text for the person, often empty.

        Raises StoreError.
        """
        ...

    async def command(self, asked: CommandRequest) -> str:
        """Run a slash command once per key. Returns the answer in Markdown, possibly empty. Raises StoreError."""
        ...

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Return completions for a partly written command argument. Empty for people without access."""
        ...

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread of a message: one of the agent's by its id, a person's prompt by its key.

        `channel` is `PLATFORM:CHANNEL:`, the prefix of the ids of that channel's threads. Raises StoreError.
        """
        ...


@runtime_checkable
class ChannelHost(Protocol):
    """An adapter whose platform lets bots create rooms."""

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Create a channel in the server or team of the channel `beside`, and return its id. Raises PlatformError."""
        ...

    async def has_channel(self, channel: str) -> bool:
        """Whether the channel exists and the bot may write to it. Raises PlatformError if unknown."""
        ...


class ChatAdapter(Protocol):
    """One account on a chat platform."""

    @property
    def platform(self) -> str:
        """First part of its thread ids."""
        ...

    @property
    def limits(self) -> ChatLimits:
        """Its capabilities."""
        ...

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled, reconnecting with backoff."""
        ...

    async def post(self, post: OutboundPost) -> str:
        """Post and return the platform's message id. Raises PlatformError."""
        ...

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message. Raises PlatformError."""
        ...

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show the agent's status, phrased to follow its name. Empty clears it. The caller ignores failures."""
        ...

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel and return the thread this opens. `key` is as in OutboundPost. Raises PlatformError."""
        ...

    def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Return the platform's messages in a thread, or in a channel outside of threads (WHOLE_CHANNEL), oldest first.

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
"""Settings scope for work done once per key that cannot recur after `bookkeeping_days`. A value begins with its time in
microseconds, and expires like an accepted message."""


def channel_names(platform: str) -> str:
    """Return the settings scope of a platform's group names by channel id."""
    return f"channel_names:{platform}"


class Settings(Protocol):
    """Small durable values by scope, for example a platform's polling offset or the last active channel."""

    async def get(self, scope: str, key: str) -> str | None:
        """Return the value, or None."""
        ...

    async def put(self, scope: str, key: str, value: str) -> None:
        """Set the value."""
        ...

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Set the value if it is still as expected (None: not set). Returns False otherwise."""
        ...

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Return keys and values of a scope in key order, at most `limit` after the key `after`."""
        ...

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Delete the value if it is still as expected. Returns False otherwise."""
        ...


# ---- engine and live events ----

SignalKind: TypeAlias = Literal["steer", "abort", "decision"]


class ThreadHandler(Protocol):
    """The work that an engine schedules; implemented by the orchestrator."""

    async def advance(self, thread: ThreadId) -> None:
        """Run the thread's work until nothing is left or it waits for a person."""
        ...

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Tell a turn in this process that the thread's rows changed. Never waits."""
        ...


class Engine(Protocol):
    """Decides which worker advances which thread."""

    @property
    def running(self) -> int:
        """Number of threads being advanced in this process."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it accepts work now."""
        ...

    async def started(self) -> None:
        """Wait until it first accepts work."""
        ...

    async def confirm(self, thread: ThreadId) -> None:
        """Return if this process still advances the thread. Call it before work that another process must not repeat.

        Raises StaleEpoch if another process has it, StoreError if that is unknown.
        """
        ...

    async def wake(self, thread: ThreadId) -> None:
        """Make `advance(thread)` run soon. Several wakes before it starts count as one.

        A wake while it runs makes it run once more. At most one `advance` per thread runs at a time.
        """
        ...

    async def woken(self, thread: ThreadId) -> None:
        """Called after a transaction that created work. Wakes the thread unless the transaction did."""
        ...

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Tell the worker that advances the thread that a row of this turn changed."""
        ...

    async def run(self, handler: ThreadHandler) -> None:
        """Serve until drained or cancelled."""
        ...

    async def drain(self, seconds: float) -> None:
        """Accept no new work, give running turns this long, then cancel them. They continue at the next start."""
        ...


class LiveHub(Protocol):
    """Publishes live events to watchers in this process."""

    def publish(self, events: Sequence[Event]) -> None:
        """Publish journal events that are now durable."""
        ...

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        """Publish a live event. Cheap without watchers."""
        ...

    def watched(self, thread: ThreadId) -> bool:
        """Whether anyone watches this thread."""
        ...


Completion: TypeAlias = Callable[[ThreadId, TurnId, str], Awaitable[None]]
"""Callback for embedding programs, with the thread, turn and reply of a finished turn."""
