"""The core's ports. Contract tests for every port are in shoal.testing.contracts."""

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
        """Name of the provider in the configuration, for example `openai`."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Call the model and yield its events. The last event is a ModelDone or ModelFailed. Raises only
        CancelledError.

        Closing the iterator or cancelling the task also ends the call at the provider.
        """
        ...

    async def models(self) -> list[ModelInfo]:
        """List the models. This also validates the key. Raises ProviderRefused or ProviderDown."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Route(msgspec.Struct, frozen=True):
    """A resolved model name.

    `model` is the provider's name for the model. `context_tokens` and `max_output_tokens` are 0 if unknown.
    """

    provider: Provider
    model: str
    context_tokens: int
    max_output_tokens: int = 0


class Models(Protocol):
    """All configured providers and their models."""

    def route(self, name: str) -> Route:
        """Resolve `PROVIDER/MODEL` or a bare model name. Raises InvalidInput, whose message lists the configured
        models.
        """
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
    """A file that a command may run only in the state that a person allowed.

    If the file or one of its folders is replaced, `identity` or an entry of `folders` changes.
    """

    path: str
    """Path as the command sees it, with links resolved."""
    digest: str
    """SHA-256 of the content in hex. Empty if the file must not exist."""
    host: Path | None = None
    identity: tuple[int, ...] = ()
    """Device, inode and change time (`st_ctime_ns`) of the file."""
    content: bytes | None = None
    """Content that a sandbox may mount over the file, with the permissions `mode`."""
    mode: int = 0o644
    folders: tuple[tuple[str, int, int], ...] = ()
    """Parent folders of the file, each as (path as the command sees it, inode, `st_mtime_ns`)."""


SeeOutput: TypeAlias = Callable[[int, bytes], None]
"""Receives each chunk of a command's output. The first argument is 1 for standard output and 2 for standard error. Must
neither block nor raise.
"""


class Command(msgspec.Struct, frozen=True):
    """A shell command for a sandbox."""

    text: str
    cwd: Path
    """Working directory, as a host path below one of the mounts."""
    mounts: tuple[Mount, ...]
    timeout_seconds: float = 120.0
    output_bytes_max: int = 10_485_760
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables in addition to PATH and HOME."""
    watch: Watch | None = None
    runs: tuple[RunFile, ...] = ()
    """Files that must be unchanged since a person allowed the command. Otherwise, the sandbox raises ContentChanged."""
    see: SeeOutput | None = None
    """Receives the output while the command runs. The result contains the same output."""


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a command. In each stream, output beyond `output_bytes_max` is replaced with a notice."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    timed_out: bool = False
    stdout_cut: bool = False
    stderr_cut: bool = False


class Sandbox(Protocol):
    """Runs commands. Cancelling `run` kills all processes of the command, including `setsid` children, before it
    returns.
    """

    @property
    def name(self) -> str:
        """Kind of sandbox, such as `host`, `bubblewrap` or `docker`."""
        ...

    @property
    def isolated(self) -> bool:
        """True if commands run isolated from the host.

        If False, commands can see the whole machine, so Shoal asks before every command that no rule allows.
        """
        ...

    async def run(self, command: Command) -> CommandResult:
        """Run a command. Raises SandboxError if it cannot start."""
        ...

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """Convert a host path to the path that commands and the model see. Paths outside all mounts are unchanged."""
        ...

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """Convert a path that a command sees to the host path. Paths outside all mounts are unchanged."""
        ...

    async def close(self) -> None:
        """Release resources that are kept between commands."""
        ...


Enclose: TypeAlias = Callable[[Command], AbstractAsyncContextManager[tuple[str, ...]]]
"""Prepares a sandbox for a long-lived process.

Yields the argument vector that runs the process. The vector is valid until the block ends. Raises SandboxError.
"""


