"""The store's port: one transaction a call, in views by concern. What a method writes is durable on return."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Protocol

from shoal.domain.budget import Budget
from shoal.domain.children import ChildStore
from shoal.domain.events import Event, EventData, RetryRequested, Scope, Verdict
from shoal.domain.ids import ApprovalId, ThreadId, TurnId
from shoal.domain.messages import Abort, Deletion, Edit, FollowUp, Prompt, Receipt, Steer
from shoal.domain.outbox import Outbox
from shoal.domain.permissions import Trust
from shoal.domain.processes import Processes
from shoal.domain.records import (
    Approval,
    Artifact,
    AuditEntry,
    AuditRow,
    Backlog,
    Commit,
    Committed,
    Lease,
    Revision,
    Settlement,
    Snapshot,
    Spend,
    StoredStep,
    Stretch,
    ThreadInfo,
    UsageRow,
    Verification,
)
from shoal.domain.registry import Registry
from shoal.domain.tokens import Tokens
from shoal.domain.triggers import Triggers


class Inbox(Protocol):
    """What people sent that no turn has taken yet."""

    async def accept(self, prompt: Prompt, prompts_max: int) -> Receipt:
        """Store a prompt once per (platform, key): accepted, duplicate, or busy when `prompts_max` wait already."""
        ...

    async def accept_now(self, message: Steer | FollowUp) -> Receipt:
        """Store it for the running turn: delivered, duplicate, or dropped when no turn is open."""
        ...

    async def abort(self, message: Abort) -> Receipt:
        """Mark the open turn as aborted by a person: delivered, or dropped when none is open."""
        ...

    async def revise(self, message: Edit | Deletion) -> Revision:
        """Change or drop a message that still waits (accepted), or journal the change (delivered); by its author only.

        An unknown message, or another author, is dropped; the same change again is a duplicate."""
        ...

    async def waiting(self) -> list[ThreadId]:
        """Threads with an open turn or a queued prompt: what has to be woken at start."""
        ...

    async def backlog(self) -> Backlog:
        """How much waits in all mailboxes, for metrics."""
        ...


class Journal(Protocol):
    """The events of threads. Only the holder of the newest lease appends to a turn."""

    async def lease(self, thread: ThreadId) -> Lease | None:
        """Take the thread over by raising its epoch. None when it has no open turn and no prompt waits."""
        ...

    async def held(self, lease: Lease) -> Lease | None:
        """A lease as it stands now, where it is still the newest, no turn is open and a prompt is seen to wait.

        Changes nothing and waits for nobody, so that None only says that a lease has to be taken.
        """
        ...

    async def open_turn(self, lease: Lease, prompt: Prompt, commit: Commit) -> Committed:
        """Take the prompt out of the mailbox and append the turn's first events. Raises StaleEpoch."""
        ...

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        """Append events and all that belongs to them. Raises StaleEpoch."""
        ...

    async def take_steers(self, lease: Lease, turn: TurnId) -> Committed:
        """Append the waiting steers as `steered` events; empty when there are none. Raises StaleEpoch."""
        ...

    async def finish_turn(self, lease: Lease, commit: Commit) -> Committed:
        """Append the turn's last events and close it, unless a steer or follow-up waits: then those are appended
        instead of `turn_finished`, and the turn goes on; or a person has stopped it: then only what was said is
        appended. One that was aborted or failed closes in any case; open
        approvals of the turn are cancelled. Raises StaleEpoch."""
        ...

    async def backfill(self, lease: Lease, missed: Sequence[Prompt]) -> Committed:
        """Append what a platform has of the thread and the mailbox never saw, each message once; our own posts and
        what was known are left out. Raises StaleEpoch."""
        ...

    async def append(self, thread: ThreadId, events: Sequence[EventData]) -> tuple[Event, ...]:
        """Append events outside any turn without a lease (cleared, backfilled, a subagent's result)."""
        ...

    async def retry(self, thread: ThreadId, turn: TurnId, request: RetryRequested) -> tuple[Event, ...]:
        """Journal the request and have the open turn, which waits for its model, ask again at once.

        Empty, with nothing journaled, when none waits, or another than `turn` (empty: whichever).
        """
        ...

    async def take_retries(self, again_seconds: float) -> list[ThreadId]:
        """Threads whose turn is to ask its model again now, with their wakes; the same one at the earliest after
        `again_seconds`, unless it went on."""
        ...

    async def next_retry_at(self) -> datetime | None:
        """When the next turn asks its model again; None when no turn waits."""
        ...

    async def events(self, thread: ThreadId, after: int = 0, limit: int = 10_000, *, before: int = 0) -> list[Event]:
        """Events with a higher number than `after` (and lower than `before`), oldest first, at most `limit`."""
        ...

    async def threads(
        self, limit: int = 200, *, agent: str = "", before: datetime | None = None, channels: Sequence[str] = ()
    ) -> list[ThreadInfo]:
        """Threads, the last active first; with `channels` (`PLATFORM:CHANNEL:`) theirs alone, and their subagents'."""
        ...

    async def thread(self, thread: ThreadId) -> ThreadInfo | None:
        """One thread, or None."""
        ...

    async def prompt(self, digest: str) -> bytes | None:
        """A system prompt stored by a turn's first commit, or None."""
        ...

    async def steps(self, thread: ThreadId) -> list[StoredStep]:
        """What the thread's turns spent their time on, oldest first."""
        ...


