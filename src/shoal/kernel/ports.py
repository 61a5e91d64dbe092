"""The ports of the core. Each has a suite of contract tests in shoal.testing.contracts."""

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
    """A resolved model name: the provider, its name for the model, and the context window in tokens (0 if unknown)."""

    provider: Provider
    model: str
    context_tokens: int
    max_output_tokens: int = 0


class Models(Protocol):
    """All configured providers and their models."""

    def route(self, name: str) -> Route:
        """Resolve `PROVIDER/MODEL` or a bare model name. Raises InvalidInput that lists the configured models."""
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

    Replacing a file or folder changes `identity` or one of the `folders`.
    """

    path: str
    """The command's path, with links resolved."""
    digest: str
    """SHA-256 (hex) of the bytes. Empty means that no file may exist."""
    host: Path | None = None
    """The path on the host."""
    identity: tuple[int, ...] = ()
    """Device, inode and `st_ctime_ns`."""
    content: bytes | None = None
    """Bytes that a sandbox may mount over the file, with the permissions `mode`."""
    mode: int = 0o644
    folders: tuple[tuple[str, int, int], ...] = ()
    """Its parents: the command's path, inode and `st_mtime_ns` of each."""


SeeOutput: TypeAlias = Callable[[int, bytes], None]
"""Receives each piece of a command's standard output (1) and error (2). Must neither block nor raise."""


class Command(msgspec.Struct, frozen=True):
    """A shell command for a sandbox."""

    text: str
    cwd: Path
    """A host path below a mount."""
    mounts: tuple[Mount, ...]
    timeout_seconds: float = 120.0
    output_bytes_max: int = 10_485_760
    env: tuple[tuple[str, str], ...] = ()
    """Variables in addition to PATH and HOME."""
    watch: Watch | None = None
    runs: tuple[RunFile, ...] = ()
    """Files that must be unchanged since they were allowed. Otherwise ContentChanged is raised."""
    see: SeeOutput | None = None
    """Receives the output, which is also in the result."""


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a command. Each stream's output beyond `output_bytes_max` is replaced with a notice."""

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
        """Name of the kind, such as `host`, `bubblewrap` or `docker`."""
        ...

    @property
    def isolated(self) -> bool:
        """Whether commands run isolated from the host.

        If False, they see the whole machine, so Shoal asks before each one.
        """
        ...

    async def run(self, command: Command) -> CommandResult:
        """Run a command. Raises SandboxError if it cannot start."""
        ...

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """Translate a host path into the path for commands and the model. Paths outside all mounts are unchanged."""
        ...

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """Translate a command's path into the host path. Paths outside all mounts are unchanged."""
        ...

    async def close(self) -> None:
        """Release resources kept between commands."""
        ...


Enclose: TypeAlias = Callable[[Command], AbstractAsyncContextManager[tuple[str, ...]]]
"""Prepares a sandbox for a long-lived process.

Yields the argument vector that runs it, valid until the block ends. Raises SandboxError.
"""


class ToolOutput(msgspec.Struct, frozen=True):
    """A tool's result."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    tainted_by: str = ""
    """Names the untrusted source of the text, if any."""
    is_piece: bool = False
    """Whether the model requested a piece of a stored result. It is not stored again."""
    answers: bool = False
    """Whether the tool gave the person the turn's answer. The turn's last text is then not posted."""
    is_pending: bool = False
    """Whether the result will follow. The turn waits until its thread is woken, and the call then runs again."""
    found: tuple[ToolSpec, ...] = ()
    """Newly available tools. Their definitions follow the text."""
    raw: str = ""
    """A command's full output if the text shows only its last state on a terminal. It is stored instead of the text."""
    exit_code: int = 0
    """A command's exit code."""
    quotes: tuple[Path, ...] = ()
    """Files whose name or content the text shows. If these are tainted, the text is too."""
    links: GivenLinks | None = None
    """URLs that may be read afterwards."""


