"""Messages from people, and messages to and from a model."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from operator import add
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId, thread_address
from shoal.kernel.permissions import Asker, Audience, Trust
from shoal.kernel.untrusted import FORWARDED, QUOTED

# ---- inbound messages: from a person, a trigger, the API or another agent ----


class PlatformUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person, as the platform names them. Never taken from a model's text."""

    id: str
    name: str = ""
    roles: tuple[str, ...] = ()
    is_bot: bool = False


class Author(PlatformUser, frozen=True, omit_defaults=True, kw_only=True):
    """The author of a message. Adapters set `trusted=False`. Only `threads/access_gate.py` sets it to True."""

    trusted: bool

    def asker(self, thread: ThreadId, trust: Trust | None = None, *, direct: bool = True) -> Asker:
        """Return the author as the asker in a thread. `trust` overrides the level that follows from `trusted`."""
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
    """A file attached to a message."""

    name: str
    media_type: str = "application/octet-stream"
    size_bytes: int = 0
    url: str = ""
    path: str = ""
    """Local path. Empty until the file is downloaded."""
    digest: str = ""
    error: str = ""
    """Problem with the file, shown to people and to the model."""
    excerpt: str = ""
    """Beginning of the content of a text file."""
    shown: str = ""
    """Path of a smaller copy of an image, which the model receives instead of the original."""
    shown_type: str = ""
    inside: str = ""
    """Path that the agent's tools and commands use."""
    words: str = ""
    """Transcript of a recording."""
    author: Author | None = None
    """The other person who sent the file, if this message replies to, quotes or forwards that person's message."""
    origin: Literal["", "own", "foreign"] = ""
    """Origin of the content. Empty if unknown.

    `own`: written by the sender.
    `foreign`: written by someone else. Taints the turn.
    """

    @property
    def tainted_by(self) -> str:
        if self.author is not None and not self.author.trusted:
            return f"a file from {self.author.name or self.author.id or 'an unknown person'}"
        return f"the file {self.name}" if self.origin == "foreign" else ""

    def sent_by(self, author: Author, *, mine: bool) -> "Attachment":
        """Return the attachment with its origin.

        The origin is "own" for recordings, and for the sender's files if `mine` is set. It is "foreign" for all other
        files, because people forward emails, pages and documents that others wrote. A file from an untrusted author is
        returned unchanged.
        """
        whose = self.author or author
        if self.origin == "own" or not whose.trusted:
            return self
        is_own = (mine and whose.id == author.id) or self.media_type.startswith("audio/")
        return msgspec.structs.replace(self, origin="own" if is_own else "foreign")


UNTOLD = Author("", trusted=False)
"""Author of a deletion if the platform does not report who deleted the message."""
REFERENCES_MAX = 12
REFERENCE_CHARS_MAX = 2_000
FORWARD_CHARS_MAX = 20_000
"""Maximum length of a forwarded message, in characters. Larger than REFERENCE_CHARS_MAX, because people often forward a
message without adding text.
"""


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that another message refers to, as the platform reports it. Its files are added to the prompt.

    Adapters set `trusted=False` for the author. An unverified author has no id.
    """

    kind: Literal["reply", "quote", "forward", "opening", "before"]
    """Why the other message refers to this message.

    `reply`: it replies to this message.
    `quote`: it quotes this message.
    `forward`: it forwards this message.
    `opening`: this is the first message in its thread.
    `before`: this is the previous message in the channel.
    """
    text: str
    author: Author
    message_id: str = ""
    own: bool = False
    """Whether the agent posted the message."""

    @property
    def tainted_by(self) -> str:
        if self.author.trusted:
            return ""
        if self.own:
            return "an earlier answer"
        what = {"forward": FORWARDED, "quote": QUOTED}.get(self.kind, "a message")
        who = self.author.name or self.author.id
        return f"{what} of {who}" if who else what


def bounded(references: Sequence[Reference]) -> tuple[Reference, ...]:
    by_key: dict[tuple[str, str], Reference] = {}
    for reference in references:
        chars_max = FORWARD_CHARS_MAX if reference.kind == "forward" else REFERENCE_CHARS_MAX
        text = reference.text if len(reference.text) <= chars_max else f"{reference.text[:chars_max]}…"
        by_key[reference.message_id or str(len(by_key)), reference.kind] = msgspec.structs.replace(reference, text=text)
    return tuple(by_key.values())[-REFERENCES_MAX:]


Origin: TypeAlias = Literal["person", "trigger", "system", "agent", "api", "staged"]

Judge: TypeAlias = Callable[["ThreadId", Author], Awaitable[Author]]
"""Returns the author of an earlier message with the trust that the access rules assign."""


async def judged_files(thread: ThreadId, files: Sequence[Attachment], judge: Judge) -> tuple[Attachment, ...]:
    """Replace each file's author with the author that `judge` returns. Files without an author are unchanged."""
    return tuple(
        [
            msgspec.structs.replace(attachment, author=await judge(thread, attachment.author))
            if attachment.author is not None
            else attachment
            for attachment in files
        ]
    )


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tool call in another thread that sent a prompt, and the limits that apply to the prompt's turn."""

    line: tuple[tuple[ThreadId, TurnId], ...]
    """Calling turns as (thread, turn), from the root to the direct caller."""
    call_id: CallId
    mode: Literal["wait", "tell", "wake"]
    """How the caller receives the result.

    `wait`: waits for it.
    `tell`: gets a note.
    `wake`: gets a message that starts a turn.
    """
    author: Author
    """The person who asked for the root turn."""
    tainted_by: str
    """Names of untrusted content that the calling turn has read."""
    bounds: tuple[tuple[str, str], ...] = ()
    """Further (profile, agent) pairs that limit the turn, in addition to the agent's own profile."""
    tools: tuple[str, ...] | None = None
    """Names of the only tools that the turn may use. None means no limit."""
    steps_max: int = 25
    gates: bool = True
    """Whether effects that untrusted content could control need approval."""
    direct: bool = False
    """True if only the author and the agent can read the root thread."""
    audience: Audience = Audience()

    @property
    def thread(self) -> ThreadId:
        return self.line[-1][0]

    @property
    def turn(self) -> TurnId:
        return self.line[-1][1]

    @property
    def root(self) -> ThreadId:
        return self.line[0][0]

    @property
    def depth(self) -> int:
        return len(self.line)