class Approvals(Protocol):
    """Questions to people."""

    async def get(self, approval: ApprovalId) -> Approval | None:
        """One approval, or None."""
        ...

    async def search(self, *, pending: bool = True, thread: ThreadId | None = None, limit: int = 200) -> list[Approval]:
        """Approvals, newest first."""
        ...

    async def settle(
        self, approval: ApprovalId, verdict: Verdict, scope: Scope, by: str, trust: Trust, *, token: str = ""
    ) -> Settlement:
        """Decide it, once, and journal it; `trust` is how far `by` is trusted, `token` the access token they came with.

        Raises NotFound, Conflict when decided already, Gone when expired, and InvalidInput for the whole thread where
        the approval does not cover all that may run.
        """
        ...

    async def grants(self, thread: ThreadId, call_digest: str) -> list[Approval]:
        """The approvals by which people allowed this call for the whole thread, newest first, at most GRANTS_MAX."""
        ...

    async def expire(self) -> list[Settlement]:
        """Settle every pending approval whose time is up."""
        ...


class Audit(Protocol):
    """The hash-chained log; entries that belong to a turn come in with its commits, chained by thread."""

    async def record(self, chain_name: str, entries: Sequence[AuditEntry]) -> None:
        """Append entries to a chain."""
        ...

    async def tail(self, limit: int = 100, *, chain_name: str = "") -> list[AuditRow]:
        """The newest entries, oldest of them first."""
        ...

    async def chains(self) -> list[tuple[str, int, str]]:
        """Every chain with its length and head hash as the threads' rows know them."""
        ...

    async def rows(self, chain_name: str, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        """Entries of a chain by number."""
        ...

    async def verify(self) -> Verification:
        """Check every entry of every chain, as they all are at one moment."""
        ...


class Artifacts(Protocol):
    """Which results threads keep whole; a row is made by the `tool_result` event that names it."""

    async def of_thread(self, thread: ThreadId, limit: int = 1000) -> list[Artifact]:
        """Those of a thread, newest first."""
        ...

    async def find(self, thread: ThreadId, name: str) -> Artifact | None:
        """The thread's newest one whose digest begins with `name`, or None."""
        ...

    async def expire(self, before: datetime) -> list[str]:
        """Forget those made before this time; returns the digests that no thread keeps any more."""
        ...


class Snapshots(Protocol):
    """Saved conversations, and the threads that may be saved or begun anew."""

    async def add(self, snapshot: Snapshot) -> None:
        """Store a row."""
        ...

    async def of_channel(self, agent: str, channel: str, limit: int = 100) -> list[Snapshot]:
        """The agent's in threads whose id begins with `channel` (empty: everywhere), newest first."""
        ...

    async def get(self, snapshot: str) -> Snapshot | None:
        """One, or None."""
        ...

    async def stretch(self, thread: ThreadId) -> Stretch | None:
        """Where the thread's window is; None for an unknown thread."""
        ...

    async def stretches(self, agents: Sequence[str]) -> list[Stretch]:
        """The threads of these agents whose window is not empty, the last active first; at most 10,000."""
        ...

    async def begin(self, thread: ThreadId, last_seq: int, events: Sequence[EventData]) -> tuple[Event, ...]:
        """Append, if the journal still ends at `last_seq` and the thread is at rest. Raises Conflict if not."""
        ...


class Search(Protocol):
    """Full text search over the journals."""

    async def said(self, words: str, *, within: str = "", limit: int = 20) -> list[Event]:
        """What people and agents said with all of these words, newest first.

        `within` is a thread, or `platform:channel:` for all of a channel; empty is everywhere.
        """
        ...


class Ledger(Protocol):
    """What models cost."""

    async def record(self, thread: ThreadId, turn: TurnId, spent: Spend) -> None:
        """Record a call by itself and settle its reservation: one of no turn, or one whose answer was cut off."""
        ...

    async def usage(self, days: int = 30) -> list[UsageRow]:
        """Use by day, agent and model, newest first."""
        ...


ONCE = "once"
"""A scope of settings for what is done once for its key and cannot come again later than `bookkeeping_days`. A value
begins with when that was, in microseconds, and is forgotten like a message that was taken in."""


class Settings(Protocol):
    """Small durable values by scope (a server, a platform's polling offset, the last active channel)."""

    async def get(self, scope: str, key: str) -> str | None:
        """The value, or None."""
        ...

    async def put(self, scope: str, key: str, value: str) -> None:
        """Set it."""
        ...

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        """Set it if it is still as expected (None: not set); False when somebody was faster."""
        ...

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Keys and values of a scope by key, at most `limit` of those after the key `after`."""
        ...

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        """Forget it if it is still as expected; False when it is not."""
        ...


class Bookkeeping(Protocol):
    """Rows that only served delivery, once they are done."""

    def forget(self, before: datetime, batch_rows: int = 500) -> AsyncGenerator[int]:
        """Delete those that have been done since before this time, at most `batch_rows` a step, each durable by itself.

        Yields how many rows each step deleted; whoever asks pauses between them. What waits, and what may still be
        asked for, stays whatever its age. Several processes may do so at once.
        """
        ...


class Store(Protocol):
    """All views over one database."""

    @property
    def inbox(self) -> Inbox: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def approvals(self) -> Approvals: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def triggers(self) -> Triggers: ...

    @property
    def artifacts(self) -> Artifacts: ...

    @property
    def search(self) -> Search: ...

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def children(self) -> ChildStore: ...

    @property
    def processes(self) -> Processes: ...

    @property
    def tokens(self) -> Tokens: ...

    @property
    def bookkeeping(self) -> Bookkeeping: ...

    async def close(self) -> None:
        """Finish what was handed in, then close."""
        ...
