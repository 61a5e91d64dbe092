"""Transactions on the journal: leases, turns and context windows.

Events are appended in the same transaction as the writes that depend on them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from shoal.kernel.clock import Clock, from_micros
from shoal.kernel.errors import Conflict, QueueChanged, StaleEpoch
from shoal.kernel.events import (
    ApprovalRequested,
    Event,
    EventData,
    Failed,
    FilesChanged,
    RetryRequested,
    RetryScheduled,
    Steered,
    TurnFinished,
    TurnStarted,
    UserSaid,
    decode_data,
    spans_to,
)
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Prompt
from shoal.kernel.records import (
    Commit,
    Committed,
    ContextWindow,
    Lease,
    OutboxRow,
    Step,
    StoredStep,
    ThreadInfo,
)
from shoal.store.appends import SEQ_END, append, append_outside, chain, event, platform_of, put_post, title_of
from shoal.store.approvals import cancel_approvals, insert_approval
from shoal.store.budget import spend
from shoal.store.causes import Cause
from shoal.store.checkpoints import note_checkpoints
from shoal.store.driver import (
    Batch,
    Driver,
    Query,
    Row,
    Script,
    StorePart,
    dump,
    first_after,
    moment,
    number,
    query,
    reader,
    reads,
    text,
    writes,
    writes_at,
)
from shoal.store.inbox import QUEUE_READ_MAX, inbound, prompt_of, report, waiting_of
from shoal.store.outbox import put_claimed
from shoal.store.outcomes import show_card, show_outcomes
from shoal.store.staged import put_staged
from shoal.store.threads import branchings_until

TIME_END = 2**62

_thread_info = reader(ThreadInfo)
_step = reader(Step)
window_of = reader(ContextWindow)


FAILURES_MAX = 500
ENDED_TURNS_MAX = 100_000
HOUR_MICROS = 3_600_000_000
TURN_EVENTS, TURN_EVENTS_MAX = 40, 400
"""Number of events per read when searching for the beginning of a turn, and maximum number of events read in total."""


class EndedTurn(NamedTuple):
    """A turn that has ended, with its thread and at most TURN_EVENTS_MAX of its newest events."""

    thread: ThreadInfo
    events: tuple[Event, ...]


class EndedTurns(msgspec.Struct, frozen=True):
    """Statistics of the turns that ended with the same outcome in one hour. `at` is the start of the hour."""

    at: datetime
    outcome: str
    turns: int
    tokens: int


class Journal(StorePart):
    """The events of threads. Only the holder of a thread's newest lease may append to a turn."""

    def __init__(self, driver: Driver, clock: Clock, causes: Sequence[Cause] = ()) -> None:
        super().__init__(driver, clock)
        self._causes = causes

    @writes
    def lease(self, thread: ThreadId) -> Script[Lease | None]:
        """Claim a thread by incrementing its epoch, which invalidates earlier leases.

        Return None if the thread has neither an open turn nor a waiting prompt.
        """
        # Lock before reading, so that a concurrently accepted prompt is not missed.
        yield from query("thread_lock", thread=thread)
        asked = [Query(name, {"thread": thread}) for name in ("thread_lease", "inbox_steers")]
        asked.append(Query("inbox_queue", {"thread": thread, "limit": QUEUE_READ_MAX}))
        rows, steers, waiting = yield Batch(asked, last=True)
        if not rows:
            return None
        epoch, agent, last_seq, window_seq, open_turn, turn_seq, aborting, branch_seq, model, created_at = rows[0]
        return Lease(
            thread=thread,
            epoch=number(epoch),
            agent=text(agent),
            last_seq=number(last_seq),
            window_seq=number(window_seq),
            open_turn=TurnId(text(open_turn)),
            turn_seq=number(turn_seq),
            steers=bool(open_turn) and any(row[1] == "steer" for row in steers),
            aborting=bool(open_turn) and open_turn == aborting,
            waiting=waiting_of(waiting),
            branch_seq=number(branch_seq),
            model=text(model),
            created_at=number(created_at),
        )

    async def held(self, lease: Lease) -> Lease | None:
        """Return an updated lease if `lease` is still the newest, no turn is open, and a prompt is waiting.

        Otherwise, return None, and the caller must call `lease`. This is read-only and never blocks.
        """
        held = {"thread": lease.thread, "epoch": lease.epoch, "created_at": lease.created_at}
        rows = await self._read("thread_held", **held, limit=QUEUE_READ_MAX)
        if not rows:
            return None
        agent, last_seq, window_seq, model, *_ = rows[0]
        return Lease(
            thread=lease.thread,
            epoch=lease.epoch,
            agent=text(agent),
            last_seq=number(last_seq),
            window_seq=number(window_seq),
            open_turn=TurnId(""),
            turn_seq=lease.turn_seq,
            aborting=False,
            waiting=waiting_of([row[4:] for row in rows]),
            model=text(model),
            created_at=lease.created_at,
        )

    @writes_at
    def open_turn(
        self, at: datetime, lease: Lease, prompt: Prompt, commit: Commit, more: Sequence[Prompt] = ()
    ) -> Script[Committed]:
        """Move the prompt, and the prompts joined to it, from the mailbox to a new turn. Append the turn's first
        events.

        Raises StaleEpoch, and QueueChanged if one of these prompts is no longer waiting or has changed.
        """
        yield from query("thread_lock_leased", thread=lease.thread, epoch=lease.epoch)
        platform, lines = platform_of(lease.thread), (prompt, *more)
        taken = yield Batch([Query("inbox_take", {"platform": platform, "key": line.key}) for line in lines])
        for line, rows in zip(lines, taken, strict=True):
            if not rows or prompt_of(rows[0][0]) != line:
                raise QueueChanged(f"Thread {lease.thread}: the queue has changed.")
        agent = next((data.agent for data in commit.events if isinstance(data, TurnStarted)), "")
        yield from query("thread_open", thread=lease.thread, turn=commit.turn, agent=agent, now=at)
        return (yield from _write(lease, commit, at, last=True))

    @writes_at
    def commit(self, at: datetime, lease: Lease, commit: Commit) -> Script[Committed]:
        """Append events together with the writes that depend on them. Raises StaleEpoch.

        `commit.starts` is applied only if the turn is not being stopped, no steer is waiting, and no other event was
        appended.
        """
        starts = commit.starts
        if commit.void_approvals or starts is not None:
            held = yield from _hold(lease)
            is_free = not held.aborting and all(row[1] != "steer" for row in held.steers)
            if starts is not None and is_free and held.last_seq == starts.last_seq:
                events, audit = commit.events + starts.calls, commit.audit + starts.audit
                commit = msgspec.structs.replace(commit, events=events, audit=audit)
        else:
            yield from query("thread_lock_leased", thread=lease.thread, epoch=lease.epoch)
        return (yield from _write(lease, commit, at, last=True))

    @writes_at
    def take_steers(self, at: datetime, lease: Lease, turn: TurnId) -> Script[Committed]:
        """Append the waiting steers to the turn as `steered` events. Raises StaleEpoch."""
        return _take_steers(lease, turn, at, steers_only=True)

    @writes_at
    def finish_turn(self, at: datetime, lease: Lease, commit: Commit) -> Script[Committed]:
        """Append the turn's last events, cancel its pending approvals and close it. Raises StaleEpoch.

        If the outcome is `done` or `limit`, the turn stays open in two cases:

        - A person has stopped the turn. Only the turn's messages are appended.
        - A steer or follow-up is waiting. It is appended instead of `turn_finished`.
        """
        finished = next(data for data in commit.events if isinstance(data, TurnFinished))
        outcome = finished.outcome
        held = yield from _hold(lease)
        if commit.report is not None:
            yield from query("thread_lock", thread=commit.report.thread)
        if outcome in ("done", "limit"):
            ends = FilesChanged | ApprovalRequested | TurnFinished
            events = tuple(data for data in commit.events if not isinstance(data, ends))
            goes_on = msgspec.structs.replace(commit, events=events, posts=(), approvals=(), staged=None)
            if held.aborting:
                return (yield from _write(lease, goes_on, at))
            if held.steers:
                first = yield from _write(lease, goes_on, at)
                taken = yield from _take_steers(lease, commit.turn, at, steers_only=False)
                return Committed(first.events + taken.events)
        else:
            name = "inbox_drop_steers" if outcome == "aborted" else "inbox_promote_steers"
            yield from query(name, thread=lease.thread)
        committed = yield from _write(lease, msgspec.structs.replace(commit, void_approvals=True), at)
        yield from query("thread_close", thread=lease.thread, now=at)
        if commit.trigger:
            for cause in self._causes:
                yield from cause.turn_ended(commit.trigger, lease.thread, finished, at)
        reported = (yield from report(commit.report, at)) if commit.report is not None else ()
        queue = Query("inbox_queue", {"thread": lease.thread, "limit": QUEUE_READ_MAX})
        (waiting,) = yield Batch((queue,), last=True)
        return Committed(committed.events, waiting=waiting_of(waiting), reported=reported, claimed=committed.claimed)

    @writes_at
    def backfill(self, at: datetime, lease: Lease, missed: Sequence[Prompt]) -> Script[Committed]:
        """Append messages from the platform that never reached the mailbox. Each is appended once. Raises StaleEpoch.

        Skips known messages and the bot's own posts.
        """
        thread = lease.thread
        platform = platform_of(thread)
        yield from _hold(lease)
        new: list[EventData] = []
        for prompt in missed:
            message_id = prompt.message_id or prompt.key
            if (yield from query("posted_one", platform=platform, message_id=message_id, thread=thread)):
                continue
            row = {"platform": platform, "key": prompt.key, "thread": thread, "payload": dump(prompt)}
            if not (yield from query("inbox_missed", **row, now=at)):
                continue
            new.append(
                UserSaid(
                    text=prompt.text,
                    author=prompt.author,
                    message_id=message_id,
                    attachments=prompt.attachments,
                    reply_to=prompt.reply_to,
                    backfill=True,
                    said_at=prompt.at,
                    tainted_by=prompt.tainted_by,
                    refers_to=prompt.refers_to,
                )
            )
        return (yield from _write(lease, Commit(TurnId(""), tuple(new)), at)) if new else Committed(())

    @writes_at
    def append(self, at: datetime, thread: ThreadId, events: Sequence[EventData]) -> Script[tuple[Event, ...]]:
        """Append events outside any turn and without a lease, such as `cleared` or a subagent's result. Raises
        NotFound.
        """
        return append_outside(thread, TurnId(""), events, at)

    @writes
    def add_thread(self, thread: ThreadId, agent: str, title: str, events: Sequence[Event]) -> Script[bool]:
        """Create a thread from an imported conversation, whose events keep their times.

        Return False if the thread exists or `events` is empty.
        """
        if not events or (yield from query("thread_one", thread=thread)):
            return False
        yield from query("thread_ensure", thread=thread, agent=agent, title=title_of(title), now=events[0].at)
        for past in events:
            yield from append_outside(thread, past.turn, [past.data], past.at)
        return True

    @writes_at
    def retry(self, at: datetime, thread: ThreadId, turn: TurnId, request: RetryRequested) -> Script[tuple[Event, ...]]:
        """Journal the request and make the open turn retry its model call immediately.

        If `turn` is not waiting for a retry, do nothing and return no events. An empty `turn` means any turn.
        """
        yield from query("thread_lock", thread=thread)
        waiting = yield from query("thread_retry_now", thread=thread, turn=turn, now=at)
        if not waiting:
            return ()
        events = yield from append_outside(thread, TurnId(text(waiting[0][0])), [request], at)
        yield from query("wake", thread=thread)
        return events

    @writes_at
    def take_retries(self, at: datetime, again_seconds: float) -> Script[list[ThreadId]]:
        """Wake and return the threads whose model retry is due.

        A thread that does not continue is returned again after `again_seconds`.
        """
        rows = yield from query("threads_retry_due", now=at, again=at + timedelta(seconds=again_seconds))
        threads = [ThreadId(text(row[0])) for row in rows]
        for thread in threads:
            yield from query("wake", thread=thread)
        return threads

    async def next_retry_at(self) -> datetime | None:
        return moment((await self._read("threads_retry_next"))[0][0])

    async def events(self, thread: ThreadId, after: int = 0, limit: int = 10_000, *, before: int = 0) -> list[Event]:
        """Return events with numbers above `after`, oldest first. If `before` is set, return only events with numbers
        below it.
        """
        rows = await self._read("events_range", thread=thread, after=after, before=before or SEQ_END, limit=limit)
        return [event(thread, row) for row in rows]

    @reads
    def along(
        self, thread: ThreadId, tip: int, after: int = 0, limit: int = 10_000, *, before: int = 0
    ) -> Script[list[Event]]:
        """Return the events on the branch that ends with event `tip`. The other parameters are those of `events`."""
        events: list[Event] = []
        for span in spans_to(tip, (yield from branchings_until(thread, tip))):
            first, last = max(span.first, after + 1), min(span.last, (before or SEQ_END) - 1)
            if first <= last and len(events) < limit:
                window = {"after": first - 1, "before": last + 1, "limit": limit - len(events)}
                rows = yield from query("events_range", thread=thread, **window)
                events += [event(thread, row) for row in rows]
        return events

    async def threads(
        self,
        limit: int = 200,
        *,
        agent: str = "",
        before: datetime | None = None,
        channels: Sequence[str] = (),
        archived: bool = False,
    ) -> list[ThreadInfo]:
        """Return threads, most recently active first.

        `channels` (`PLATFORM:CHANNEL:`) selects the threads in these channels and the threads of their subagents.
        Archived threads are returned if `archived` is True, and all other threads if it is False.
        """
        where = {"agent": agent, "limit": limit, "before": before or TIME_END, "archived": archived}
        if not channels:
            everyones = "threads_archived" if archived else "threads_recent"
            rows = await self._read("threads_of_agent" if agent else everyones, **where)
            return [_thread_info(row) for row in rows]
        threads: list[ThreadInfo] = []
        for channel in channels:
            threads += map(_thread_info, await self._read("threads_of_channel", **where, channel=channel))
        return sorted(threads, key=lambda info: (info.updated_at, info.created_at, info.thread), reverse=True)[:limit]

    @reads
    def turns_ended(
        self, since: datetime, limit: int, *, within: str = "", faults: bool = False
    ) -> Script[list[EndedTurn]]:
        """Return the newest turns that ended since a time, in threads whose ids begin with `within`.

        Subagents' turns and silent turns are excluded. With `faults`, only turns that failed or reached a limit are
        returned.
        """
        where = {"since": since, "low": within, "high": first_after(within)}
        turns: list[EndedTurn] = []
        for row in (yield from query("turns_ended", **where, limit=limit, faults=faults)):
            thread, seq, turn = ThreadId(text(row[0])), number(row[1]), TurnId(text(row[2]))
            infos = yield from query("thread_one", thread=thread)
            events = yield from _turn_until(thread, turn, seq)
            if infos and events:
                turns.append(EndedTurn(_thread_info(infos[0]), tuple(events)))
        return turns

    async def turns_ended_by_hour(self, since: datetime, *, within: str = "") -> list[EndedTurns]:
        """Count the turns that ended since a time, by hour and outcome. Counts at most the newest ENDED_TURNS_MAX."""
        where = {"since": since, "low": within, "high": first_after(within), "counted": ENDED_TURNS_MAX}
        rows = await self._read("turns_ended_by_hour", **where)
        return [
            EndedTurns(from_micros(number(row[0]) * HOUR_MICROS), text(row[1]), number(row[2]), number(row[3]))
            for row in rows
        ]

    async def pinned(self, limit: int = 200) -> list[ThreadInfo]:
        """Return pinned threads, most recently active first."""
        return [_thread_info(row) for row in await self._read("threads_pinned", limit=limit)]

    async def failures(self, thread: ThreadId) -> list[Failed]:
        """Return a thread's failures, newest first, at most FAILURES_MAX."""
        rows = await self._read("failures_of", thread=thread, limit=FAILURES_MAX)
        failures = (decode_data(Failed.type, text(row[0])) for row in rows)
        return [data for data in failures if isinstance(data, Failed)]

    async def thread(self, thread: ThreadId) -> ThreadInfo | None:
        return await self._one(_thread_info, "thread_one", thread=thread)

    async def prompt(self, digest: str) -> bytes | None:
        rows = await self._read("prompt_one", digest=digest)
        return text(rows[0][0]).encode() if rows else None

    async def steps(self, thread: ThreadId) -> list[StoredStep]:
        rows = await self._read("steps_of_thread", thread=thread)
        return [StoredStep(thread, TurnId(text(row[0])), _step(row[1:])) for row in rows]