class ToolServices(Protocol):
    """Services for built-in tools."""

    artifacts: Files
    """Storage for full results."""

    @property
    def virtual_folders(self) -> Sequence["VirtualFolder"]:
        """Return the virtual folders of the file tools."""
        ...

    async def post(self, post: NewPost) -> None:
        """Add a message or file to the outbox."""
        ...


class ToolContext(msgspec.Struct, frozen=True):
    """The thread and the caller of a tool call. Built by the executor, never from model output."""

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
    """The agent's tools that no profile hides."""
    timezone: str = "UTC"
    """The asker's time zone."""

    @property
    def chat(self) -> ThreadId:
        """The thread that people read: this one, or the root of a subagent's thread."""
        return self.purpose.caller.root if self.purpose.caller is not None else self.thread

    @property
    def within(self) -> str:
        """Thread id prefix that the call may see. Empty means all threads."""
        return self.purpose.audience.within(self.chat)


class Invocation(Protocol):
    """A validated call. The object that is shown for approval is the one that runs."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The call's actions, at least one."""
        ...

    @property
    def shown(self) -> str:
        """Exact content for approval, for example the command, or the path and the diff."""
        ...

    @property
    def canonical(self) -> str:
        """Canonical JSON of everything that determines the effect: resolved arguments, cwd and relevant environment."""
        ...

    async def run(self) -> ToolOutput:
        """Run the call.

        Raises ToolError for failures that the model should read. Kills its processes when cancelled.
        """
        ...


class VirtualFile(NamedTuple):
    """A file in a virtual folder, as a turn sees it. `path` is the file on disk that contains the shown parts."""

    shown: str
    text: str
    path: Path


class VirtualFolder(NamedTuple):
    """A folder that exists only for the file tools, such as `/memory`. Its functions raise ToolError."""

    root: str
    names: Callable[[ToolContext], list[str]]
    """Returns the paths of its files."""
    open: Callable[[ToolContext, str], VirtualFile]
    change: Callable[[ToolContext, str, VirtualFile, str], Invocation]
    """Returns a planned call of the named tool that replaces a file's text."""
    notes: Mapping[str, str] = {}
    """Warnings by real path. A call that writes there gets the warning in its result, because that may be a mistake."""

    def has(self, path: str) -> bool:
        """Return whether a path is the folder or inside it."""
        return f"{path}/".startswith(f"{self.root}/")


class Tool(Protocol):
    """A tool that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """Definition for the model."""
        ...

    @property
    def traits(self) -> Traits: ...

    def prepare(self, arguments: str, context: ToolContext) -> Invocation:
        """Validate the JSON text and resolve paths. Raises ToolError that names the invalid argument."""
        ...


class Embeddings(Protocol):
    """An embedding model, which converts texts to vectors that are close for similar meanings."""

    @property
    def name(self) -> str:
        """The model as PROVIDER/MODEL. Vectors of different models are not comparable."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text, all of the same length. Raises ProviderDown and ProviderRefused."""
        ...

    async def close(self) -> None:
        """Close connections and unload the model."""
        ...