class ToolOutput(msgspec.Struct, frozen=True):
    """The result that a tool returns."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    tainted_by: str = ""
    """Name of the untrusted source of the text, or empty."""
    is_piece: bool = False
    """True if the text is an excerpt that the model requested from stored content. It is not stored again."""
    answers: bool = False
    """True if the tool has already sent the turn's answer to the person. The turn's last text is then not posted."""
    is_pending: bool = False
    """True if the result will arrive later. The turn waits until its thread is woken, then runs the call again."""
    found: tuple[ToolSpec, ...] = ()
    """Tools that the model can call from now on. Their definitions are appended to the text."""
    raw: str = ""
    """Full output of a command, if `text` contains only its last state on a terminal. It is stored instead of `text`.
    """
    exit_code: int = 0
    quotes: tuple[Path, ...] = ()
    """Files whose names or content the text contains. If one of these files is tainted, the text is tainted too."""
    links: GivenLinks | None = None
    """URLs that later calls may read."""


class ToolServices(Protocol):
    """Services that built-in tools use."""

    artifacts: Files

    @property
    def virtual_folders(self) -> Sequence["VirtualFolder"]:
        """Return the folders that exist only for the file tools."""
        ...

    async def post(self, post: NewPost) -> None:
        """Add a message or file to the outbox."""
        ...


class ToolContext(msgspec.Struct, frozen=True):
    """The context in which a tool call runs. Built by the executor, never from model output."""

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
    """Returns the agent's tools, except for tools that a profile hides."""
    timezone: str = "UTC"
    """Time zone of the asker, as an IANA name."""

    @property
    def chat(self) -> ThreadId:
        """The thread that people read: this thread, or the root thread if this one belongs to a subagent."""
        return self.purpose.caller.root if self.purpose.caller is not None else self.thread

    @property
    def within(self) -> str:
        """Prefix of the thread ids that the call may see. Empty means all threads."""
        return self.purpose.audience.within(self.chat)


class Invocation(Protocol):
    """A validated tool call. The object that is shown for approval is the one that runs."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that the permission rules check. There is at least one."""
        ...

    @property
    def shown(self) -> str:
        """The exact content to approve, for example the command, or the path and the diff."""
        ...

    @property
    def canonical(self) -> str:
        """Canonical JSON of everything that determines the effect: resolved arguments, working directory and
        relevant environment.
        """
        ...

    async def run(self) -> ToolOutput:
        """Run the call.

        Raises ToolError for failures that the model should read. If cancelled, kills the processes that the call
        started.
        """
        ...


class VirtualFile(NamedTuple):
    """A file in a virtual folder, as a turn sees it. `path` is the file on disk that contains the visible parts."""

    shown: str
    text: str
    path: Path


class VirtualFolder(NamedTuple):
    """A folder that exists only for the file tools, such as `/memory`. Its functions raise ToolError."""

    root: str
    names: Callable[[ToolContext], list[str]]
    """Returns the paths of all files in the folder."""
    open: Callable[[ToolContext, str], VirtualFile]
    change: Callable[[ToolContext, str, VirtualFile, str], Invocation]
    """Prepares a call that replaces the text of a file. The arguments are the context, the tool's name, the file and
    the new text.
    """
    notes: Mapping[str, str] = {}
    """Warnings by real path. A call that writes to one of these paths gets the warning in its result, because the model
    may have meant this folder.
    """

    def has(self, path: str) -> bool:
        return f"{path}/".startswith(f"{self.root}/")


class Tool(Protocol):
    """A tool that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """The definition that the model receives."""
        ...

    @property
    def traits(self) -> Traits: ...

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the arguments, which are JSON text, and resolve paths. Raises ToolError, which names the
        invalid argument.
        """
        ...


class Embeddings(Protocol):
    """An embedding model. It converts texts to vectors, which are close together if the texts have similar meanings."""

    @property
    def name(self) -> str:
        """Model name as PROVIDER/MODEL. Vectors of different models cannot be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text. All vectors have the same length. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close all connections and unload the model."""
        ...