def _turn_until(thread: ThreadId, turn: TurnId, seq: int) -> Script[list[Event]]:
    """Return a turn's events, oldest first. Reads backwards from event `seq`, at most TURN_EVENTS_MAX events."""
    events: list[Event] = []
    before = seq + 1
    while before > max(1, seq + 1 - TURN_EVENTS_MAX):
        after = max(0, before - 1 - TURN_EVENTS)
        rows = yield from query("events_range", thread=thread, after=after, before=before, limit=TURN_EVENTS)
        piece = [event(thread, row) for row in rows if row[1] == turn]
        events[:0] = piece
        if not rows or (piece and isinstance(piece[0].data, TurnStarted)):
            break
        before = after + 1
    return events


class WindowStore(StorePart):
    """Context windows of threads: the events that the model sees."""

    async def window(self, thread: ThreadId) -> ContextWindow | None:
        return await self._one(window_of, "window_one", thread=thread)

    async def messages(self, thread: ThreadId) -> int:
        return number((await self._read("window_messages", thread=thread))[0][0])


class _Held(NamedTuple):
    aborting: bool
    last_seq: int
    steers: list[Row]


def _hold(lease: Lease) -> Script[_Held]:
    """Lock the thread. Call this before any other write to the thread. Raises StaleEpoch."""
    thread = {"thread": lease.thread}
    rows, steers = yield Batch((Query("thread_hold", {**thread, "epoch": lease.epoch}), Query("inbox_steers", thread)))
    if not rows:
        raise _stale(lease)
    return _Held(bool(rows[0][0]), number(rows[0][1]), steers)