class PromptScope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The agent, the asker and the audience of a message.

    The scope is resolved once, when the message is accepted. It is stored in the message's inbox row and in
    `turn_started`, and later code reads it there.

        field        meaning                                     later changes
        ----------   -----------------------------------------   ------------------------------------------------------
        `agent`      Name of the answering agent. Empty means    Binding the channel to another agent does not affect
                     the thread's or the default agent.          messages that are waiting.
        `asker`      Author, channel, kind of conversation and   Access, roles and trust are checked again when the
                     linked identities.                          turn opens or continues (threads/presence.py). Trust
                                                                 never rises.
        `audience`   Limits on what the turn may see, based      If that check finds other roles or less trust, asker
                     on the asker and the readers.               and audience are resolved again.

    The agent's file, the model and profile of the channel, and the asker's time zone are resolved when the turn opens.
    """

    agent: str
    asker: Asker
    audience: Audience


class AcceptedCalls(msgspec.Struct, frozen=True, omit_defaults=True):
    """Staged calls that a person accepted, in order.

    `approvals` contains the approval of each call. `by` is the person who accepted them on the card.
    """

    card: CardId
    calls: tuple["ToolCall", ...] = ()
    approvals: tuple[ApprovalId, ...] = ()
    by: str = ""


class Prompt(msgspec.Struct, frozen=True, tag="prompt", tag_field="lane", omit_defaults=True):
    """A message in a thread's mailbox that starts a turn."""

    thread: ThreadId
    key: str
    """Deduplication key, unique within the platform."""
    text: str
    author: Author
    at: datetime
    attachments: tuple[Attachment, ...] = ()
    agent: str = ""
    """Name of the agent that the sender requested."""
    model: str = ""
    reply_to: str = ""
    message_id: str = ""
    origin: Origin = "person"
    history: bool = True
    direct: bool = False
    """True if the agent is the only recipient of the prompt."""
    joins: bool = False
    """True if the prompt replies to a message that the agent posted. A running turn then receives the prompt as a
    steer.
    """
    caller: Caller | None = None
    tainted_by: str = ""
    in_chat: bool = False
    """True if a person wrote the prompt in a chat. One turn then answers the prompt and all other waiting messages of
    that person.
    """
    joined: tuple[str, ...] = ()
    """Ids of earlier messages whose text the prompt includes."""
    refers_to: tuple[Reference, ...] = ()
    edited_at: datetime | None = None
    scope: PromptScope | None = None
    """Resolved scope. None for prompts that the store creates, whose scope the turn resolves."""
    accepted: AcceptedCalls | None = None
    """Staged calls that a person allowed. If set, the prompt's turn runs these calls instead of calling a model."""

    @property
    def answered_by(self) -> str:
        return self.agent if self.scope is None else self.scope.agent


