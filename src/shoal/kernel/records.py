"""What the store keeps beside the journal: leases, outbox posts, approvals, audit entries, budgets and spend."""

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
    """A bound that a call counts against: `scope` is e.g. `user:fake:ada`, `day` is empty where none ends it."""

    scope: str
    day: str
    usd_max: float = 0.0
    tokens_max: int = 0


class Reservation(msgspec.Struct, frozen=True):
    """What a model call may cost at most. One with the same id replaces it; it lapses at `expires_at`."""

    id: str
    ceilings: tuple[Ceiling, ...]
    usd: float
    tokens: int
    expires_at: datetime


class BudgetStatus(msgspec.Struct, frozen=True):
    """How much of a ceiling of [budget] is spent or reserved; a maximum of 0 is no ceiling."""

    scope: str
    day: str
    usd: float
    tokens: int
    usd_max: float
    tokens_max: int

    @property
    def share(self) -> float:
        """The part of the ceiling that is used, the greater of the two."""
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
        named = {"day": "all together today", "total": "in all", "check": "this check"}
        named |= {"strangers": "all strangers together today"}
        return named.get(kind, f"this {kind}{' today' if self.day else ''}")


class Reserved(msgspec.Struct, frozen=True):
    """The answer: `blocked` is the ceiling that the call would break; then nothing is reserved."""

    standings: tuple[BudgetStatus, ...]
    blocked: BudgetStatus | None = None


# ---- threads and leases ----


class ThreadInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thread as lists show it. `retry_at`: when its turn, which waits for its model, asks again. `model` was chosen
    for this thread; empty is its agent's."""

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
    pinned: bool = False
    archived: bool = False
    model: str = ""


class DeletedThread(msgspec.Struct, frozen=True):
    """What went with a thread: its events and those of its subagents' threads. `digest` is the SHA-256 of these, each
    as a line of thread, number, turn, type, time in microseconds and data, with tabs between."""

    threads: int
    events: int
    digest: str


class Lease(msgspec.Struct, frozen=True):
    """The right to advance a thread. Every append carries its epoch; a later lease makes it stale.

    The model's window holds the events after `window_seq`; the open turn began with event `turn_seq`. `steers` tells
    that messages for the open turn wait; `waiting` are those that the next turn answers, until `open_turn` takes them.
    Event `branch_seq` began the branch that the conversation is on; 0 where it never had but one.
    `model` was chosen for the thread. `created_at` (microseconds) is another once it was deleted and begun anew.
    """

    thread: ThreadId
    epoch: int
    agent: str
    last_seq: int
    window_seq: int
    open_turn: TurnId
    turn_seq: int
    aborting: bool
    steers: bool = False
    waiting: Waiting | None = None

    @property
    def prompt(self) -> Prompt | None:
        """What the next turn answers."""
        return self.waiting.prompt if self.waiting is not None else None

    branch_seq: int = 0
    model: str = ""
    created_at: int = 0


# ---- what one commit carries ----

PostKind: TypeAlias = Literal["text", "file", "card", "ephemeral", "edit", "opening", "voice"]