class Speech(Protocol):
    """Speech recognition and synthesis. Prices are None if unknown, and 0 for local programs."""

    @property
    def name(self) -> str:
        """The model as PROVIDER/MODEL, or the name of the program."""
        ...

    @property
    def usd_per_minute(self) -> float | None:
        """Price of recognizing one minute, in US dollars."""
        ...

    @property
    def usd_per_million_chars(self) -> float | None:
        """Price of synthesizing a million characters, in US dollars."""
        ...

    async def transcribe(self, audio: bytes, media_type: str) -> Heard:
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
    """Receives people's actions from adapters. A person's messages within `pause_seconds` belong together."""

    pause_seconds: float
    commands: CommandTable

    async def send(self, message: Inbound) -> Receipt:
        """Accept a message durably, or return why it was rejected.

        Takes about a millisecond and never waits for a turn. If the message is a slash command, the command is run
        instead. Unknown people are rejected, with a pairing code if enabled.
        """
        ...

    async def admits(self, message: Prompt) -> bool:
        """Return whether the author may write there, for adapters that do work before `send`.

        Rejects unknown people like `send`.
        """
        ...

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Decide an approval and return the result.

        Raises NotFound, Conflict (already decided), Gone (expired), Forbidden (`by` may not decide it) or InvalidInput
        (it can only be allowed once).
        """
        ...

    async def decide_card(
        self, card: CardId, allow: bool, by: Asker, numbers: Sequence[int] = (), scope: Scope = "once"
    ) -> str:
        """Allow or deny a card's pending calls, or those with these numbers. Return the text for the person.

        Allowing some denies the rest, in one transaction. Raises the errors of `decide`, and then decides nothing.
        """
        ...

    async def choose(self, card: CardId, ticked: Sequence[int], by: Asker) -> str:
        """Show a checkbox for each call on a card. Return instructions for platforms without buttons."""
        ...

    async def always(
        self, asked: ApprovalId | CardId, by: Asker, numbers: Sequence[int] = (), *, or_thread: bool = False
    ) -> str:
        """Allow one call or a card's calls, and create their rules. Return the text for the person.

        With `or_thread`, calls without a possible rule are allowed for the whole thread. Raises the errors of `decide`,
        Forbidden for anyone but the owner, and InvalidInput if a rule cannot be created. If it raises, nothing is
        decided.
        """
        ...

    async def take_back(self, asked: str, by: Asker, thread: str = "") -> str:
        """Remove the rules that `always` created for a call or a card. Return the text for the person.

        `asked` is the id of the call or card, or the end of the id with a `thread`. Raises NotFound, Conflict,
        Forbidden and InvalidInput.
        """
        ...

    async def undo_files(self, card: CardId, by: Asker) -> str:
        """Restore the files that a discarded card's turn changed. Return the text for the person.

        Raises NotFound, Forbidden, Conflict, and InvalidInput if nothing can be restored.
        """
        ...

    async def listens(self, thread: ThreadId) -> Listen:
        """Return which messages are answered in the thread's channel. Raises StoreError."""
        ...

    async def react(self, reaction: Reaction) -> str:
        """Handle an emoji on one of the agent's messages.

        Return the text for the person, or an empty string. Raises StoreError.
        """
        ...

    async def command(self, asked: CommandRequest) -> str:
        """Run a slash command once per key. Return the answer in Markdown, or an empty string. Raises StoreError."""
        ...

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        """Return completions for a partly typed command argument. Empty for people without access."""
        ...

    async def thread_of(self, channel: str, message_id: str, key: str = "") -> ThreadId | None:
        """Return the thread of a message: one of the agent's by its id, or a person's prompt by its key.

        `channel` is `PLATFORM:CHANNEL:`, the prefix of the thread ids in that channel. Raises StoreError.
        """
        ...


@runtime_checkable
class ChannelHost(Protocol):
    """An adapter whose platform allows bots to create channels."""

    async def create_channel(self, name: str, beside: str = "") -> str:
        """Create a channel in the same server or team as `beside`, and return its id. Raises PlatformError."""
        ...

    async def has_channel(self, channel: str) -> bool:
        """Return whether the channel exists and the bot may write to it. Raises PlatformError if that is unknown."""
        ...


class ChatAdapter(Protocol):
    """One account on a chat platform."""

    @property
    def platform(self) -> str:
        """First part of the account's thread ids."""
        ...

    @property
    def limits(self) -> ChatLimits:
        """Capabilities of the platform."""
        ...

    async def run(self, inbox: InboxPort) -> None:
        """Receive messages until cancelled, reconnecting with backoff."""
        ...

    async def post(self, post: OutboundPost) -> str:
        """Post a message and return the platform's id for it. Raises PlatformError."""
        ...

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message. Raises PlatformError."""
        ...

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show the agent's status, phrased to follow its name.

        An empty status clears it. The caller ignores failures.
        """
        ...

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel and return the thread that the post opens.

        `key` is as in OutboundPost. Raises PlatformError.
        """
        ...

    def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Yield the platform's messages in a thread, or in a channel outside of threads (WHOLE_CHANNEL), oldest first.

        Raises PlatformError.
        """
        ...


