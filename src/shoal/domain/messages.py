"""What people send in, and what goes to and comes back from a model."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.ids import CallId, ThreadId, TurnId, thread_address
from shoal.domain.permissions import Asker, Audience, Trust

# ---- inbound: from a person, a trigger, the API or another agent ----


class PlatformUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody as their platform names them. Never taken from a model's words."""

    id: str
    name: str = ""
    roles: tuple[str, ...] = ()
    is_bot: bool = False


class Author(PlatformUser, frozen=True, omit_defaults=True, kw_only=True):
    """Who wrote a message. An adapter says `trusted=False`; only `actors/access_gate.py` raises it."""

    trusted: bool

    def asker(self, thread: ThreadId, trust: Trust | None = None, *, direct: bool = True) -> Asker:
        """The author as whoever asks in this thread; `trust` where more is known of that than `trusted` says."""
        address = thread_address(thread)
        return Asker(
            trust=trust or ("trusted" if self.trusted else "untrusted"),
            user=self.id,
            name=self.name,
            roles=self.roles,
            platform=address.platform,
            channel=address.channel,
            kind="direct" if direct else "group",
        )


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that came with a message. `path` is where it was stored, empty while it was not downloaded.

    `error` says what is wrong with it, for people and the model; `excerpt` is the beginning of a text file; `shown` is
    a smaller copy of an image, where the model gets that.
    """

    name: str
    media_type: str = "application/octet-stream"
    size_bytes: int = 0
    url: str = ""
    path: str = ""
    digest: str = ""
    error: str = ""
    excerpt: str = ""
    shown: str = ""
    shown_type: str = ""


Origin: TypeAlias = Literal["person", "trigger", "system", "agent", "api"]


Judge: TypeAlias = Callable[["ThreadId", Author], Awaitable[Author]]
"""Gives somebody whose words were read in a thread's past the trust that the rules give them there."""


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tool call of another thread's turn that a prompt comes from, and what its own turn may do at most.

    `line` are the turns above it, (thread, turn), the root first and the caller last; `bounds` are (profile, agent) of
    each that bounds more than the agent's own does; `tools` are the only ones it may use, None for no such bound.
    `mode`: the caller waits for the result, is told of it by a note, or is woken by it for a turn. `author` is the
    person at the root for whom all of it is done, `direct` where nobody else reads along; `tainted_by` names the
    untrusted content that the calling turn had seen, `audience` is how far it saw; `gates`: what such content could
    steer is asked for.
    """

    line: tuple[tuple[ThreadId, TurnId], ...]
    call_id: CallId
    mode: Literal["wait", "tell", "wake"]
    author: Author
    tainted_by: str
    bounds: tuple[tuple[str, str], ...] = ()
    tools: tuple[str, ...] | None = None
    steps_max: int = 25
    gates: bool = True
    direct: bool = False
    audience: Audience = Audience()

    @property
    def thread(self) -> ThreadId:
        return self.line[-1][0]

    @property
    def turn(self) -> TurnId:
        return self.line[-1][1]

    @property
    def root(self) -> ThreadId:
        """The conversation with people that all of it is for."""
        return self.line[0][0]

    @property
    def depth(self) -> int:
        return len(self.line)


class Prompt(msgspec.Struct, frozen=True, tag="prompt", tag_field="lane", omit_defaults=True):
    """A message that waits in the mailbox and starts a turn. `key` deduplicates it within its platform.

    `direct`: it was written to the agent alone, where nobody else reads along. `joins`: it answers one of the thread's
    own messages, so that a running turn takes it as a steer instead. `caller`: another turn's tool call sent it.
    `tainted_by` names what of its text comes from outside.
    """

    thread: ThreadId
    key: str
    text: str
    author: Author
    at: datetime
    attachments: tuple[Attachment, ...] = ()
    agent: str = ""
    model: str = ""
    reply_to: str = ""
    message_id: str = ""
    origin: Origin = "person"
    history: bool = True
    direct: bool = False
    joins: bool = False
    caller: Caller | None = None
    tainted_by: str = ""


class Steer(msgspec.Struct, frozen=True, tag="steer", tag_field="lane", omit_defaults=True):
    """A message for the running turn: it skips what is left of the step."""

    thread: ThreadId
    key: str
    text: str
    author: Author
    at: datetime


class FollowUp(msgspec.Struct, frozen=True, tag="follow_up", tag_field="lane", omit_defaults=True):
    """A message for the running turn that waits until the turn would end."""

    thread: ThreadId
    key: str
    text: str
    author: Author
    at: datetime


class Abort(msgspec.Struct, frozen=True, tag="abort", tag_field="lane", omit_defaults=True):
    """End the running turn now; with `turn` only that one. `all_queued` also empties the mailbox."""

    thread: ThreadId
    author: Author
    all_queued: bool = False
    turn: str = ""


class Retry(msgspec.Struct, frozen=True, tag="retry", tag_field="lane", omit_defaults=True):
    """Have the turn that waits for its model ask again now; with `turn` only that one, with `model` another model."""

    thread: ThreadId
    author: Author
    turn: str = ""
    model: str = ""


class Edit(msgspec.Struct, frozen=True, tag="edit", tag_field="lane", omit_defaults=True):
    """Somebody changed what they had written: a prompt that still waits is replaced, else the change is journaled.

    `key` is that of the prompt that is meant. `tainted_by` names what of the text is somebody else's.
    """

    thread: ThreadId
    key: str
    text: str
    author: Author
    message_id: str = ""
    tainted_by: str = ""


class Deletion(msgspec.Struct, frozen=True, tag="deletion", tag_field="lane", omit_defaults=True):
    """Somebody deleted what they had written: a prompt that still waits is dropped, else it is journaled."""

    thread: ThreadId
    key: str
    author: Author
    message_id: str = ""


class Reaction(msgspec.Struct, frozen=True, tag="reaction", tag_field="lane", omit_defaults=True):
    """Somebody put an emoji to a message; a stop sign on what the running turn shows so far ends that turn."""

    thread: ThreadId
    emoji: str
    author: Author
    message_id: str = ""


STOP_SIGNS = frozenset({"❌", "✖", "✖️", "🛑", "⛔", "⏹", "⏹️", "x", "octagonal_sign", "no_entry", "stop_button"})
"""Emojis, and the names some platforms give them, that end a turn."""

Inbound: TypeAlias = Prompt | Steer | FollowUp | Abort | Retry | Edit | Deletion | Reaction


class Receipt(msgspec.Struct, frozen=True):
    """The answer to `send`. `delivered` is for steer, follow-up, abort and retry: `turn` was open to take it."""

    status: Literal["accepted", "duplicate", "busy", "delivered", "dropped"]
    message_id: str = ""
    turn: str = ""

    @property
    def delivered(self) -> bool:
        """True when a running turn took it."""
        return self.status == "delivered"


# ---- the conversation with a model ----


class Image(msgspec.Struct, frozen=True):
    """An image for the model, by file; encoded when the request is built."""

    path: str
    media_type: str


class ToolCall(msgspec.Struct, frozen=True):
    """One call the model asks for. `arguments` is the JSON text exactly as the model wrote it, maybe malformed."""

    id: CallId
    name: str
    arguments: str


class Opaque(msgspec.Struct, frozen=True):
    """What a provider wants back unchanged (signed thinking, encrypted reasoning). `kind` is the provider's kind."""

    kind: str
    json: str