class Opening(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a post to a channel begins: `prompt`, whose thread is `unopened`, is accepted in the thread that opens.

    How it went is noted with the `trigger` that wants it; one that fails `disables` it, if that was to be the last try;
    of one that `recurs`, only if it was refused.
    """

    prompt: Prompt
    trigger: str = ""
    disables: bool = False
    recurs: bool = False


class CopyOf(msgspec.Struct, frozen=True):
    """The thread that a post opens is a copy of `source` up to event `after`."""

    source: ThreadId
    after: int
    by: str


class NewPost(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message for a platform, to be put into the outbox. `id` is its idempotency key's stem.

    A card has buttons for `approval`, an approval or a card of several; with `only_once` none that allows it for the
    whole thread; other posts have the `buttons` they name. `ways` says how a card of several is decided in words.
    `note` is for the journal of the thread that it is posted to or opens, which nobody in it asked
    for. An `edit` changes what the post `edits` has left on the platform (empty: the card of `approval`). Of a `voice`
    the text is spoken when it is its turn, for `spoken`.
    """

    id: str
    thread: ThreadId
    text: str
    kind: PostKind = "text"
    file: str = ""
    reply_to: str = ""
    user: str = ""
    approval: str = ""
    buttons: tuple[Button, ...] = ()
    edits: str = ""
    only_once: bool = False
    ways: str = ""
    note: UserSaid | None = None
    opening: Opening | None = None
    spoken: SpokenReply | None = None
    album: tuple[str, ...] = ()
    copies: CopyOf | None = None


CallOutcome: TypeAlias = Literal["ran", "failed", "changed", "asked_anew", "stopped", "interrupted", "not_run"]
"""What became of an allowed call."""


class NewApproval(msgspec.Struct, frozen=True):
    """A question to a person, bound by `digest` to exactly what will run.

    `call_digest` leaves out the content that the call depends on (`covers`), so that the same call is known again when
    that has changed. `shown_in` is where people are asked; empty is the thread itself. `needs_trust` is set where
    untrusted content raised the question: somebody untrusted who asked for the call cannot allow it.
    """

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
    call_digest: str = ""
    covers: Coverage = NO_COVERAGE
    needs_trust: bool = False
    item: CardItem = ALONE


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was checked, decided or done. `detail` must be free of secrets.

    `token` is the name of the access token that `user` came with; empty for the owner's own.
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
    """An action that was checked, what was decided, how often, and where and when last."""

    action: str
    decision: Decision
    count: int
    thread: str
    at: datetime


class Spend(msgspec.Struct, frozen=True):
    """Usage of one finished model call; `usd` is None when the price is unknown.

    It settles its `reservation`. If that has expired, because the call took longer or the clock was changed, it counts
    against `ceilings`. An empty `day` means today in UTC.
    """

    id: str
    agent: str
    user: str
    model: str
    usage: Usage
    usd: float | None = None
    reservation: str = ""
    ceilings: tuple[Ceiling, ...] = ()
    day: str = ""


class Step(msgspec.Struct, frozen=True):
    """How long one step or tool call took, for the console."""

    number: int
    description: str
    started_at: datetime
    duration_ms: int


class Report(msgspec.Struct, frozen=True):
    """What a child's end does to its parent: wake it, put a note into its journal, or start a turn of it with that."""

    thread: ThreadId
    note: UserSaid | None = None
    starts_turn: bool = False


class AdmittedCalls(msgspec.Struct, frozen=True):
    """Calls that start with the message that makes them, with the checkpoint before them and the checks that let them.

    They do so only if the thread is still as it was when they were admitted: its last event is `last_seq`, nobody has
    stopped the turn, and no steer waits.
    """

    last_seq: int
    calls: tuple[Checkpointed | ToolStarted, ...]
    audit: tuple[AuditEntry, ...] = ()


class Commit(msgspec.Struct, frozen=True):
    """What becomes durable together: all of it or nothing, but for `starts`, which may be left out.

    `approvals` are asked for together; the post of their card is among the posts. `use_approval` spends an allowed
    one; `outcomes` change the cards of allowed calls; `void_approvals` cancels the turn's open ones, journaled first.
    `prompts` are system prompts by digest, stored once each. `report` is done by the commit that closes the turn.
    `settings` are small durable values that hold from then on, each with its scope and key. The turn waits for its
    model until the time of a `retry_scheduled` among the events; `retried` ends such a wait. `trigger` is the id of the
    one that began the turn which ends; how the turn went is noted with it. With `claim_seconds`, which only the commit
    that closes a turn has, the thread's posts are claimed for that long where no other post of it has to go first.
    `staged` starts the turn that runs the accepted ones of the `approvals`, once all are decided. The card `shows` is
    changed to how its calls ended.
    """

    turn: TurnId
    events: tuple[EventData, ...] = ()
    posts: tuple[NewPost, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    approvals: tuple[NewApproval, ...] = ()
    use_approval: ApprovalId = ApprovalId("")
    outcomes: tuple[tuple[ApprovalId, CallOutcome], ...] = ()
    spend: Spend | None = None
    steps: tuple[Step, ...] = ()
    void_approvals: bool = False
    prompts: tuple[tuple[str, bytes], ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    report: Report | None = None
    retried: bool = False
    trigger: str = ""
    starts: AdmittedCalls | None = None
    claim_seconds: float = 0.0
    staged: Prompt | None = None
    shows: CardId = CardId("")


class Committed(msgspec.Struct, frozen=True):
    """The events as stored; others' events may stand before them, which their numbers tell.

    `aborting`: a person has stopped the turn, which goes on to its end and nowhere else. After `finish_turn`, `waiting`
    are those that the next turn answers, `told` what was journaled in the parent, and `claimed` the posts that were.
    """

    events: tuple[Event, ...]
    aborting: bool = False
    waiting: Waiting | None = None
    told: tuple[Event, ...] = ()
    claimed: "tuple[OutboxRow, ...]" = ()

    @property
    def prompt(self) -> Prompt | None:
        """What the next turn answers."""
        return self.waiting.prompt if self.waiting is not None else None


# ---- artifacts ----


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result that a thread keeps whole in the artifact files, by digest. `name` is the tool it came from."""

    thread: ThreadId
    digest: str
    name: str
    size_bytes: int
    created_at: datetime
    turn: str = ""
    call_id: str = ""
    tainted_by: str = ""


# ---- snapshots ----


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation that was saved: the row of a file below the agent's `sessions/`."""

    id: str
    thread: ThreadId
    agent: str
    description: str
    messages: int
    created_at: datetime


class ContextWindow(msgspec.Struct, frozen=True):
    """How far a thread's journal reaches, and after which event the model's window begins."""

    thread: ThreadId
    window_seq: int
    last_seq: int
    updated_at: datetime
    busy: bool = False


# ---- outbox ----


class OutboxRow(msgspec.Struct, frozen=True):
    """A post on its way. `part` is the first piece not yet posted; `attempts` counts the tries of that piece.

    `claims` tells this claim from later ones: what an older holder says of a retry or a failure does not count. It is 0
    for one that was claimed when it was enqueued.
    """

    id: str
    thread: ThreadId
    post: NewPost
    part: int
    attempts: int
    created_at: datetime
    maybe_sent: bool = False
    claims: int = 0


class DeliveryStatus(msgspec.Struct, frozen=True):
    """What has become of a post, and why it was given up or put back last."""

    state: Literal["pending", "sending", "sent", "failed"]
    error: str = ""


class Backlog(msgspec.Struct, frozen=True):
    """How much work waits: prompts in mailboxes, the oldest of them, and turns that are open."""

    prompts: int
    oldest_at: datetime | None
    turns: int


# ---- approvals ----


class Approval(NewApproval, frozen=True, omit_defaults=True, kw_only=True):
    """A question to a person and what became of it. `used` approvals have run.

    `decided_trust` and `decided_roles` are the trust and the roles of the person who decided, on the platform
    `decided_on`; `covers` is the content that the decision is about. `outcome` says how an allowed call ended.
    """

    thread: ThreadId
    turn: TurnId
    state: Literal["pending", "allow", "deny", "expired", "cancelled", "used"]
    created_at: datetime
    scope: Scope = "once"
    decided_by: str = ""
    decided_at: datetime | None = None
    decided_trust: Trust | None = None
    decided_on: str = ""
    decided_roles: tuple[str, ...] = ()
    outcome: CallOutcome | Literal[""] = ""

    @property
    def asked_in(self) -> ThreadId:
        """The thread in which people were asked."""
        return self.shown_in or self.thread


class Revision(msgspec.Struct, frozen=True):
    """What became of a change to a message; `events` are what was journaled."""

    receipt: Receipt
    events: tuple[Event, ...] = ()


class Settlement(msgspec.Struct, frozen=True):
    """A decision as stored; `event` is its journal entry."""

    approval: Approval
    verdict: Verdict
    event: Event


# ---- audit ----


class AuditRow(msgspec.Struct, frozen=True):
    """An audit entry in its hash chain."""

    chain: str
    number: int
    at: datetime
    entry: AuditEntry
    previous: str
    hash: str


class BrokenChain(msgspec.Struct, frozen=True):
    """Where a chain does not hold: entry `number` is missing or changed (`at` and `action` are what it says), or all
    are whole and the chain does not end where its head says, after `length` entries."""

    chain: str
    number: int
    reason: Literal["missing", "changed", "end"]
    length: int
    at: datetime | None = None
    action: str = ""

    @property
    def shown(self) -> str:
        if self.at is not None:
            return f"{self.chain}, entry {self.number} of {iso(self.at)} was changed: {self.action[:200]}"
        if self.reason == "missing":
            return f"{self.chain}, entry {self.number} is missing."
        end = f"ends at entry {self.number} and should end at {self.length}"
        return f"{self.chain} {end}: entries were cut off or added."


class Verification(msgspec.Struct, frozen=True):
    """How many chains there are, how many entries of theirs are whole, and the first fault of each broken one."""

    chains: int
    entries: int
    broken: tuple[BrokenChain, ...]


# ---- spend and steps ----


class UsageRow(msgspec.Struct, frozen=True):
    """Spend summed over a day, an agent and a model."""

    day: str
    agent: str
    model: str
    calls: int
    usage: Usage
    usd: float | None


class ThreadUsage(msgspec.Struct, frozen=True):
    """Total usage of a thread; `usd` is None when no call had a price. `estimated` counts calls with estimated
    tokens."""

    thread: ThreadId
    calls: int
    tokens: int
    cached_tokens: int
    usd: float | None
    estimated: int = 0


class StoredStep(msgspec.Struct, frozen=True):
    """A recorded step of a turn."""

    thread: ThreadId
    turn: TurnId
    step: Step


CASES_CHAIN = "checks"
"""The audit chain of calls that ran in throw-away workspaces, for an agent's cases."""
GENESIS = "0" * 64
"""The `previous` of a chain's first entry."""

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_entry(entry: AuditEntry) -> str:
    """The entry as it is stored: JSON with sorted keys and without defaults; equal entries have equal text."""
    return _encoder.encode(entry).decode()


def entry_hash(previous: str, chain: str, number: int, micros: int, entry: str) -> str:
    """SHA-256 (hex) over the previous hash, the chain's name, the entry's number from 1, its time and its stored
    text."""
    return hashlib.sha256(f"{previous}\n{chain}\n{number}\n{micros}\n{entry}".encode()).hexdigest()
