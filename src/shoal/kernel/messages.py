"""What people send in, and what goes to and comes back from a model."""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from operator import add
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId, thread_address
from shoal.kernel.permissions import Asker, Audience, Trust
from shoal.kernel.untrusted import FORWARDED, QUOTED

# ---- inbound: from a person, a trigger, the API or another agent ----


class PlatformUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody as their platform names them. Never taken from a model's words."""

    id: str
    name: str = ""
    roles: tuple[str, ...] = ()
    is_bot: bool = False


class Author(PlatformUser, frozen=True, omit_defaults=True, kw_only=True):
    """Who wrote a message. An adapter says `trusted=False`; only `threads/access_gate.py` raises it."""

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
    """A file that came with a message. `path` is where it was stored, empty while it was not downloaded, and `inside`
    how the agent's tools and commands know that.

    `error` says what is wrong with it, for people and the model; `excerpt` is the beginning of a text file; `shown` is
    a smaller copy of an image, where the model gets that; `words` is what a recording says. `author` is who it is of,
    where that is not who wrote the message: somebody whom that answers, quotes or passes on. `origin` is where its
    content comes from: "foreign" taints whoever sent it, "own" is the sender's own writing, empty where nobody said.
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
    inside: str = ""
    words: str = ""
    author: Author | None = None
    origin: Literal["", "own", "foreign"] = ""

    @property
    def tainted_by(self) -> str:
        """What is untrusted in it besides what its message is; empty when nothing is."""
        if self.author is not None and not self.author.trusted:
            return f"a file of {self.author.name or self.author.id or 'somebody unknown'}"
        return f"the file {self.name}" if self.origin == "foreign" else ""

    def sent_by(self, author: Author, *, mine: bool) -> "Attachment":
        """Return the attachment with its origin.

        It is "own" if its trusted sender claims it as `mine`, and for the sender's words in a recording. Otherwise it
        is "foreign", because people forward mails, pages and documents that others wrote.
        """
        whose = self.author or author
        if self.origin == "own" or not whose.trusted:
            return self
        is_own = (mine and whose.id == author.id) or self.media_type.startswith("audio/")
        return msgspec.structs.replace(self, origin="own" if is_own else "foreign")


UNTOLD = Author("", trusted=False)
"""Whoever deleted a message, where the platform does not say whose it was: it says that it is gone."""
REFERENCES_MAX = 12
"""Messages that one prompt refers to."""
REFERENCE_CHARS_MAX = 2_000
FORWARD_CHARS_MAX = 20_000
"""What is kept of each; who passes something on often says nothing besides."""


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that another one refers to, as the platform tells it; a file of it is a file of the prompt.

    `kind`: it is answered, quoted, passed on, opened the thread, or stands before it in the channel. `own`: the agent
    posted it. An adapter says `trusted=False` of its author, who has no id where nobody vouches for who it was.
    """

    kind: Literal["reply", "quote", "forward", "opening", "before"]
    text: str
    author: Author
    message_id: str = ""
    own: bool = False

    @property
    def tainted_by(self) -> str:
        """What is untrusted in it; empty when nothing is."""
        if self.author.trusted:
            return ""
        if self.own:
            return "an earlier answer"
        what = {"forward": FORWARDED, "quote": QUOTED}.get(self.kind, "a message")
        who = self.author.name or self.author.id
        return f"{what} of {who}" if who else what


def bounded(references: Sequence[Reference]) -> tuple[Reference, ...]:
    """Each of them once, the last REFERENCES_MAX, and of each as much as is kept."""
    found: dict[tuple[str, str], Reference] = {}
    for one in references:
        chars_max = FORWARD_CHARS_MAX if one.kind == "forward" else REFERENCE_CHARS_MAX
        text = one.text if len(one.text) <= chars_max else f"{one.text[:chars_max]}…"
        found[one.message_id or str(len(found)), one.kind] = msgspec.structs.replace(one, text=text)
    return tuple(found.values())[-REFERENCES_MAX:]


Origin: TypeAlias = Literal["person", "trigger", "system", "agent", "api", "staged"]

Judge: TypeAlias = Callable[["ThreadId", Author], Awaitable[Author]]
"""Gives somebody whose words were read in a thread's past the trust that the rules give them there."""