class Steer(msgspec.Struct, frozen=True, tag="steer", tag_field="lane", omit_defaults=True):
    """A message for the running turn. The model sees it before its next call."""

    thread: ThreadId
    key: str
    text: str
    author: Author
    at: datetime


class FollowUp(msgspec.Struct, frozen=True, tag="follow_up", tag_field="lane", omit_defaults=True):
    """A message that is added to the running turn when the turn would otherwise end."""

    thread: ThreadId
    key: str
    text: str
    author: Author
    at: datetime


class Abort(msgspec.Struct, frozen=True, tag="abort", tag_field="lane", omit_defaults=True):
    """A request to stop the running turn. If `turn` is set, only that turn is stopped.

    If no turn is open, the author's messages that the next turn would answer are dropped. `all_queued` also empties
    the mailbox.
    """

    thread: ThreadId
    author: Author
    all_queued: bool = False
    turn: str = ""


class Retry(msgspec.Struct, frozen=True, tag="retry", tag_field="lane", omit_defaults=True):
    """A request to stop waiting for the model and to retry now.

    If `turn` is set, the request applies only to that turn. `model` selects another model.
    """

    thread: ThreadId
    author: Author
    turn: str = ""
    model: str = ""


class Edit(msgspec.Struct, frozen=True, tag="edit", tag_field="lane", omit_defaults=True):
    """An author's edit of a message.

    If the message is waiting in the mailbox, the prompt is replaced. Otherwise the edit is journaled.
    """

    thread: ThreadId
    key: str
    """Key of the edited prompt."""
    text: str
    author: Author
    message_id: str = ""
    tainted_by: str = ""
    at: datetime | None = None
    """Time of the edit. An edit that is older than the latest one is ignored."""


class Deletion(msgspec.Struct, frozen=True, tag="deletion", tag_field="lane", omit_defaults=True):
    """A deletion of a message by its author, or by UNTOLD if the platform does not report who deleted it.

    If the message is waiting in the mailbox, the prompt is dropped. Otherwise the deletion is journaled.
    """

    thread: ThreadId
    key: str
    author: Author
    message_id: str = ""


class Reaction(msgspec.Struct, frozen=True, tag="reaction", tag_field="lane", omit_defaults=True):
    """An emoji reaction to a message.

    On an approval card, the emoji allows or denies the calls. On the preview of a running turn, a stop sign stops the
    turn. Only `threads/access_gate.py` increases `trust`.
    """

    thread: ThreadId
    emoji: str
    author: Author
    message_id: str = ""
    trust: Trust = "untrusted"


STOP_SIGNS = frozenset({"❌", "✖", "✖️", "🛑", "⛔", "⏹", "⏹️", "x", "octagonal_sign", "no_entry", "stop_button"})
"""Emojis that stop a turn, and their names on some platforms."""
YES = frozenset({"👍", "✅", "✔", "+1", "thumbsup", "like", "white_check_mark", "heavy_check_mark"})
NO = frozenset({"👎", "❌", "✖", "-1", "thumbsdown", "x", "heavy_multiplication_x"})
"""Emojis that allow (YES) or deny (NO) a call, and their names on some platforms."""
_LOOKS = lazy_re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""Variation selectors and skin tones, which do not change the meaning of an emoji."""


def verdict_of(emoji: str) -> bool | None:
    """Return True for an emoji that allows, False for an emoji that denies, and None for all others."""
    name = _LOOKS.sub("", emoji).partition("::")[0]
    return True if name in YES else False if name in NO else None


def means_always(emoji: str) -> bool:
    return _LOOKS.sub("", emoji).partition("::")[0] in ("♾", "infinity")


def is_instruction(emoji: str) -> bool:
    """Return True if the emoji answers an approval request or stops a turn. All other emojis have no effect."""
    return verdict_of(emoji) is not None or means_always(emoji) or emoji in STOP_SIGNS


Inbound: TypeAlias = Prompt | Steer | FollowUp | Abort | Retry | Edit | Deletion


class Receipt(msgspec.Struct, frozen=True):
    """The result of sending a message to a thread."""

    status: Literal["accepted", "duplicate", "busy", "delivered", "dropped", "answered"]
    """Result of sending the message.

    `delivered`: the turn `turn` was open and received the steer, follow-up, abort or retry.
    `answered`: the message was a command.
    """
    message_id: str = ""
    turn: str = ""
    answer: str = ""
    """Text shown to the author of the message."""

    @property
    def delivered(self) -> bool:
        return self.status == "delivered"


# ---- the conversation with a model ----


class Image(msgspec.Struct, frozen=True):
    """An image file for the model. The file is read when the request is built."""

    path: str
    media_type: str


MORE_TOOLS = "more_tools"
"""Name of the tool that finds deferred tools. Models that cannot call a deferred tool by name call it through this
tool.
"""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that the model requested.

    If `wrapped` is True, the model wrote the call as a call to MORE_TOOLS. The call is sent back to the model in that
    form.
    """

    id: CallId
    name: str
    arguments: str
    """JSON text exactly as the model wrote it, which may be invalid."""
    wrapped: bool = False

    @property
    def written_name(self) -> str:
        return MORE_TOOLS if self.wrapped else self.name

    @property
    def written_arguments(self) -> str:
        if not self.wrapped:
            return self.arguments
        return f'{{"call":{msgspec.json.encode(self.name).decode()},"arguments":{self.arguments}}}'


