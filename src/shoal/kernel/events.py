"""The events of a thread's journal, one record class a type."""

from collections.abc import Sequence
from datetime import datetime
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
Scope: TypeAlias = Literal["once", "thread"]


class UserSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message from the user's side entered the conversation.

    One that was missed or restored is `backfill`; `said_at` is then when it was written. `direct`: to the agent alone.
    `joined` are the ids of messages of the same author that were answered with it and stand in it before its own words.
    `refers_to` are the messages that it answers, quotes or passes on, or that stand before it.
    """

    type: ClassVar[str] = "user_message"
    text: str
    author: Author
    message_id: str = ""
    origin: Origin = "person"
    attachments: tuple[Attachment, ...] = ()
    reply_to: str = ""
    backfill: bool = False
    said_at: datetime | None = None
    caller: Caller | None = None
    tainted_by: str = ""
    direct: bool = False
    joined: tuple[str, ...] = ()
    refers_to: tuple[Reference, ...] = ()


class TurnStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A turn opened. `context` is the volatile block that trails its user message, kept so that it never changes.

    `system` and `told` are digests of stored prompts: the system text this turn sends, and what of it the model knows;
    `tainted_by` names what of these was written under untrusted content. `speaks`: its answer is spoken, too. `asker`
    and `audience` are those of its `PromptScope`; a turn that could not be opened has no asker.
    """

    type: ClassVar[str] = "turn_started"
    agent: str
    model: str
    context: str = ""
    history: bool = True
    system: str = ""
    told: str = ""
    tainted_by: str = ""
    speaks: bool = False
    asker: Asker | None = None
    audience: Audience = Audience()


class RequestMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model was sent, by digests, so that the same request can be built again and compared: see turn/replay.py.

    It was built after event `after`, of `count` messages, which together have `digest`; `added` are the digests of
    those that the journal had more than for the call before. `system`, `tools` and `options` are left out where they
    are as in that call. `room`: how much was left for events and for results, where the conversation did not fit whole.
    `window_tokens`: what the model's window was taken for after its provider had refused what was known of it.
    """

    after: int
    count: int
    digest: str
    added: tuple[str, ...] = ()
    system: str = ""
    tools: str = ""
    options: str = ""
    room: tuple[int, int] | None = None
    window_tokens: int = 0


class AssistantSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished model call: its text and all its tool calls. `tainted_by`: untrusted content it may follow.

    `asked`: the request that it answers; None only for an answer outside of turns, such as an imported one.
    """

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


class ToolStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call passed the permissions and is about to run; `actions` is what exactly."""

    type: ClassVar[str] = "tool_started"
    call_id: CallId
    name: str
    actions: tuple[str, ...] = ()


INTERRUPTED = "Interrupted: the outcome is unknown. Check before repeating."
"""The result of a call that a crash cut off and that is not run again."""
ASK_INSTEAD = " Do not try it again; ask what to do instead."
ASK_OR_LOOK = " Find another way or ask the person."
"""What the result of a call that was refused tells the model to do: nothing for those who read along."""


class GivenLinks(msgspec.Struct, frozen=True, array_like=True):
    """Addresses that a result gives to be read: links of a page to its own `site`, or results of a search (no site)."""

    site: str = ""
    addresses: tuple[str, ...] = ()


class ToolFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """The only result of a call.

    `artifact` is the digest of the whole result, stored with `artifact_bytes`; `text` is then an excerpt. `answers`
    means that the call already gave the person the turn's answer. `counts` marks an error by the model or the tool,
    which counts towards `tool_errors_in_a_row_max`; errors with other causes (a steer, a person, a crash) do not.
    `found` lists the tools that the model looked up; their definitions follow the text. `stopped` means that a person
    stopped the turn before the call ended. `exit_code` is a command's exit code.
    `links` may be read unasked after untrusted content (`permissions.addresses`). `staged`: the call has not run; a
    person decides about it when the turn has ended.
    """

    type: ClassVar[str] = "tool_result"
    call_id: CallId
    name: str
    text: str
    is_error: bool = False
    artifact: str = ""
    artifact_bytes: int = 0
    images: tuple[Image, ...] = ()
    duration_ms: int = 0
    tainted_by: str = ""
    answers: bool = False
    counts: bool = True
    found: tuple[ToolSpec, ...] = ()
    stopped: bool = False
    exit_code: int = 0
    links: GivenLinks | None = None
    staged: bool = False

    @property
    def is_interrupted(self) -> bool:
        """Whether a crash cut it off, so that nobody knows what it did."""
        return self.is_error and self.text.startswith(INTERRUPTED)

    @property
    def for_people(self) -> str:
        """The text without what it asks of the model."""
        return self.text.removesuffix(ASK_INSTEAD).removesuffix(ASK_OR_LOOK) if self.is_error else self.text


class ToolResultShown(ToolFinished, frozen=True, omit_defaults=True):
    """A failed result as the API shows it: `shown` is its text without what that asks of the model, where it does;
    `interrupted` where a crash cut the call off."""

    shown: str = ""
    interrupted: bool = False


class Steered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message reached the running turn."""

    type: ClassVar[str] = "steered"
    text: str
    author: Author
    message_id: str = ""