async def judged_files(thread: ThreadId, files: Sequence[Attachment], judge: Judge) -> tuple[Attachment, ...]:
    """The files, each trusted as whose it is; one of who sent it is so with its message."""
    return tuple(
        [
            msgspec.structs.replace(one, author=await judge(thread, one.author)) if one.author is not None else one
            for one in files
        ]
    )


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


class PromptScope(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who answers a message, who asks, where, and who reads along: resolved once, when the message is accepted.

    It travels with the message, in its inbox row and in `turn_started`, and everything later reads it there.

        fact                                        is of the time when
        ------------------------------------------  -----------------------------------------------------------
        `agent`: who answers, by name; empty for    the message was accepted: a channel that is bound to another
        the thread's agent, else the default        agent afterwards changes nothing for what waits
        `asker`: who wrote it, in which channel,    the same. Access, roles and trust are checked once more when the
        alone or in a group, their identities       turn opens or goes on (threads/presence.py): trust never rises
        `audience`: who reads along                 the same. Where that check found other roles or less trust, asker
                                                    and audience are resolved again with those
        not in here: the agent's file, the model    the turn opens
        and profile chosen for the place, the
        asker's time zone
    """

    agent: str
    asker: Asker
    audience: Audience


class AcceptedCalls(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls that a turn has staged, in order, each with the approval that lets it run, and who accepted them on the
    card."""

    card: CardId
    calls: tuple["ToolCall", ...] = ()
    approvals: tuple[ApprovalId, ...] = ()
    by: str = ""


class Prompt(msgspec.Struct, frozen=True, tag="prompt", tag_field="lane", omit_defaults=True):
    """A message that waits in the mailbox and starts a turn. `key` deduplicates it within its platform.

    `direct`: it was written to the agent alone, where nobody else reads along. `joins`: it answers one of the thread's
    own messages, so that a running turn takes it as a steer instead. `caller`: another turn's tool call sent it.
    `tainted_by` names what of its text comes from outside. `in_chat`: a person wrote it where people write in lines, so
    that it is answered with what else of theirs waits; `joined` are then the ids of the messages that stand before it.
    `refers_to` are the messages that it answers, quotes or passes on, or that stand before it. `edited_at` is when its
    author changed it last. `agent` is the one that the sender asks for, and `scope` what was resolved of that and of
    the author: None for what the store puts into a mailbox, whose turn resolves it. With `accepted` its turn asks no
    model and runs these calls.
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
    in_chat: bool = False
    joined: tuple[str, ...] = ()
    refers_to: tuple[Reference, ...] = ()
    edited_at: datetime | None = None
    scope: PromptScope | None = None
    accepted: AcceptedCalls | None = None

    @property
    def answered_by(self) -> str:
        """The agent that answers, as resolved or else as asked; empty for the thread's own, or the default one."""
        return self.agent if self.scope is None else self.scope.agent


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
    """End the running turn now, or keep what its author has just said from beginning one; with `turn` only that one.
    `all_queued` also empties the mailbox."""

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

    `key` is that of the prompt that is meant. `tainted_by` names what of the text is somebody else's. `at` is when they
    changed it: one that is older than what is known changes nothing.
    """

    thread: ThreadId
    key: str
    text: str
    author: Author
    message_id: str = ""
    tainted_by: str = ""
    at: datetime | None = None


class Deletion(msgspec.Struct, frozen=True, tag="deletion", tag_field="lane", omit_defaults=True):
    """A message was deleted, by its author or by UNTOLD: a prompt that still waits is dropped, else it is journaled."""

    thread: ThreadId
    key: str
    author: Author
    message_id: str = ""


class Reaction(msgspec.Struct, frozen=True, tag="reaction", tag_field="lane", omit_defaults=True):
    """Somebody put an emoji to a message: on an approval's card it decides, a stop sign on what the running turn shows
    so far ends that turn. `trust` is raised by `threads/access_gate.py` alone."""

    thread: ThreadId
    emoji: str
    author: Author
    message_id: str = ""
    trust: Trust = "untrusted"


STOP_SIGNS = frozenset({"❌", "✖", "✖️", "🛑", "⛔", "⏹", "⏹️", "x", "octagonal_sign", "no_entry", "stop_button"})
"""Emojis, and the names some platforms give them, that end a turn."""
YES = frozenset({"👍", "✅", "✔", "+1", "thumbsup", "like", "white_check_mark", "heavy_check_mark"})
NO = frozenset({"👎", "❌", "✖", "-1", "thumbsdown", "x", "heavy_multiplication_x"})
"""The same, of those that allow and deny what a card asks."""
_LOOKS = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""What tells only how an emoji looks: as text or coloured, and the tone of its skin."""


def verdict_of(emoji: str) -> bool | None:
    """Whether an emoji allows or denies; None for all others."""
    name = _LOOKS.sub("", emoji).partition("::")[0]
    return True if name in YES else False if name in NO else None


Inbound: TypeAlias = Prompt | Steer | FollowUp | Abort | Retry | Edit | Deletion


class Receipt(msgspec.Struct, frozen=True):
    """The answer to `send`. `delivered` is for steer, follow-up, abort and retry: `turn` was open to take it.

    `answered`: it was a command. `answer` is what to tell its author.
    """

    status: Literal["accepted", "duplicate", "busy", "delivered", "dropped", "answered"]
    message_id: str = ""
    turn: str = ""
    answer: str = ""

    @property
    def delivered(self) -> bool:
        return self.status == "delivered"


# ---- the conversation with a model ----


class Image(msgspec.Struct, frozen=True):
    """An image for the model, by file; encoded when the request is built."""

    path: str
    media_type: str


MORE_TOOLS = "more_tools"
"""The tool that finds the tools which a model is not told of at once, and calls them for models that cannot by name."""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call the model asks for. `arguments` is the JSON text exactly as the model wrote it, maybe malformed.

    `wrapped`: the model wrote it as a call of MORE_TOOLS, and is shown it so again.
    """

    id: CallId
    name: str
    arguments: str
    wrapped: bool = False

    @property
    def written_name(self) -> str:
        """The name by which the model called it."""
        return MORE_TOOLS if self.wrapped else self.name

    @property
    def written_arguments(self) -> str:
        """What the model gave with that name."""
        if not self.wrapped:
            return self.arguments
        return f'{{"call":{msgspec.json.encode(self.name).decode()},"arguments":{self.arguments}}}'


class Opaque(msgspec.Struct, frozen=True):
    """What a provider wants back unchanged (signed thinking, encrypted reasoning). `kind` names the provider, its
    server and the model; no other gets it."""

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
    """The result of one call. `artifact` names the stored whole when `text` is an excerpt. `found` are the tools whose
    definitions `text` holds; `wrapped` is the call's."""

    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    artifact: str = ""
    found: tuple["ToolSpec", ...] = ()
    wrapped: bool = False

    @property
    def written_name(self) -> str:
        """The name by which the model made the call."""
        return MORE_TOOLS if self.wrapped else self.name


ModelMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
"""Compared by identity, so that a provider knows at once which of them it has written before."""


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model is told of a tool. `parameters` is a JSON Schema of type object, as JSON text."""

    name: str
    description: str
    parameters: str

    @property
    def definition(self) -> str:
        """What a model reads that looks it up, as one line of JSON."""
        name, description = (msgspec.json.encode(text).decode() for text in (self.name, self.description))
        return f'{{"name":{name},"description":{description},"parameters":{self.parameters}}}'


class ModelRequest(msgspec.Struct, frozen=True):
    """One call of a model. `system` and `tools` are its stable prefix; `tool_choice` "none" forbids calls.

    `further` are callable tools that are not sent; the model finds them with MORE_TOOLS. Other conversations share the
    first `shared_chars` of `system`; 0 means all of it.
    """

    model: str
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    cache_key: str = ""
    tool_choice: Literal["auto", "none"] = "auto"
    further: tuple[ToolSpec, ...] = ()
    shared_chars: int = 0


TOKENS_MAX = 1_000_000_000
"""More than any window holds; of a call that is said to have taken more, so many are counted."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of model calls. `input_tokens` includes the cached ones. `estimated`: for how many of the calls the
    provider reported no usable numbers, so that some of these are estimates."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def bounded(self) -> "Usage":
        """The same, each number from 0 to TOKENS_MAX."""
        return Usage(*(min(max(count, 0), TOKENS_MAX) for count in msgspec.structs.astuple(self)))


SILENT = "[SILENT]"
"""An answer of exactly this posts nothing."""

StopReason: TypeAlias = Literal["end", "tool_calls", "max_tokens", "refusal", "aborted"]
FailureKind: TypeAlias = Literal[
    "rate_limited", "overloaded", "server_error", "unreachable", "dropped", "timeout", "quota",
    "auth", "invalid_request", "too_large", "context_overflow", "content_filter",
]  # fmt: skip

RETRYABLE: frozenset[FailureKind] = frozenset(
    {"rate_limited", "overloaded", "server_error", "unreachable", "dropped", "timeout"}
)
"""Failures after which the same request may succeed; `quota` and `auth` only help with another provider."""


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    text: str


class ModelDone(msgspec.Struct, frozen=True):
    """The model's whole answer, always the last event of a successful stream. `notes` are sentences for people about
    parts of the conversation that the model did not receive."""

    message: AssistantMessage
    stop: StopReason
    usage: Usage = Usage()
    thinking: str = ""
    model: str = ""
    notes: tuple[str, ...] = ()


class ModelFailed(msgspec.Struct, frozen=True):
    """A failed call, always the last event of a failed stream. `message` is for a person and contains no secrets.

    If the conversation is too long, `window_tokens` is the model's window, if the provider states it. `partial` is the
    text that had arrived.
    """

    kind: FailureKind
    message: str
    retry_after_seconds: float | None = None
    window_tokens: int = 0
    partial: str = ""


ModelEvent: TypeAlias = TextDelta | ThinkingDelta | ModelDone | ModelFailed


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that a provider offers; 0 where a number is unknown."""

    id: str
    context_tokens: int = 0
    max_output_tokens: int = 0


# ---- lines ----
#
# What people write in lines: which messages that wait are answered together, by one turn.
#
# In a chat people send a thought in several messages. What one person has sent to a thread and is still waiting there
# is one turn; another person's words are never among them, and a person's own messages keep their order.
#
#     the next message of the same person       the turn that answers it
#     ---------------------------------------   ---------------------------------------------------------------
#     came from a chat, like those before       the one of their messages before it
#     came by the API, or from no person        one of its own
#     asks another agent or model, or they      one of its own, and those after it are not joined to those before
#     have other roles now
#     would be too much for one turn            the same
#
# Messages that refer to others bring these along.

LINES_MAX = 50
"""Messages that one turn answers."""
PAUSES_MAX = 10
"""How many pauses somebody who goes on writing is waited for."""
LINES_CHARS_MAX = 20_000
"""What they say together; a single message may be longer."""


class Waiting(msgspec.Struct, frozen=True):
    """What waits for a thread's next turn: `prompt`, and the messages that it joins as they were sent.

    `since` and `until` are when the first and the last of them were accepted, in microseconds. `is_all`: nothing else
    waits.
    """

    prompt: Prompt
    lines: tuple[Prompt, ...]
    since: int
    until: int
    is_all: bool = True


def pause_left(waiting: Waiting, before: Waiting | None, now: int, pause_seconds: float) -> float:
    """How many seconds to wait for further lines; `before` is what the thread answered last, `now` in microseconds.

    What begins something is answered at once. What follows other lines of the same person within the pause waits until
    they have paused, PAUSES_MAX pauses at most, and only while nobody else waits. So does a file or what is passed on,
    which seldom comes alone: platforms send the pictures of an album, and the words to it, one by one.
    """
    first = waiting.lines[0]
    follows = len(waiting.lines) > 1 or bool(first.attachments) or any(one.kind == "forward" for one in first.refers_to)
    if before is not None and before.lines[0].author.id == first.author.id:
        follows = follows or waiting.since - before.until <= pause_seconds * 1_000_000
    is_long = now - waiting.since >= PAUSES_MAX * pause_seconds * 1_000_000
    if not (first.in_chat and follows and waiting.is_all) or is_long:
        return 0.0
    return max(0.0, pause_seconds - abs(now - waiting.until) / 1_000_000)


def turns_of(prompts: Sequence[Prompt]) -> list[list[int]]:
    """The turns that answer what waits, in the order of their first messages; each names its messages by number."""
    turns: list[list[int]] = []
    newest: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        turn = newest.get(prompt.author.id)
        if turn is not None and _joins([prompts[one] for one in turn], prompt):
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
    """One message of several, which answers what the last one answered; itself where it is alone."""
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
        refers_to=bounded([one for line in lines for one in line.refers_to]),
    )