class Opaque(msgspec.Struct, frozen=True):
    """Data that a provider requires back unchanged, such as signed thinking or encrypted reasoning.

    `kind` names the provider, server and model that sent the data. The data is returned only to them.
    """

    kind: str
    json: str


class UserMessage(msgspec.Struct, frozen=True, tag="user", tag_field="role", weakref=True, eq=False):
    text: str
    images: tuple[Image, ...] = ()


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", tag_field="role", weakref=True, eq=False):
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    opaque: Opaque | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag="tool", tag_field="role", weakref=True, eq=False):
    """The result of a tool call, as the model receives it."""

    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    artifact: str = ""
    """Digest of the full result, if `text` is only an excerpt."""
    found: tuple["ToolSpec", ...] = ()
    """Tools whose definitions `text` contains."""
    wrapped: bool = False
    """True if the model wrote the call as a call to MORE_TOOLS."""

    @property
    def written_name(self) -> str:
        return MORE_TOOLS if self.wrapped else self.name


ModelMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
"""A message in the model's context. Messages are compared by identity, so providers can cache encoded messages."""


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool's definition for the model. `parameters` is JSON text: a JSON Schema of type object."""

    name: str
    description: str
    parameters: str

    @property
    def definition(self) -> str:
        name, description = (msgspec.json.encode(text).decode() for text in (self.name, self.description))
        return f'{{"name":{name},"description":{description},"parameters":{self.parameters}}}'


class ModelRequest(msgspec.Struct, frozen=True):
    """One request to a model. `system` and `tools` are the prefix that stays the same from call to call."""

    model: str
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    cache_key: str = ""
    tool_choice: Literal["auto", "none"] = "auto"
    """`none` prevents tool calls."""
    further: tuple[ToolSpec, ...] = ()
    """Tools that the model can call although the request omits their definitions. The model finds them with MORE_TOOLS.
    """
    shared_chars: int = 0
    """Number of characters at the beginning of `system` that are the same in other conversations. 0 means all
    characters.
    """


TOKENS_MAX = 1_000_000_000
"""Maximum token count accepted from a provider, larger than any context window. Higher counts are reduced to this
value.
"""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token counts of model calls. `input_tokens` includes cached tokens.

    `estimated` is the number of calls for which Shoal estimated the counts, because the provider reported none.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def bounded(self) -> "Usage":
        return Usage(*(min(max(count, 0), TOKENS_MAX) for count in msgspec.structs.astuple(self)))


SILENT = "[SILENT]"
"""An answer that consists of exactly this text is not posted."""

StopReason: TypeAlias = Literal["end", "tool_calls", "max_tokens", "refusal", "aborted"]
FailureKind: TypeAlias = Literal[
    "rate_limited", "overloaded", "server_error", "unreachable", "dropped", "timeout", "quota",
    "auth", "invalid_request", "too_large", "context_overflow", "content_filter",
]  # fmt: skip

RETRYABLE: frozenset[FailureKind] = frozenset(
    {"rate_limited", "overloaded", "server_error", "unreachable", "dropped", "timeout"}
)
"""Failures after which a retry of the same request may succeed. Excludes `quota` and `auth`, because only another
provider can help.
"""


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    text: str


class ModelDone(msgspec.Struct, frozen=True):
    """The model's complete answer. Every successful stream ends with it.

    `notes` are sentences for people about parts of the conversation that the model did not receive.
    """

    message: AssistantMessage
    stop: StopReason
    usage: Usage = Usage()
    thinking: str = ""
    model: str = ""
    notes: tuple[str, ...] = ()


