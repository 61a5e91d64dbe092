"""Events of a thread's journal. Each event type has its own record class."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import ClassVar, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from shoal.kernel.clock import iso
from shoal.kernel.errors import StoreNewer
from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.kernel.messages import (
    AcceptedCalls,
    Attachment,
    Author,
    Caller,
    FailureKind,
    Image,
    Opaque,
    Origin,
    Reference,
    StopReason,
    ToolCall,
    ToolSpec,
    Usage,
)
from shoal.kernel.permissions import ALONE, NO_COVERAGE, Asker, Audience, CardItem, Coverage

Outcome: TypeAlias = Literal["done", "aborted", "failed", "limit"]
Verdict: TypeAlias = Literal["allow", "deny", "expired", "cancelled"]
Scope: TypeAlias = Literal["once", "thread", "always"]


class UserSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message was added to the conversation by a person, a trigger, another agent or Shoal itself."""

    type: ClassVar[str] = "user_message"
    text: str
    author: Author
    message_id: str = ""
    origin: Origin = "person"
    attachments: tuple[Attachment, ...] = ()
    reply_to: str = ""
    backfill: bool = False
    """True for a missed or restored message that was added later. `said_at` is its original time."""
    said_at: datetime | None = None
    caller: Caller | None = None
    tainted_by: str = ""
    direct: bool = False
    """True if the agent is the only recipient of the message."""
    joined: tuple[str, ...] = ()
    """Ids of the author's earlier messages whose text is included in this message."""
    refers_to: tuple[Reference, ...] = ()


class TurnStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A turn started. `asker` is None if the turn could not be opened."""

    type: ClassVar[str] = "turn_started"
    agent: str
    model: str
    context: str = ""
    """Volatile context after the turn's user message. It is stored so that later requests repeat it unchanged."""
    history: bool = True
    system: str = ""
    """Digest of the turn's system text."""
    told: str = ""
    """Digest of the announced text: the system text with all changes that were reported to the model."""
    tainted_by: str = ""
    speaks: bool = False
    """Whether the answer is also spoken."""
    asker: Asker | None = None
    audience: Audience = Audience()


class RequestMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests of a model request. turn/replay.py rebuilds the request and compares it with these digests.

    `system`, `tools` and `options` are omitted if they have not changed.
    """

    after: int
    """Sequence number of the last event before the request was built."""
    count: int
    """Number of messages in the request."""
    digest: str
    """Combined digest of all messages in the request."""
    added: tuple[str, ...] = ()
    """Digests of the messages added since the previous request."""
    system: str = ""
    tools: str = ""
    options: str = ""
    room: tuple[int, int] | None = None
    """Token budgets for events and for excerpts of stored results. Set only if the request omits messages."""
    window_tokens: int = 0
    """Context window learned from a rejected request, in tokens. 0 if no window was learned."""


class AssistantSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model call finished with this text and these tool calls."""

    type: ClassVar[str] = "assistant_message"
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    stop: StopReason = "end"
    model: str = ""
    usage: Usage = Usage()
    thinking: str = ""
    opaque: Opaque | None = None
    tainted_by: str = ""
    asked: RequestMark | None = None
    """Digests of the request that produced the message. None only for messages outside turns, such as imported answers.
    """


class ToolStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A permitted call is about to run. `actions` lists everything that it runs."""

    type: ClassVar[str] = "tool_started"
    call_id: CallId
    name: str
    actions: tuple[str, ...] = ()


INTERRUPTED = "Interrupted: the outcome is unknown. Check before repeating."
"""Result of a call that was interrupted by a crash. Shoal does not repeat the call."""
STAGED_HEAD = "Staged, not done: "
"""Prefix of a staged call's result. The rest of the first line describes the effect of the call."""
ASK_INSTEAD = " Do not try it again; ask what to do instead."
ASK_OR_LOOK = " Find another way or ask the person."
"""Instructions for the model at the end of a denied call's result. People do not see them."""


class GivenLinks(msgspec.Struct, frozen=True, array_like=True):
    """URLs in a tool result that later calls may open.

    `site`: site that the page and all of these links belong to. Empty for search results.
    `addresses`: the URLs.
    """

    site: str = ""
    addresses: tuple[str, ...] = ()


class ToolFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call ended. Each call has exactly one result."""

    type: ClassVar[str] = "tool_result"
    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    artifact: str = ""
    """Digest of the full result, if `text` is only an excerpt. `artifact_bytes` is the size of the full result."""
    artifact_bytes: int = 0
    images: tuple[Image, ...] = ()
    duration_ms: int = 0
    tainted_by: str = ""
    answers: bool = False
    """True if the call has already sent the turn's answer to the person."""
    counts: bool = True
    """Whether the result counts toward `tool_errors_in_a_row_max`: an error increases the count, and a success resets
    it.

    False for errors that a steer, a person or a crash caused.
    """
    found: tuple[ToolSpec, ...] = ()
    """Tools that a search returned. Their definitions are appended to the text."""
    stopped: bool = False
    """Whether a person stopped the turn before the call ended."""
    exit_code: int = 0
    links: GivenLinks | None = None
    """URLs that a tainted turn may read without approval (`permissions.addresses`)."""
    staged: bool = False
    """True if the call has not run yet. A person decides on it after the turn has ended."""

    @property
    def is_interrupted(self) -> bool:
        return self.is_error and self.text.startswith(INTERRUPTED)

    @property
    def for_people(self) -> str:
        return self.text.removesuffix(ASK_INSTEAD).removesuffix(ASK_OR_LOOK) if self.is_error else self.text


class ToolResultShown(ToolFinished, frozen=True, omit_defaults=True):
    """A failed tool result, as the API shows it.

    `shown`: the text without instructions for the model. Empty if `text` has no instructions.
    `interrupted`: true if a crash interrupted the call.
    """

    shown: str = ""
    interrupted: bool = False


class Steered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message was added to the running turn."""

    type: ClassVar[str] = "steered"
    text: str
    author: Author
    message_id: str = ""


class Revised(msgspec.Struct, frozen=True, omit_defaults=True):
    """An author edited or deleted a message after its turn had started. The model sees the change with the next
    message.
    """

    type: ClassVar[str] = "revised"
    author: Author
    message_id: str = ""
    text: str = ""
    deleted: bool = False


class ApprovalRequested(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call waits for approval.

    A second request for the same call replaces the first one. Decisions on the first request then have no effect.
    """

    type: ClassVar[str] = "approval_requested"
    approval_id: ApprovalId
    call_id: CallId
    tool: str
    actions: tuple[str, ...]
    shown: str
    """Exact text of the action to approve."""
    expires_at: datetime
    reason: str = ""
    covers: Coverage = NO_COVERAGE
    """Content that determines the effect of the call."""
    item: CardItem = ALONE


class ApprovalSettled(msgspec.Struct, frozen=True, omit_defaults=True):
    """An approval was decided by a person, expired, or was cancelled."""

    type: ClassVar[str] = "approval_decided"
    approval_id: ApprovalId
    call_id: CallId
    decision: Verdict
    scope: Scope = "once"
    by: str = ""


class EffectsAccepted(AcceptedCalls, frozen=True, omit_defaults=True):
    """A person accepted calls that an earlier turn staged. This turn runs them in the given order."""

    type: ClassVar[str] = "effects_accepted"


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Compaction removed the events up to `upto_seq` from the model's context.

    `summary` replaces them. An empty summary means that they were dropped. `tainted_by` names the untrusted content
    that the summary contains or that influenced it.
    """

    type: ClassVar[str] = "compacted"
    upto_seq: int
    summary: str = ""
    reason: str = ""
    tainted_by: str = ""


class Cleared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model's context begins after this event."""

    type: ClassVar[str] = "cleared"
    by: str = ""
    reason: str = ""


class Branched(msgspec.Struct, frozen=True, omit_defaults=True):
    """The conversation continues after event `after`. The events between `after` and this one are on another branch."""

    type: ClassVar[str] = "branched"
    after: int
    by: str = ""


class Forked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The thread was forked. All earlier events are copies of the events of `thread` up to number `seq`."""

    type: ClassVar[str] = "forked"
    thread: ThreadId
    seq: int
    by: str = ""


class Checkpointed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workspace was saved before the turn's first call that may change files.

    `tree` is the digest of the saved tree. It is empty if the workspace could not be saved. `notes` explain a
    failure and list missing content.
    """

    type: ClassVar[str] = "checkpointed"
    workspace: str
    tree: str
    author: str = ""
    notes: tuple[str, ...] = ()


class FilesChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workspace was saved at the end of a turn with a checkpoint. `changed` is the number of changed files."""

    type: ClassVar[str] = "files_changed"
    tree: str
    changed: int = 0
    notes: tuple[str, ...] = ()


class FilesRestored(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person undid the file changes of a turn. With `again`, the person reverted an earlier undo.

    The model sees this with the next message.
    """

    type: ClassVar[str] = "files_restored"
    id: str
    """Id of the undo."""
    turn: str
    by: str
    restored: int
    files: tuple[str, ...] = ()
    """Paths of the first restored files, as text."""
    left: int = 0
    """Number of files that were not restored."""
    stayed: tuple[str, ...] = ()
    """Paths of the first files that were not restored."""
    again: bool = False
    tainted_by: str = ""


class LimitReached(msgspec.Struct, frozen=True, omit_defaults=True):
    """The turn reached a limit. One last model call without tools may follow."""

    type: ClassVar[str] = "limit_reached"
    limit: Literal["steps", "tool_errors", "output_tokens", "budget", "time"]
    detail: str = ""


class Failed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error occurred.

    `message`: sentence for people.
    `detail`: text for the log and the console.
    `fatal`: the error ends the turn. Other errors are notes.
    """

    type: ClassVar[str] = "error"
    kind: str
    message: str
    detail: str = ""
    fatal: bool = True


class RetryScheduled(msgspec.Struct, frozen=True, omit_defaults=True):
    """No model is available. The turn waits and retries at `next_at`.

    `since`: start of the outage.
    `message`: sentence for people.
    `detail`: text for the log.
    `choices`: models that a person may use instead.
    """

    type: ClassVar[str] = "retry_scheduled"
    kind: FailureKind
    message: str
    next_at: datetime
    since: datetime
    attempt: int
    detail: str = ""
    choices: tuple[str, ...] = ()


class RetryRequested(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person asked a waiting turn to retry now, optionally with another model."""

    type: ClassVar[str] = "retry_requested"
    by: str
    model: str = ""


class TurnFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """The turn ended.

    `reply` is posted unless a tool has already answered or the turn belongs to a subagent. In a subagent's turn,
    `tainted_by` names the untrusted content that the subagent has read.
    """

    type: ClassVar[str] = "turn_finished"
    outcome: Outcome
    reply: str = ""
    steps: int = 0
    usage: Usage = Usage()
    tainted_by: str = ""


EventData: TypeAlias = (
    UserSaid | TurnStarted | AssistantSaid | ToolStarted | ToolFinished | Steered | Revised | ApprovalRequested
    | ApprovalSettled | EffectsAccepted | Compacted | Cleared | Branched | Forked | Checkpointed | FilesChanged
    | FilesRestored | LimitReached | Failed | RetryScheduled | RetryRequested | TurnFinished
)  # fmt: skip

EVENT_CLASSES: dict[str, type[EventData]] = {kind.type: kind for kind in get_args(EventData)}


class Event(msgspec.Struct, frozen=True):
    """An entry in a thread's journal. `seq` counts from 1 without gaps. `turn` is empty outside turns."""

    seq: int
    thread: ThreadId
    turn: TurnId
    at: datetime
    data: EventData

    @property
    def type(self) -> str:
        return self.data.type


class _EventJson(msgspec.Struct):
    seq: int
    thread: str
    turn: str
    type: str
    at: str
    data: msgspec.Struct


_encoder = msgspec.json.Encoder()


def encode_data(data: EventData) -> bytes:
    return _encoder.encode(data)


def decode_data(kind: str, data: bytes | str) -> EventData:
    """Decode stored event data.

    Raises msgspec.DecodeError for a damaged row and StoreNewer for an unknown event type.
    """
    return decoder_of(kind).decode(data)


@cache
def decoder_of(kind: str) -> "msgspec.json.Decoder[EventData]":
    if kind not in EVENT_CLASSES:
        raise StoreNewer(
            f"A newer version of Shoal wrote the journal ({kind[:40]}). Install that version to open the journal."
        )
    return msgspec.json.Decoder(EVENT_CLASSES[kind])


