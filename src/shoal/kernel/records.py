"""Records that are stored outside the journal: leases, outbox posts, approvals, audit entries, budgets and spend."""

import hashlib
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.clock import iso
from shoal.kernel.events import Checkpointed, Event, EventData, Scope, ToolStarted, UserSaid, Verdict
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId
from shoal.kernel.messages import Prompt, Receipt, Usage, Waiting
from shoal.kernel.permissions import ALONE, NO_COVERAGE, CardItem, Coverage, Decision, Trust
from shoal.kernel.posts import Button
from shoal.kernel.speech import SpokenReply


class Ceiling(msgspec.Struct, frozen=True, order=True):
    """A budget limit that a call counts against."""

    scope: str
    """Scope of the limit, for example `user:fake:ada`."""
    day: str
    """Day for which the limit applies. Empty if the limit never resets."""
    usd_max: float = 0.0
    tokens_max: int = 0


class Reservation(msgspec.Struct, frozen=True):
    """The maximum cost of a model call, reserved until `expires_at`. A new reservation with the same id replaces the
    old one.
    """

    id: str
    ceilings: tuple[Ceiling, ...]
    usd: float
    tokens: int
    expires_at: datetime


class BudgetStatus(msgspec.Struct, frozen=True):
    """Amounts spent and reserved under one limit in [budget]. A maximum of 0 means no limit."""

    scope: str
    day: str
    usd: float
    tokens: int
    usd_max: float
    tokens_max: int

    @property
    def share(self) -> float:
        usd = self.usd / self.usd_max if self.usd_max else 0.0
        return max(usd, self.tokens / self.tokens_max if self.tokens_max else 0.0)

    @property
    def left(self) -> str:
        parts: list[str] = []
        if self.usd_max:
            digits = 2 if self.usd_max >= 1 else 4
            parts.append(f"${max(0.0, self.usd_max - self.usd):.{digits}f} of ${self.usd_max:.{digits}f}")
        if self.tokens_max:
            parts.append(f"{max(0, self.tokens_max - self.tokens):,} of {self.tokens_max:,} tokens")
        return f"{' and '.join(parts)} ({self.what})"

    @property
    def what(self) -> str:
        kind = self.scope.partition(":")[0]
        named = {"day": "in total today", "total": "in total", "check": "this check"}
        named |= {"strangers": "all untrusted people today"}
        return named.get(kind, f"this {kind}{' today' if self.day else ''}")


class Reserved(msgspec.Struct, frozen=True):
    """The result of a reservation.

    If the call would exceed a limit, `blocked` is that limit and nothing is reserved.
    """

    standings: tuple[BudgetStatus, ...]
    blocked: BudgetStatus | None = None


# ---- threads and leases ----


class ThreadInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Summary of a thread for lists."""

    thread: ThreadId
    agent: str
    last_seq: int
    created_at: datetime
    updated_at: datetime
    title: str = ""
    open_turn: TurnId = TurnId("")
    queued: int = 0
    parent: str = ""
    retry_at: datetime | None = None
    """Time of the next retry, if the open turn is waiting for its model."""
    pinned: bool = False
    archived: bool = False
    model: str = ""
    """The model chosen for this thread. Empty means the agent's model."""


class DeletedThread(msgspec.Struct, frozen=True):
    """Summary of a deleted thread, including the threads of its subagents.

    `digest` is the SHA-256 of all events. Each event is one line with thread, number, turn, type, time in
    microseconds and data, separated by tabs.
    """

    threads: int
    events: int
    digest: str


class Lease(msgspec.Struct, frozen=True):
    """A worker's right to advance a thread. Every append states the lease's epoch. A newer lease makes this one
    stale.
    """

    thread: ThreadId
    epoch: int
    agent: str
    last_seq: int
    window_seq: int
    """Sequence number of the last event before the model's context."""
    open_turn: TurnId
    turn_seq: int
    """Sequence number of the first event of the open turn."""
    aborting: bool
    steers: bool = False
    """True if steers are waiting for the open turn."""
    waiting: Waiting | None = None
    """Messages for the next turn, until `open_turn` takes them."""

    @property
    def prompt(self) -> Prompt | None:
        return self.waiting.prompt if self.waiting is not None else None

    branch_seq: int = 0
    """Sequence number of the event that started the current branch. 0 if the thread has only one branch."""
    model: str = ""
    """Model chosen for the thread. Empty means the agent's model."""
    created_at: int = 0
    """Creation time in microseconds. Changes if the thread is deleted and created again."""