class ModelFailed(msgspec.Struct, frozen=True):
    """A failed model call. Every failed stream ends with it."""

    kind: FailureKind
    message: str
    """Error message for people, without secrets."""
    retry_after_seconds: float | None = None
    window_tokens: int = 0
    """Context window that the provider reports if the conversation is too long, in tokens. 0 if not reported."""
    partial: str = ""


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ModelDone | ModelFailed


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that a provider offers. A token limit of 0 means unknown."""

    id: str
    context_tokens: int = 0
    max_output_tokens: int = 0


# ---- consecutive messages ----
# People often split a thought into several messages. One turn therefore answers all waiting chat messages of a person
# in a thread. Messages keep their order and are never joined with messages of another person.
# A message starts a separate turn, and later messages are not joined to earlier ones, in these cases:
# - It did not come from a chat.
# - It requests another agent or model, or the person's roles have changed.
# - The turn would have more than LINES_MAX messages or LINES_CHARS_MAX characters.

LINES_MAX = 50
PAUSES_MAX = 10
"""Maximum wait for a person who keeps sending messages, as a multiple of `pause_seconds`."""
LINES_CHARS_MAX = 20_000
"""Maximum total length of joined messages, in characters. A single message may be longer."""


class Waiting(msgspec.Struct, frozen=True):
    """Messages that wait for a thread's next turn.

    `since` and `until` are the times at which the first and the last message were accepted, in microseconds.
    """

    prompt: Prompt
    """Prompt for the turn, which joins the messages in `lines`."""
    lines: tuple[Prompt, ...]
    since: int
    until: int
    is_all: bool = True
    """True if these are all the waiting messages."""


def pause_left(waiting: Waiting, before: Waiting | None, now: int, pause_seconds: float) -> float:
    """Return the seconds to wait for further messages before a turn starts for these messages.

    `before` holds the messages that were answered last. `now` is in microseconds.

    A single text message is answered immediately. If a person sends several messages in a row, the turn waits until
    they have paused for `pause_seconds`. It waits for at most PAUSES_MAX pauses, and only while nobody else is waiting.
    A message with files or a forwarded message also waits, because platforms send the pictures and the text of an album
    separately.
    """
    first = waiting.lines[0]
    follows = (
        len(waiting.lines) > 1
        or bool(first.attachments)
        or any(reference.kind == "forward" for reference in first.refers_to)
    )
    if before is not None and before.lines[0].author.id == first.author.id:
        follows = follows or waiting.since - before.until <= pause_seconds * 1_000_000
    is_long = now - waiting.since >= PAUSES_MAX * pause_seconds * 1_000_000
    if not (first.in_chat and follows and waiting.is_all) or is_long:
        return 0.0
    return max(0.0, pause_seconds - abs(now - waiting.until) / 1_000_000)


def turns_of(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Group waiting messages into turns, ordered by the first message of each turn.

    Each turn is a list of indexes into `prompts`.
    """
    turns: list[list[int]] = []
    newest: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        turn = newest.get(prompt.author.id)
        if turn is not None and _joins([prompts[number] for number in turn], prompt):
            turn.append(number)
        else:
            newest[prompt.author.id] = [number]
            turns.append(newest[prompt.author.id])
    return turns


def _joins(lines: Sequence[Prompt], prompt: Prompt) -> bool:
    first = lines[0]
    return (
        first.in_chat
        and prompt.in_chat
        and (first.author, first.agent, first.scope, first.model)
        == (prompt.author, prompt.agent, prompt.scope, prompt.model)
        and (first.direct, first.history, first.origin) == (prompt.direct, prompt.history, prompt.origin)
        and len(lines) < LINES_MAX
        and sum(len(line.text) for line in lines) + len(prompt.text) <= LINES_CHARS_MAX
    )


def joined(lines: Sequence[Prompt]) -> Prompt:
    """Join messages into one prompt, which keeps only the last reply reference. A single message is returned
    unchanged.
    """
    first, *rest = lines
    if not rest:
        return first
    return msgspec.structs.replace(
        first,
        text="\n".join(line.text for line in lines if line.text),
        attachments=tuple(file for line in lines for file in line.attachments),
        reply_to=next((line.reply_to for line in reversed(lines) if line.reply_to), ""),
        message_id=lines[-1].message_id or lines[-1].key,
        tainted_by=next((line.tainted_by for line in lines if line.tainted_by), ""),
        joined=tuple(line.message_id or line.key for line in lines[:-1]),
        refers_to=bounded([reference for line in lines for reference in line.refers_to]),
    )