def encode_event(event: Event) -> bytes:
    data = event.data
    if isinstance(data, ToolFinished) and data.is_error:
        shown = data.for_people if data.for_people != data.text else ""
        data = ToolResultShown(**msgspec.structs.asdict(data), shown=shown, interrupted=data.is_interrupted)
    return _encoder.encode(_EventJson(event.seq, event.thread, event.turn, data.type, iso(event.at), data))


# ---- live events: shown during a turn, never stored ----


class TextStreamed(msgspec.Struct, frozen=True):
    """A chunk of the answer. After a retry, the text starts again.

    In a tainted turn, links that the model made up are rendered as code (`GrowingLinks`).
    """

    type: ClassVar[str] = "text_delta"
    text: str
    step: int = 0
    """Number that identifies the model call."""
    offset: int = 0
    """Number of characters of the model call's text before this chunk. Lets clients detect gaps."""
    after: int = 0
    """Sequence number of the last event before the model call. A later `assistant_message` event repeats the streamed
    text.
    """


class ThinkingStreamed(msgspec.Struct, frozen=True):
    """A chunk of the model's thinking, with the fields of `TextStreamed`. `offset` counts only thinking."""

    type: ClassVar[str] = "thinking_delta"
    text: str
    step: int = 0
    offset: int = 0
    after: int = 0


class StatusChanged(msgspec.Struct, frozen=True):
    """Current activity of a turn.

    `thinking`: waits for the model.
    `tool`: runs the tools that `text` names.
    `waiting`: waits for approval of the tool that `text` names.
    `retrying`: retries the model in `seconds`, because of `text`.
    `queued`: waits to start.
    `idle`: does not run.
    """

    type: ClassVar[str] = "status"
    state: Literal["thinking", "tool", "waiting", "retrying", "idle", "queued"]
    text: str = ""
    seconds: float = 0.0


class OutputShown(msgspec.Struct, frozen=True):
    """Latest output of a call that has been running for `seconds`. It replaces earlier output."""

    type: ClassVar[str] = "tool_output"
    call_id: CallId
    text: str
    seconds: float = 0.0


LiveData: TypeAlias = TextStreamed | ThinkingStreamed | StatusChanged | OutputShown

LIVE_CLASSES: dict[str, type[LiveData]] = {kind.type: kind for kind in get_args(LiveData)}


class LiveEvent(msgspec.Struct, frozen=True):
    """An event that is shown during a turn and never stored. It has no sequence number."""

    thread: ThreadId
    turn: TurnId
    data: LiveData


def encode_live(event: LiveEvent, at: datetime) -> bytes:
    """Encode a live event for the API. The result has the form of a journal event with the number 0."""
    return _encoder.encode(_EventJson(0, event.thread, event.turn, event.data.type, iso(at), event.data))


# ---- branches ----
# A `branched` event continues after the event that it names. Every other event continues after the previous one.
# The events therefore form a tree, and a branch is the path from the first event to the last event of the branch. Event
# numbers increase along a branch.


class EventRange(NamedTuple):
    """A range of consecutive events, including both ends."""

    first: int
    last: int


Branching = tuple[int, int]
"""Sequence numbers of a `branched` event and of the event after which the branch continues."""


def spans_to(seq: int, branchings: Sequence[Branching]) -> list[EventRange]:
    """Return the ranges of the branch that ends with event `seq`, oldest first. `branchings` must be in order."""
    spans: list[EventRange] = []
    for at, after in reversed(branchings):
        if at <= seq:
            spans.append(EventRange(at, seq))
            seq = after
    spans.append(EventRange(1, seq))
    return [span for span in reversed(spans) if span.last]


def current(events: Sequence[Event]) -> list[Event]:
    """Return the events of the current branch, which is the branch of the last event."""
    branchings = [(event.seq, event.data.after) for event in events if isinstance(event.data, Branched)]
    if not branchings:
        return list(events)
    spans = spans_to(events[-1].seq, branchings)
    return [event for event in events if any(span.first <= event.seq <= span.last for span in spans)]