ROLES_SECONDS = 60.0
"""Maximum age of a person's cached roles, in seconds."""


@runtime_checkable
class KnowsRoles(Protocol):
    """An adapter whose platform reports a person's current roles."""

    async def roles_of(self, channel: str, user: str) -> tuple[str, ...]:
        """Return a member's roles in the channel, at most ROLES_SECONDS old. Raises PlatformError."""
        ...


@runtime_checkable
class OwnerNotifier(Protocol):
    """An adapter that can notify the owner. The app assigns `notify_owner`."""

    notify_owner: Callable[[str], Awaitable[None]]


# ---- settings ----

ONCE = "once"
"""Settings scope for work that is done once per key and cannot recur after `bookkeeping_days`.

A value begins with its time in microseconds, and expires like an accepted message.
"""


def channel_names(platform: str) -> str:
    """Return the settings scope of a platform's group names by channel id."""
    return f"channel_names:{platform}"


class Settings(Protocol):
    """Storage for small durable values by scope, for example a platform's polling offset or the last active channel."""

    async def get(self, scope: str, key: str) -> str | None:
        """Return the value, or None if it is not set."""
        ...

    async def put(self, scope: str, key: str, value: str) -> None:
        """Set the value."""
        ...

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Set the value if the current value is `expected` (None if not set). Returns False otherwise."""
        ...

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Return keys and values of a scope in key order, at most `limit` after the key `after`."""
        ...

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Delete the value if it is `expected`. Returns False otherwise."""
        ...


# ---- engine and live events ----

SignalKind: TypeAlias = Literal["steer", "abort", "decision"]


class ThreadHandler(Protocol):
    """The work that an engine schedules, implemented by the orchestrator."""

    async def advance(self, thread: ThreadId) -> None:
        """Run the thread's work until nothing is left or it waits for a person."""
        ...

    def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Tell a turn in this process that the thread's rows have changed. Does not block."""
        ...


class Engine(Protocol):
    """Schedules threads: decides which worker advances which thread."""

    @property
    def running(self) -> int:
        """Number of threads being advanced in this process."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether the engine accepts work now."""
        ...

    async def started(self) -> None:
        """Wait until the engine first accepts work."""
        ...

    async def confirm(self, thread: ThreadId) -> None:
        """Check that this process still advances the thread. Call it before work that another process must not repeat.

        Raises StaleEpoch if another process has the thread, and StoreError if that is unknown.
        """
        ...

    async def wake(self, thread: ThreadId) -> None:
        """Make `advance(thread)` run soon. Several wakes before it starts count as one.

        A wake while it runs makes it run once more. At most one `advance` runs per thread.
        """
        ...

    async def woken(self, thread: ThreadId) -> None:
        """Wake the thread after a transaction that created work, unless the transaction did so itself."""
        ...

    async def signal(self, thread: ThreadId, kind: SignalKind, turn: TurnId) -> None:
        """Tell the worker that advances the thread that a row of this turn changed."""
        ...

    async def run(self, handler: ThreadHandler) -> None:
        """Run the scheduled work until drained or cancelled."""
        ...

    async def drain(self, seconds: float) -> None:
        """Stop accepting work, let running turns continue for `seconds`, then cancel them.

        They continue at the next start.
        """
        ...


class LiveHub(Protocol):
    """Publishes live events to subscribers in this process."""

    def publish(self, events: Sequence[Event]) -> None:
        """Publish journal events that are now durable."""
        ...

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        """Publish a live event. Cheap if nobody subscribes."""
        ...

    def watched(self, thread: ThreadId) -> bool:
        """Return whether anyone watches this thread."""
        ...


Completion: TypeAlias = Callable[[ThreadId, TurnId, str], Awaitable[None]]
"""Callback for embedding programs. Receives the thread, turn and reply of a finished turn."""