class Speech(Protocol):
    """Speech recognition and synthesis. A price is None if it is unknown, and 0 for a local program."""

    @property
    def name(self) -> str:
        """Model name as PROVIDER/MODEL, or the name of the local program."""
        ...

    @property
    def usd_per_minute(self) -> float | None:
        """Price of recognizing one minute of audio, in US dollars."""
        ...

    @property
    def usd_per_million_chars(self) -> float | None:
        """Price of synthesizing a million characters of text, in US dollars."""
        ...

    async def transcribe(self, audio: bytes, media_type: str) -> Heard:
        """Transcribe a recording. Raises ProviderDown if a retry may help, otherwise ProviderRefused."""
        ...

    async def say(self, text: str, form: AudioFormat) -> Spoken:
        """Synthesize speech, in the requested format if it is available. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


# ---- chat platforms ----


class InboxPort(Protocol):
    """Accepts messages, commands and decisions from the adapters.

    Messages that one person sends within `pause_seconds` of each other are answered together.
    """

    pause_seconds: float
    commands: CommandTable

    async def send(self, message: Inbound) -> Receipt:
        """Store a message durably. The receipt says whether it was accepted.

        Takes about a millisecond and never waits for a turn. A slash command is run instead of stored. A message
        from an unknown person is rejected, and the person receives a pairing code if pairing is enabled.
        """
        ...

    async def admits(self, message: Prompt) -> bool:
        """Return True if the author may write in the thread. Adapters that do costly work before `send` call this
        first.

        An unknown person is rejected as in `send`.
        """
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Decide an approval. Return its new state.

        Raises NotFound, Conflict (already decided), Gone (expired), Forbidden (`by` may not decide it) or
        InvalidInput (it can only be allowed once).
        """
        ...

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Decide the pending calls on a card, or only the calls in `numbers`. Return the text for the person.

        Allowing some of the calls denies the others in the same transaction. Raises the same errors as `decide`. After
        an error, nothing is decided.
        """
        ...

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Show a checkbox for each pending call on a card. Return the text for the person.

        If the platform cannot show checkboxes, the text explains how to choose calls by command. Raises NotFound,
        Forbidden, Conflict and Gone.
        """
        ...

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        """Allow one call, or calls on a card, and create rules that always allow them. Return the text for the person.

        If a rule cannot be created, `or_thread` allows the calls in this thread only. Without it, raises Forbidden if
        `by` is not the owner, and InvalidInput otherwise. Also raises the same errors as `decide`. After an error,
        nothing is decided.
        """
        ...

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        """Remove the rules that `always` created for a call or a card. Return the text for the person.

        `asked` is the id of the call or card. If `thread` is given, the end of the id is enough. Raises NotFound,
        Conflict, Forbidden and InvalidInput.
        """
        ...

    async def undo_files(self, card: CardId, by: Asker) -> str:
        """Restore the files changed by the turn of a discarded card. Return the text for the person.

        Raises NotFound, Forbidden, Conflict, and InvalidInput if nothing can be restored.
        """
        ...

    async def listens(self, thread: ThreadId) -> Listen:
        """Return which messages the agent answers in the thread's channel. Raises StoreError."""
        ...

    async def react(self, reaction: Reaction) -> str:
        """Process an emoji reaction to one of the agent's messages.

        Return the text for the person, or an empty string. Raises StoreError.
        """
        ...

    async def command(self, asked: CommandRequest) -> str:
        """Run a slash command, at most once for each key. Return the answer in Markdown, or an empty string.
        Raises StoreError.
        """
        ...

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Return completions for the argument that a person is typing. People without access get no completions."""
        ...

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread of a message in a channel.

        Finds the agent's messages by `message_id` and people's prompts by `key`. `channel` is `PLATFORM:CHANNEL:`,
        the prefix of the thread ids in the channel. Raises StoreError.
        """
        ...


@runtime_checkable
class ChannelHost(Protocol):
    """An adapter whose platform allows bots to create channels."""

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Create a channel and return its id. The channel is in the same server or team as `beside`. Raises
        PlatformError.
        """
        ...

    async def has_channel(self, channel: str) -> bool:
        """Return True if the channel exists and the bot may write to it. Raises PlatformError if this cannot be
        determined.
        """
        ...


class ChatAdapter(Protocol):
    """One account on a chat platform."""

    @property
    def platform(self) -> str:
        """First part of the thread ids of this account."""
        ...

    @property
    def limits(self) -> ChatLimits:
        """Capabilities of the platform."""
        ...

    async def run(self, inbox: InboxPort) -> None:
        """Receive messages until cancelled. Reconnects with backoff. The caller must call `close` afterwards."""
        ...

    async def close(self) -> None:
        """Close the connections, after `run` and the last post have ended. A later call connects again."""
        ...

    async def post(self, post: OutboundPost) -> str:
        """Post a message and return the id that the platform assigned to it. Raises PlatformError."""
        ...

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Replace the text and buttons of a posted message. Raises PlatformError."""
        ...

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show what the agent is doing. `status` follows the agent's name, for example "is running bash…".

        An empty status clears it. The caller ignores failures.
        """
        ...

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel and return the thread that the post opens.

        `key` is the idempotency key, as in OutboundPost. Raises PlatformError.
        """
        ...

    def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Yield the messages that the platform stores for a thread, oldest first. For WHOLE_CHANNEL, these are the
        messages outside of threads.

        Raises PlatformError.
        """
        ...


ROLES_SECONDS = 60.0


@runtime_checkable
class KnowsRoles(Protocol):
    """An adapter whose platform reports a person's current roles."""

    async def roles_of(self, channel: str, user: str) -> tuple[str, ...]:
        """Return a person's roles in the channel, as of at most ROLES_SECONDS ago. Raises PlatformError."""
        ...