def _stale(lease: Lease) -> StaleEpoch:
    return StaleEpoch(f"Thread {lease.thread}: another worker took it over (epoch {lease.epoch} is stale).")


def _write(lease: Lease, commit: Commit, at: datetime, *, last: bool = False) -> Script[Committed]:
    """Store all parts of a commit, the events last. Raises StaleEpoch, and Conflict if an approval cannot be used."""
    thread, events = lease.thread, commit.events
    if commit.void_approvals:
        events = (*(yield from cancel_approvals(thread, commit.turn, at)), *events)
    retry = next((data for data in commit.events if isinstance(data, RetryScheduled)), None)
    if retry is not None or commit.retried:
        yield from query("thread_retry", thread=thread, retry_at=retry and retry.next_at, now=at)
    claimed: list[OutboxRow] = []
    for post in commit.posts:
        row = None
        if commit.claim_seconds and post.thread == thread:
            row = yield from put_claimed(post, at, commit.claim_seconds)
        if row is not None:
            claimed.append(row)
        else:
            yield from put_post(post, at)
    if commit.use_approval and not (yield from query("approval_use", id=commit.use_approval)):
        raise Conflict(f"Approval {commit.use_approval} was already used or never granted.")
    yield from show_outcomes(commit.outcomes, at)
    for approval in commit.approvals:
        yield from insert_approval(thread, commit.turn, approval, at)
    if commit.staged is not None:
        yield from put_staged(commit.staged, at)
    if commit.shows:
        yield from show_card(commit.shows, at)
    for digest, body in commit.prompts:
        yield from query("prompt_insert", digest=digest, body=body.decode(), now=at)
    yield from chain(thread, commit.audit, at)
    if commit.spend is not None:
        yield from spend(thread, commit.turn, commit.spend, at)
    for step in commit.steps:
        yield from query("step_insert", thread=thread, turn=commit.turn, **msgspec.structs.asdict(step))
    for scope, key, value in commit.settings:
        yield from query("setting_note", scope=scope, key=key, value=value)
    yield from note_checkpoints(thread, commit.turn, events, at)
    committed = yield from append("thread_advance", thread, commit.turn, events, at, last=last, epoch=lease.epoch)
    if committed is None:
        raise _stale(lease)
    return msgspec.structs.replace(committed, claimed=tuple(claimed)) if claimed else committed


def _take_steers(lease: Lease, turn: TurnId, at: datetime, *, steers_only: bool) -> Script[Committed]:
    held = yield from _hold(lease)
    chosen = [row for row in held.steers if row[1] == "steer" or not steers_only]
    if not chosen:
        return Committed((), held.aborting)
    messages = [inbound(row[2]) for row in chosen]
    events = tuple(Steered(message.text, message.author, message.key) for message in messages)
    committed = yield from _write(lease, Commit(turn, events), at)
    for row in chosen:
        yield from query("inbox_taken", id=row[0])
    return committed