class UserMessage(msgspec.Struct, frozen=True, tag="user", tag_field="role", weakref=True, eq=False):
    """What the model reads as coming from the user's side."""

    text: str
    images: tuple[Image, ...] = ()


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", tag_field="role", weakref=True, eq=False):
    """What the model said, with all its tool calls."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    opaque: Opaque | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag="tool", tag_field="role", weakref=True, eq=False):
    """The result of one call. `artifact` names the stored whole when `text` is an excerpt."""

    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    artifact: str = ""


ModelMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
"""Compared by identity, so that a provider knows at once which of them it has written before."""


class ToolSpec(msgspec.Struct, frozen=True):
    """What a model is told of a tool. `parameters` is a JSON Schema of type object, as JSON text.

    `read_only` calls of one step may run together; an `idempotent` one in flight at a crash is run again;
    `runs_commands` ones start processes, which is asked for where no sandbox isolates them. One that `waits` may give
    its result later; such calls, one after the other in a step, wait together.
    """

    name: str
    description: str
    parameters: str
    read_only: bool = False
    idempotent: bool = False
    runs_commands: bool = False
    waits: bool = False


class ModelRequest(msgspec.Struct, frozen=True):
    """One call of a model. `system` and `tools` are its stable prefix; `tool_choice` "none" forbids calls."""

    model: str
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    cache_key: str = ""
    tool_choice: Literal["auto", "none"] = "auto"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one model call. `input_tokens` includes the cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


SILENT = "[SILENT]"
"""An answer of exactly this posts nothing."""

StopReason: TypeAlias = Literal["end", "tool_calls", "max_tokens", "refusal", "aborted"]
FailureKind: TypeAlias = Literal[
    "rate_limited", "overloaded", "unreachable", "dropped", "timeout", "quota",
    "auth", "invalid_request", "context_overflow", "content_filter",
]  # fmt: skip

RETRYABLE: frozenset[FailureKind] = frozenset({"rate_limited", "overloaded", "unreachable", "dropped", "timeout"})
"""Failures after which the same request may succeed; `quota` and `auth` only help with another provider."""


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """A piece of the model's visible reasoning."""

    text: str


class ModelDone(msgspec.Struct, frozen=True):
    """The model's whole answer; always the last event of a stream that succeeded."""

    message: AssistantMessage
    stop: StopReason
    usage: Usage = Usage()
    thinking: str = ""
    model: str = ""


class ModelFailed(msgspec.Struct, frozen=True):
    """The call failed; always the last event of a stream that did. `message` is for a person, without secrets."""

    kind: FailureKind
    message: str
    retry_after_seconds: float | None = None


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ModelDone | ModelFailed


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that a provider offers; 0 where a number is unknown."""

    id: str
    context_tokens: int = 0
    max_output_tokens: int = 0