@runtime_checkable
class OwnerNotifier(Protocol):
    """An adapter that can notify the owner. The app sets `notify_owner`."""

    notify_owner: Callable[[str], Awaitable[None]]


# ---- settings ----

ONCE = "once"
"""Settings scope that keeps work from being repeated for the same key. Use it only for work that cannot recur after
`bookkeeping_days`.

Each value begins with a timestamp in microseconds. Values are deleted after `bookkeeping_days`.
"""


def channel_names(platform: str) -> str:
    """Return the settings scope that maps the ids of a platform's group channels to their names."""
    return f"channel_names:{platform}"


class Settings(Protocol):
    """Storage for small durable values by scope and key, for example a platform's polling offset."""

    async def get(self, scope: str, key: str) -> str | None:
        """Return the value, or None if it is not set."""
        ...

    async def put(self, scope: str, key: str, value: str) -> None:
        """Set the value."""
        ...

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Set the value if the current value equals `expected`, where None means not set. Otherwise, return False."""
        ...

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Return the keys and values of a scope in key order. Starts after the key `after` and returns at most `limit`
        pairs.
        """
        ...

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Delete the value if it equals `expected`. Otherwise, return False."""
        ...


# ---- engine and live events ----

SignalKind: TypeAlias = Literal["steer", "abort", "decision"]


class ThreadHandler(Protocol):
    """The work that an engine schedules. Implemented by the orchestrator."""

    async def advance(self, thread: ThreadId) -> None:
        """Run the thread's work until none is left or the thread waits for a person."""
        ...

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Notify a turn in this process that the thread's rows have changed. Never blocks."""
        ...


class Engine(Protocol):
    """Schedules threads: decides which worker advances which thread."""

    @property
    def running(self) -> int:
        """Number of threads that this process is advancing."""
        ...

    @property
    def is_ready(self) -> bool:
        """True if the engine accepts work now."""
        ...

    async def started(self) -> None:
        """Wait until the engine accepts work for the first time."""
        ...

    async def confirm(self, thread: ThreadId) -> None:
        """Check that this process still advances the thread. Call this before work that another process must not
        repeat.

        Raises StaleEpoch if another process has taken over the thread, and StoreError if this cannot be determined.
        """
        ...

    async def wake(self, thread: ThreadId) -> None:
        """Make `advance(thread)` run soon. Several wakes before it starts count as one.

        A wake during `advance` makes it run once more. At most one `advance` runs for each thread.
        """
        ...

    async def woken(self, thread: ThreadId) -> None:
        """Wake the thread after a transaction that created work. Does nothing if the transaction itself schedules the
        thread.
        """
        ...

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Notify the thread's worker that a row of this turn has changed."""
        ...

    async def run(self, handler: ThreadHandler) -> None:
        """Run the scheduled work until drained or cancelled."""
        ...

    async def drain(self, seconds: float) -> None:
        """Stop accepting work, and cancel the turns that are still running after `seconds`.

        Cancelled turns continue at the next start.
        """
        ...


class LiveHub(Protocol):
    """Publishes live events to subscribers in this process."""

    def publish(self, events: Sequence[Event]) -> None:
        """Publish journal events, which must already be durable."""
        ...

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        """Publish a live event. This is cheap if nobody subscribes."""
        ...

    def watched(self, thread: ThreadId) -> bool:
        """Return True if anyone subscribes to this thread."""
        ...


Completion: TypeAlias = Callable[[ThreadId, TurnId, str], Awaitable[None]]
"""Callback for programs that embed Shoal. Receives the thread, the turn and the reply of each finished turn."""