class Revised(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who wrote a message changed or deleted it after its turn had begun; the model is told with the next message."""

    type: ClassVar[str] = "revised"
    author: Author
    message_id: str = ""
    text: str = ""
    deleted: bool = False


class ApprovalRequested(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call waits for a person. `shown` is the exact text of what will run, `covers` the content it depends on.

    A second one for the same call takes the place of the first, whose answer counts no more.
    """

    type: ClassVar[str] = "approval_requested"
    approval_id: ApprovalId
    call_id: CallId
    tool: str
    actions: tuple[str, ...]
    shown: str
    expires_at: datetime
    reason: str = ""
    covers: Coverage = NO_COVERAGE
    item: CardItem = ALONE


class ApprovalSettled(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person, the clock or /stop decided."""

    type: ClassVar[str] = "approval_decided"
    approval_id: ApprovalId
    call_id: CallId
    decision: Verdict
    scope: Scope = "once"
    by: str = ""


class EffectsAccepted(AcceptedCalls, frozen=True, omit_defaults=True):
    """A person accepted calls that an earlier turn has staged: this turn runs them, in this order."""

    type: ClassVar[str] = "effects_accepted"


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events up to `upto_seq` left the model's window; `summary` stands for them (empty: they were dropped).

    `tainted_by` names the untrusted content that the summary tells of or was written under.
    """

    type: ClassVar[str] = "compacted"
    upto_seq: int
    summary: str = ""
    reason: str = ""
    tainted_by: str = ""


class Cleared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model's window starts anew after this event."""

    type: ClassVar[str] = "cleared"
    by: str = ""
    reason: str = ""


class Branched(msgspec.Struct, frozen=True, omit_defaults=True):
    """The conversation goes on from right after event `after`; what came since is on another branch of it."""

    type: ClassVar[str] = "branched"
    after: int
    by: str = ""


class Forked(msgspec.Struct, frozen=True, omit_defaults=True):
    """All before this is a copy of another thread's events up to number `seq`."""

    type: ClassVar[str] = "forked"
    thread: ThreadId
    seq: int
    by: str = ""


class Checkpointed(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the workspace was before the turn's first call that may change files: the digest of its tree.

    Empty where it could not be kept; `notes` say why, and what of it is not.
    """

    type: ClassVar[str] = "checkpointed"
    workspace: str
    tree: str
    author: str = ""
    notes: tuple[str, ...] = ()


class FilesChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the workspace of a checkpointed turn was at its end, and how many files differ from before."""

    type: ClassVar[str] = "files_changed"
    tree: str
    changed: int = 0
    notes: tuple[str, ...] = ()


class FilesRestored(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody undid what a turn, or (`again`) an earlier undo, did to files; the model is told with the next message.

    `id` names this undo. `files` are the first of the `restored` ones, as text; `left` were not restored, `stayed` are
    the first of those.
    """

    type: ClassVar[str] = "files_restored"
    id: str
    turn: str
    by: str
    restored: int
    files: tuple[str, ...] = ()
    left: int = 0
    stayed: tuple[str, ...] = ()
    again: bool = False
    tainted_by: str = ""


class LimitReached(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bound of the turn was met; one last call without tools follows where that makes sense."""

    type: ClassVar[str] = "limit_reached"
    limit: Literal["steps", "tool_errors", "output_tokens", "budget", "time"]
    detail: str = ""


class Failed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something went wrong. `message` is the sentence a person reads, `detail` is for the log and the console.

    A `fatal` one ends the turn; the others are notes.
    """

    type: ClassVar[str] = "error"
    kind: str
    message: str
    detail: str = ""
    fatal: bool = True


class RetryScheduled(msgspec.Struct, frozen=True, omit_defaults=True):
    """No model answers for now: the turn waits and asks again at `next_at`. `since` is when the outage began for it.

    `message` is the sentence a person reads, `detail` is for the log; `choices` are models that a person may ask
    instead.
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
    """A person wants a turn that waits for its model to ask again now; with `model`, to ask that one."""

    type: ClassVar[str] = "retry_requested"
    by: str
    model: str = ""


class TurnFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """The turn ended; `reply` is its answer, which is posted unless a tool has answered already or it is a child's.

    Of a child, `tainted_by` names the untrusted content it has seen.
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
    """One entry of a thread's journal. `seq` counts from 1 without gaps; `turn` is empty outside turns."""

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
_decoders: dict[str, "msgspec.json.Decoder[EventData]"] = {
    name: msgspec.json.Decoder(kind) for name, kind in EVENT_CLASSES.items()
}


def encode_data(data: EventData) -> bytes:
    return _encoder.encode(data)


def decode_data(kind: str, data: bytes | str) -> EventData:
    """Invert `encode_data`. Raises msgspec.DecodeError on damaged rows and StoreNewer on an unknown type."""
    return decoder_of(kind).decode(data)


def decoder_of(kind: str) -> "msgspec.json.Decoder[EventData]":
    """What reads the events of a type. Raises StoreNewer on an unknown one."""
    decoder = _decoders.get(kind)
    if decoder is None:
        raise StoreNewer(f"The journal was written by a newer Shoal ({kind[:40]}). Install that version to use it.")
    return decoder


def encode_event(event: Event) -> bytes:
    """The event as the API shows it: `{"seq","thread","turn","type","at","data"}`."""
    data = event.data
    if isinstance(data, ToolFinished) and data.is_error:
        shown = data.for_people if data.for_people != data.text else ""
        data = ToolResultShown(**msgspec.structs.asdict(data), shown=shown, interrupted=data.is_interrupted)
    return _encoder.encode(_EventJson(event.seq, event.thread, event.turn, data.type, iso(event.at), data))


# ---- live: shown while a turn runs, never stored ------------------------------------------------------------------


class TextStreamed(msgspec.Struct, frozen=True):
    """A piece of the answer being written. `step` identifies the model call; a retry starts the text again.

    `offset` is the number of earlier characters in the call's text, which lets a watcher detect gaps. `after` is the
    number of the last event before the call; a later `assistant_message` repeats this text. After untrusted content,
    made-up addresses are code here too (`domain.links.GrowingLinks`).
    """

    type: ClassVar[str] = "text_delta"
    text: str
    step: int = 0
    offset: int = 0
    after: int = 0


class ThinkingStreamed(msgspec.Struct, frozen=True):
    """A piece of the model's thinking before its answer. Fields are as in `TextStreamed`; `offset` counts thinking
    alone."""

    type: ClassVar[str] = "thinking_delta"
    text: str
    step: int = 0
    offset: int = 0
    after: int = 0


class StatusChanged(msgspec.Struct, frozen=True):
    """What the turn does now: it waits for the model, runs tools (`text` names them), waits for a person's decision (on
    the tool `text`), or asks the model again in `seconds` because of `text`; nothing when idle."""

    type: ClassVar[str] = "status"
    state: Literal["thinking", "tool", "waiting", "retrying", "idle", "queued"]
    text: str = ""
    seconds: float = 0.0


class OutputShown(msgspec.Struct, frozen=True):
    """The end of what a call has written in the `seconds` that it runs; it takes the place of what was shown before."""

    type: ClassVar[str] = "tool_output"
    call_id: CallId
    text: str
    seconds: float = 0.0


LiveData: TypeAlias = TextStreamed | ThinkingStreamed | StatusChanged | OutputShown

LIVE_CLASSES: dict[str, type[LiveData]] = {kind.type: kind for kind in get_args(LiveData)}


class LiveEvent(msgspec.Struct, frozen=True):
    """A live event of a thread; it has no sequence number."""

    thread: ThreadId
    turn: TurnId
    data: LiveData


def encode_live(event: LiveEvent, at: datetime) -> bytes:
    """The live event, shown `at` this time, as the API shows it: fields as any event, with 0 for its number."""
    return _encoder.encode(_EventJson(0, event.thread, event.turn, event.data.type, iso(at), event.data))


# ---- branches ----
#
# Which events make up a branch of the conversation: a pure function of the events that began branches.
#
# A `branched` event goes on from right after the event it names, every other event from the one before it. So the
# events of a journal are a tree, and the branch that ends with an event is the way to it from the first one. Along a
# branch the numbers only grow.


class EventRange(NamedTuple):
    """Events that follow one another: the numbers of the first and of the last."""

    first: int
    last: int


Branching = tuple[int, int]
"""The number of a `branched` event, and after which event the conversation goes on with it."""


def spans_to(seq: int, branchings: Sequence[Branching]) -> list[EventRange]:
    """The branch that ends with event `seq`, oldest first. `branchings` are the journal's, oldest first."""
    spans: list[EventRange] = []
    for at, after in reversed(branchings):
        if at <= seq:
            spans.append(EventRange(at, seq))
            seq = after
    spans.append(EventRange(1, seq))
    return [span for span in reversed(spans) if span.last]


def current(events: Sequence[Event]) -> list[Event]:
    """Of a whole journal, the events of the branch that its last event is on."""
    branchings = [(event.seq, event.data.after) for event in events if isinstance(event.data, Branched)]
    if not branchings:
        return list(events)
    spans = spans_to(events[-1].seq, branchings)
    return [event for event in events if any(span.first <= event.seq <= span.last for span in spans)]