# ---- commits ----

PostKind: TypeAlias = Literal["text", "file", "card", "ephemeral", "edit", "opening", "voice"]


class Opening(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work that starts with a post to a channel.

    `trigger` is the id of the trigger for which the outcome is recorded.
    """

    prompt: Prompt
    """Prompt with an `unopened` thread id. The post opens the actual thread, which then receives the prompt."""
    trigger: str = ""
    disables: bool = False
    """True if a failure disables the trigger, because this was its last attempt."""
    recurs: bool = False
    """True for a recurring trigger. It is disabled only if the platform rejects the post."""


class CopyOf(msgspec.Struct, frozen=True):
    """Copies the events of `source` up to `after` into the thread that a post opens."""

    source: ThreadId
    after: int
    by: str


class NewPost(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message for the outbox."""

    id: str
    """Id from which the idempotency keys of the messages are derived."""
    thread: ThreadId
    text: str
    kind: PostKind = "text"
    """Kind of post.

    `edit`: changes the messages of the post `edits`, or the card of `approval` if `edits` is empty.
    `voice`: the text is converted to speech when the post is due.
    """
    file: str = ""
    reply_to: str = ""
    user: str = ""
    approval: str = ""
    """Id of the approval that the post requests, or of the card if it requests several."""
    buttons: tuple[Button, ...] = ()
    edits: str = ""
    ways: str = ""
    """Instructions for deciding a card's approvals by text. Empty unless the card has several approvals."""
    note: UserSaid | None = None
    """Event to add to the journal of the thread that the message is posted to or opens."""
    opening: Opening | None = None
    spoken: SpokenReply | None = None
    """Person and agent whose budgets pay for the speech synthesis of a `voice` post."""
    album: tuple[str, ...] = ()
    copies: CopyOf | None = None


CallOutcome: TypeAlias = Literal[
    "ran", "failed", "changed", "asked_anew", "stopped", "interrupted", "not_run", "no_access"
]


class NewApproval(msgspec.Struct, frozen=True):
    """A request for approval. `digest` binds it to exactly the call that will run."""

    id: ApprovalId
    call_id: CallId
    tool: str
    actions: tuple[str, ...]
    digest: str
    shown: str
    asked_by: str
    expires_at: datetime
    reason: str = ""
    shown_in: ThreadId = ThreadId("")
    """Thread in which the approval is requested. Empty means this thread."""
    call_digest: str = ""
    """Digest of the call without the content in `covers`. Stays the same if that content changes."""
    covers: Coverage = NO_COVERAGE
    needs_trust: bool = False
    """True if untrusted content caused the request. An untrusted asker cannot allow such a call."""
    item: CardItem = ALONE


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A check, decision or action for the audit log. `detail` must not contain secrets.

    `token` is the name of the access token that `user` used. It is empty for the owner's token.
    """

    kind: str
    action: str
    decision: str = ""
    rule: str = ""
    user: str = ""
    agent: str = ""
    turn: str = ""
    detail: str = ""
    token: str = ""


class PastCheck(msgspec.Struct, frozen=True):
    """A checked action and its decision. `count` is the number of times that it occurred.

    `thread` and `at` are those of the latest check.
    """

    action: str
    decision: Decision
    count: int
    thread: str
    at: datetime


class Spend(msgspec.Struct, frozen=True):
    """Usage of a finished model call.

    Replaces the reservation with the id `reservation`. If it has expired, because the call was slow or the clock
    changed, the usage counts against `ceilings`. An empty `day` means today in UTC.
    """

    id: str
    agent: str
    user: str
    model: str
    usage: Usage
    usd: float | None = None
    """None if the price is unknown."""
    reservation: str = ""
    ceilings: tuple[Ceiling, ...] = ()
    day: str = ""


class Step(msgspec.Struct, frozen=True):
    """Duration of one step or tool call. The console shows it."""

    number: int
    description: str
    started_at: datetime
    duration_ms: int


class Report(msgspec.Struct, frozen=True):
    """A report to a parent thread that its subagent has ended. Wakes the parent, adds `note` to the parent's journal,
    or starts a turn there.
    """

    thread: ThreadId
    note: UserSaid | None = None
    starts_turn: bool = False


class AdmittedCalls(msgspec.Struct, frozen=True):
    """Calls that start in the same commit as the model message that requested them.

    `calls` includes the checkpoint that precedes them, and `audit` contains their permission checks. The calls start
    only if the thread is unchanged since the checks: its last event is `last_seq`, nobody has stopped the turn, and no
    steer is waiting.
    """

    last_seq: int
    calls: tuple[Checkpointed | ToolStarted, ...]
    audit: tuple[AuditEntry, ...] = ()


class Commit(msgspec.Struct, frozen=True):
    """Changes that become durable together. The commit is atomic, except that `starts` is dropped if the thread has
    changed.

    `trigger` is the id of the trigger that started the closed turn. The turn's outcome is recorded for that trigger.
    """

    turn: TurnId
    events: tuple[EventData, ...] = ()
    posts: tuple[NewPost, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    approvals: tuple[NewApproval, ...] = ()
    """Approvals that are requested together. `posts` contains their card."""
    use_approval: ApprovalId = ApprovalId("")
    """Id of an allowed approval to mark as used."""
    outcomes: tuple[tuple[ApprovalId, CallOutcome], ...] = ()
    """Outcomes of allowed calls, which are shown on the calls' cards."""
    spend: Spend | None = None
    steps: tuple[Step, ...] = ()
    void_approvals: bool = False
    """Whether to cancel the turn's pending approvals and record the cancellations in the journal."""
    prompts: tuple[tuple[str, bytes], ...] = ()
    """System prompts by digest. Each prompt is stored once."""
    settings: tuple[tuple[str, str, str], ...] = ()
    """Settings to store, each as (scope, key, value)."""
    report: Report | None = None
    """Report to the parent thread. Set only by the commit that closes the turn."""
    retried: bool = False
    """True to end the wait for the model. Otherwise, the turn waits until the time of a `retry_scheduled` event."""
    trigger: str = ""
    starts: AdmittedCalls | None = None
    claim_seconds: float = 0.0
    """Seconds for which the thread's posts are claimed, unless an earlier post of the thread must be sent first.

    Set only by the commit that closes a turn.
    """
    staged: Prompt | None = None
    """Prompt of the turn that runs the allowed calls after all `approvals` are decided."""
    shows: CardId = CardId("")
    """Id of a card to update with the outcomes of its calls."""


class Committed(msgspec.Struct, frozen=True):
    """Events that a commit stored, with their numbers in the journal.

    `waiting`, `reported` and `claimed` are set only by `finish_turn`.
    """

    events: tuple[Event, ...]
    aborting: bool = False
    """True if a person has stopped the turn. The turn must then end."""
    waiting: Waiting | None = None
    reported: tuple[Event, ...] = ()
    """Events that were added to the parent thread's journal."""
    claimed: "tuple[OutboxRow, ...]" = ()

    @property
    def prompt(self) -> Prompt | None:
        return self.waiting.prompt if self.waiting is not None else None


# ---- artifacts ----


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete tool result in the artifact store. `name` is the tool that produced it."""

    thread: ThreadId
    digest: str
    name: str
    size_bytes: int
    created_at: datetime
    turn: str = ""
    call_id: str = ""
    tainted_by: str = ""


# ---- windows ----


class ContextWindow(msgspec.Struct, frozen=True):
    """The part of a thread's journal that is in the model's context.

    `window_seq`: the context begins after this event.
    `last_seq`: last event of the journal.
    """

    thread: ThreadId
    window_seq: int
    last_seq: int
    updated_at: datetime
    busy: bool = False


# ---- outbox ----


class OutboxRow(msgspec.Struct, frozen=True):
    """A post in the outbox, and the progress of its delivery."""

    id: str
    thread: ThreadId
    post: NewPost
    part: int
    """Number of the first piece that has not been posted."""
    attempts: int
    """Number of attempts to post the piece `part`."""
    created_at: datetime
    maybe_sent: bool = False
    claims: int = 0
    """Number of times that the post was claimed. 0 for a post that was claimed when it was enqueued.

    Retries and failures that an earlier claimant reports are ignored.
    """


class DeliveryStatus(msgspec.Struct, frozen=True):
    """The delivery state of a post. `error` is the reason for the last failure."""

    state: Literal["pending", "sending", "sent", "failed"]
    error: str = ""


class Backlog(msgspec.Struct, frozen=True):
    """Amount of waiting work.

    `prompts`: prompts in mailboxes.
    `oldest_at`: time of the oldest of these prompts.
    `turns`: open turns.
    """

    prompts: int
    oldest_at: datetime | None
    turns: int


# ---- approvals ----


class Approval(NewApproval, frozen=True, omit_defaults=True, kw_only=True):
    """A request for approval and the decision on it. `used` means that the approved call has run.

    `decided_trust` and `decided_roles` describe the person who decided, and `decided_on` is that person's platform.
    `covers` is the content that the decision applies to.
    """

    thread: ThreadId
    turn: TurnId
    state: Literal["pending", "allow", "deny", "expired", "cancelled", "used"]
    created_at: datetime
    scope: Scope | Literal["withdrawn"] = "once"
    """Scope of the decision.

    `withdrawn`: the call was allowed with an "always" rule, which has since been removed.
    """
    decided_by: str = ""
    decided_at: datetime | None = None
    decided_trust: Trust | None = None
    decided_on: str = ""
    decided_roles: tuple[str, ...] = ()
    outcome: CallOutcome | Literal[""] = ""

    @property
    def asked_in(self) -> ThreadId:
        return self.shown_in or self.thread


class Revision(msgspec.Struct, frozen=True):
    """The result of editing or deleting a message. `events` are the events that were journaled."""

    receipt: Receipt
    events: tuple[Event, ...] = ()


class Settlement(msgspec.Struct, frozen=True):
    """A stored decision on an approval, and its journal event."""

    approval: Approval
    verdict: Verdict
    event: Event


# ---- audit ----


class AuditRow(msgspec.Struct, frozen=True):
    """An audit entry with its number and hashes in a chain."""

    chain: str
    number: int
    at: datetime
    entry: AuditEntry
    previous: str
    hash: str


class BrokenChain(msgspec.Struct, frozen=True):
    """The first fault of an audit chain.

    Entry `number` is missing or was changed, or the chain ends at entry `number` instead of `length`. `at` and
    `action` are set only for a changed entry.
    """

    chain: str
    number: int
    reason: Literal["missing", "changed", "end"]
    length: int
    at: datetime | None = None
    action: str = ""

    @property
    def shown(self) -> str:
        if self.at is not None:
            return f"{self.chain}: entry {self.number} from {iso(self.at)} ({self.action[:200]}) was changed."
        if self.reason == "missing":
            return f"{self.chain}: entry {self.number} is missing."
        end = f"ends at entry {self.number} instead of {self.length}"
        return f"{self.chain} {end}: entries were removed or added at the end."


class Verification(msgspec.Struct, frozen=True):
    """Result of verifying the audit log.

    `chains`: number of chains.
    `entries`: number of intact entries.
    `broken`: first fault of each broken chain.
    """

    chains: int
    entries: int
    broken: tuple[BrokenChain, ...]


# ---- spend and steps ----


class UsageRow(msgspec.Struct, frozen=True):
    """Spend of one agent on one model in one day."""

    day: str
    agent: str
    model: str
    calls: int
    usage: Usage
    usd: float | None


class ThreadUsage(msgspec.Struct, frozen=True):
    thread: ThreadId
    calls: int
    tokens: int
    cached_tokens: int
    usd: float | None
    """None if no call had a known price."""
    estimated: int = 0
    """Number of calls whose token counts are estimated."""


class StoredStep(msgspec.Struct, frozen=True):
    thread: ThreadId
    turn: TurnId
    step: Step


CASES_CHAIN = "checks"
"""Audit chain for calls that agents' test cases make in temporary workspaces."""
GENESIS = "0" * 64
"""Value of `previous` in the first entry of a chain."""

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_entry(entry: AuditEntry) -> str:
    """Encode an entry as JSON with sorted keys and without defaults, so equal entries have equal text."""
    return _encoder.encode(entry).decode()


def entry_hash(previous: str, chain: str, number: int, micros: int, entry: str) -> str:
    """Return the SHA-256 of an audit entry in hex.

    The hash covers the previous hash, the chain's name, the entry's number (from 1), its time in microseconds and
    its stored text.
    """
    return hashlib.sha256(f"{previous}\n{chain}\n{number}\n{micros}\n{entry}".encode()).hexdigest()
