"""The journal's transactions: leases, appends, and what becomes durable together with them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from shoal.domain.cards import card_edit
from shoal.domain.clock import Clock, from_micros, to_micros
from shoal.domain.errors import Conflict, StaleEpoch
from shoal.domain.events import (
    ApprovalSettled,
    Event,
    EventData,
    RetryRequested,
    RetryScheduled,
    Steered,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.domain.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.domain.messages import Prompt
from shoal.domain.permissions import NO_COVERAGE
from shoal.domain.records import (
    Commit,
    Committed,
    Lease,
    NewApproval,
    OutboxRow,
    Step,
    StoredStep,
    ThreadInfo,
)
from shoal.store import rows as convert
from shoal.store.appends import append, append_outside, chain, put_post
from shoal.store.budget import spend
from shoal.store.children import report
from shoal.store.outbox import put_claimed
from shoal.store.script import Batch, Driver, Query, Row, Script, number, query, text
from shoal.store.triggers import note_turn

SEQ_END = 2**62
TIME_END = 2**62


class JournalView:
    """Implements `domain.store.Journal` over either dialect."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def lease(self, thread: ThreadId) -> Lease | None:
        """Take the thread over by raising its epoch; None when it has nothing to do."""
        return await self._driver.write(_lease(thread))

    async def held(self, lease: Lease) -> Lease | None:
        """The lease as it stands now, where a turn can be opened under it."""
        found = await self._driver.read(query("thread_held", thread=lease.thread, epoch=lease.epoch))
        if not found:
            return None
        agent, last_seq, window_seq, waiting = found[0]
        return Lease(
            thread=lease.thread,
            epoch=lease.epoch,
            agent=text(agent),
            last_seq=number(last_seq),
            window_seq=number(window_seq),
            open_turn=TurnId(""),
            turn_seq=lease.turn_seq,
            aborting=False,
            prompt=convert.prompt(waiting),
        )

    async def open_turn(self, lease: Lease, prompt: Prompt, commit: Commit) -> Committed:
        """Take the prompt and append the turn's first events."""
        return await self._driver.write(_open_turn(lease, prompt, commit, self._clock.now()))

    async def commit(self, lease: Lease, commit: Commit) -> Committed:
        """Append events and all that belongs to them."""
        return await self._driver.write(_commit(lease, commit, self._clock.now()))

    async def take_steers(self, lease: Lease, turn: TurnId) -> Committed:
        """Append the waiting steers."""
        return await self._driver.write(_take_steers(lease, turn, self._clock.now(), steers_only=True))

    async def finish_turn(self, lease: Lease, commit: Commit) -> Committed:
        """Close the turn, unless somebody has more to say to it."""
        return await self._driver.write(_finish_turn(lease, commit, self._clock.now()))

    async def backfill(self, lease: Lease, missed: Sequence[Prompt]) -> Committed:
        """Append what the mailbox never saw, each message once."""
        return await self._driver.write(_backfill(lease, missed, self._clock.now()))

    async def append(self, thread: ThreadId, events: Sequence[EventData]) -> tuple[Event, ...]:
        """Append events outside any turn."""
        return await self._driver.write(append_outside(thread, TurnId(""), events, self._clock.now()))

    async def retry(self, thread: ThreadId, turn: TurnId, request: RetryRequested) -> tuple[Event, ...]:
        """Have an open turn that waits for its model ask again at once."""
        return await self._driver.write(_retry(thread, turn, request, self._clock.now()))

    async def take_retries(self, again_seconds: float) -> list[ThreadId]:
        """Threads whose turn is to ask its model again now."""
        return await self._driver.write(_take_retries(self._clock.now(), again_seconds))

    async def next_retry_at(self) -> datetime | None:
        """When the next turn asks again."""
        return convert.moment((await self._driver.read(query("threads_retry_next")))[0][0])

    async def events(self, thread: ThreadId, after: int = 0, limit: int = 10_000, *, before: int = 0) -> list[Event]:
        """Events between two numbers, oldest first."""
        script = query("events_range", thread=thread, after=after, before=before or SEQ_END, limit=limit)
        return [convert.event(thread, row) for row in await self._driver.read(script)]

    async def threads(
        self, limit: int = 200, *, agent: str = "", before: datetime | None = None, channels: Sequence[str] = ()
    ) -> list[ThreadInfo]:
        """Threads, the last active first."""
        until = to_micros(before) if before is not None else TIME_END
        if not channels:
            of = {"agent": agent} if agent else {}
            script = query("threads_of_agent" if agent else "threads_recent", **of, limit=limit, before=until)
            return [convert.thread_info(row) for row in await self._driver.read(script)]
        found: list[ThreadInfo] = []
        for channel in channels:
            script = query("threads_of_channel", channel=channel, limit=limit, agent=agent, before=until)
            found += [convert.thread_info(row) for row in await self._driver.read(script)]
        return sorted(found, key=lambda info: (info.updated_at, info.created_at, info.thread), reverse=True)[:limit]

    async def thread(self, thread: ThreadId) -> ThreadInfo | None:
        """One thread, or None."""
        rows = await self._driver.read(query("thread_one", thread=thread))
        return convert.thread_info(rows[0]) if rows else None

    async def prompt(self, digest: str) -> bytes | None:
        """A stored system prompt, or None."""
        rows = await self._driver.read(query("prompt_one", digest=digest))
        return text(rows[0][0]).encode() if rows else None

    async def steps(self, thread: ThreadId) -> list[StoredStep]:
        """What the thread's turns spent their time on."""
        rows = await self._driver.read(query("steps_of_thread", thread=thread))
        return [_stored_step(thread, row) for row in rows]


def _stored_step(thread: ThreadId, row: Row) -> StoredStep:
    turn, step, description, started_at, duration_ms = row
    return StoredStep(
        thread,
        TurnId(text(turn)),
        Step(number(step), text(description), from_micros(number(started_at)), number(duration_ms)),
    )


def _lease(thread: ThreadId) -> Script[Lease | None]:
    yield from query("thread_lock", thread=thread)  # first, so that what is accepted in this moment is seen
    asked = [Query(name, {"thread": thread}) for name in ("thread_lease", "inbox_steers", "inbox_oldest")]
    found, steers, waiting = yield Batch(asked, last=True)
    if not found:
        return None
    epoch, agent, last_seq, window_seq, open_turn, turn_seq, aborting = found[0]
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
        prompt=convert.prompt(waiting[0][0]) if waiting else None,
    )


def _open_turn(lease: Lease, prompt: Prompt, commit: Commit, at: datetime) -> Script[Committed]:
    platform = lease.thread.split(":", 1)[0]
    yield from query("thread_lock_leased", thread=lease.thread, epoch=lease.epoch)
    if not (yield from query("inbox_take", platform=platform, key=prompt.key)):
        raise StaleEpoch(f"Thread {lease.thread}: the prompt was taken by another worker.")
    agent = next((data.agent for data in commit.events if isinstance(data, TurnStarted)), "")
    yield from query("thread_open", thread=lease.thread, turn=commit.turn, agent=agent, now=to_micros(at))
    return (yield from _write(lease, commit, at, last=True))


class _Held(NamedTuple):
    """Whether a person has stopped the thread's turn, the number of its last event, and what waits for the turn."""

    aborting: bool
    last_seq: int
    steers: list[Row]


def _hold(lease: Lease) -> Script[_Held]:
    """Lock the thread before anything else of it is touched."""
    thread = {"thread": lease.thread}
    found, steers = yield Batch((Query("thread_hold", {**thread, "epoch": lease.epoch}), Query("inbox_steers", thread)))
    if not found:
        raise _stale(lease)
    return _Held(bool(found[0][0]), number(found[0][1]), steers)


def _stale(lease: Lease) -> StaleEpoch:
    return StaleEpoch(f"Thread {lease.thread}: another worker took it over (epoch {lease.epoch} is stale).")


def _commit(lease: Lease, commit: Commit, at: datetime) -> Script[Committed]:
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


def _write(lease: Lease, commit: Commit, at: datetime, *, last: bool = False) -> Script[Committed]:
    now, thread = to_micros(at), lease.thread
    voided = (yield from _void(thread, commit.turn, now)) if commit.void_approvals else ()
    retry = next((data for data in commit.events if isinstance(data, RetryScheduled)), None)
    if retry is not None or commit.retried:
        until = None if retry is None else to_micros(retry.next_at)
        yield from query("thread_retry", thread=thread, retry_at=until, now=now)
    claimed = yield from _put_posts(thread, commit, at)
    if commit.use_approval and not (yield from query("approval_use", id=commit.use_approval)):
        raise Conflict(f"Approval {commit.use_approval} cannot be used: it was used already or never given.")
    if commit.approval is not None:
        yield from _insert_approval(thread, commit.turn, commit.approval, now)
    for digest, body in commit.prompts:
        yield from query("prompt_insert", digest=digest, body=body.decode(), now=now)
    yield from chain(thread, commit.audit, at)
    if commit.spend is not None:
        yield from spend(thread, commit.turn, commit.spend, at)
    for step in commit.steps:
        yield from query(
            "step_insert",
            thread=thread,
            turn=commit.turn,
            number=step.number,
            description=step.description,
            started_at=to_micros(step.started_at),
            duration_ms=step.duration_ms,
        )
    for scope, key, value in commit.settings:
        yield from query("setting_note", scope=scope, key=key, value=value)
    events = voided + commit.events
    committed = yield from append("thread_advance", thread, commit.turn, events, at, last=last, epoch=lease.epoch)
    if committed is None:
        raise _stale(lease)
    return msgspec.structs.replace(committed, claimed=claimed) if claimed else committed


def _put_posts(thread: ThreadId, commit: Commit, at: datetime) -> Script[tuple[OutboxRow, ...]]:
    """Enqueue what is to be posted; returns what was claimed with it."""
    claimed: list[OutboxRow] = []
    for post in commit.posts:
        if commit.claim_seconds and post.thread == thread:
            row = yield from put_claimed(post, at, commit.claim_seconds)
            if row is not None:
                claimed.append(row)
                continue
        yield from put_post(post, to_micros(at))
    return tuple(claimed)


def _retry(thread: ThreadId, turn: TurnId, request: RetryRequested, at: datetime) -> Script[tuple[Event, ...]]:
    yield from query("thread_lock", thread=thread)
    waiting = yield from query("thread_retry_now", thread=thread, turn=turn, now=to_micros(at))
    if not waiting:
        return ()
    events = yield from append_outside(thread, TurnId(text(waiting[0][0])), [request], at)
    yield from query("wake", thread=thread)
    return events


def _take_retries(at: datetime, again_seconds: float) -> Script[list[ThreadId]]:
    now = to_micros(at)
    rows = yield from query("threads_retry_due", now=now, again=now + int(again_seconds * 1e6))
    threads = [ThreadId(text(row[0])) for row in rows]
    for thread in threads:
        yield from query("wake", thread=thread)
    return threads


def _void(thread: ThreadId, turn: TurnId, now: int) -> Script[tuple[EventData, ...]]:
    rows = yield from query("approvals_cancel", thread=thread, turn=turn, now=now)
    for row in rows:
        where = ThreadId(text(row[3]) or thread)
        yield from put_post(card_edit(where, ApprovalId(text(row[0])), text(row[2]), "cancelled"), now)
    return tuple(ApprovalSettled(ApprovalId(text(row[0])), CallId(text(row[1])), "cancelled") for row in rows)


def _insert_approval(thread: ThreadId, turn: TurnId, approval: NewApproval, now: int) -> Script[None]:
    yield from query(
        "approval_insert",
        id=approval.id,
        thread=thread,
        turn=turn,
        call_id=approval.call_id,
        tool=approval.tool,
        actions=convert.dump(approval.actions),
        digest=approval.digest,
        shown=approval.shown,
        asked_by=approval.asked_by,
        reason=approval.reason,
        shown_in=approval.shown_in,
        call_digest=approval.call_digest,
        covers=convert.dump(approval.covers) if approval.covers != NO_COVERAGE else "",
        needs_trust=int(approval.needs_trust),
        now=now,
        expires_at=to_micros(approval.expires_at),
    )


def _backfill(lease: Lease, missed: Sequence[Prompt], at: datetime) -> Script[Committed]:
    platform = lease.thread.split(":", 1)[0]
    yield from _hold(lease)
    new: list[EventData] = []
    for prompt in missed:
        message_id = prompt.message_id or prompt.key
        own = yield from query("posted_one", platform=platform, message_id=message_id, thread=lease.thread)
        if own or not (yield from query("inbox_missed", **_missed_row(lease.thread, prompt), now=to_micros(at))):
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
            )
        )
    return (yield from _write(lease, Commit(TurnId(""), tuple(new)), at)) if new else Committed(())


def _missed_row(thread: ThreadId, prompt: Prompt) -> dict[str, str]:
    platform = thread.split(":", 1)[0]
    return {"platform": platform, "key": prompt.key, "thread": thread, "payload": convert.dump(prompt)}


def _take_steers(lease: Lease, turn: TurnId, at: datetime, *, steers_only: bool) -> Script[Committed]:
    held = yield from _hold(lease)
    chosen = [row for row in held.steers if row[1] == "steer" or not steers_only]
    if not chosen:
        return Committed((), held.aborting)
    messages = [convert.inbound(row[2]) for row in chosen]
    events = tuple(Steered(message.text, message.author, message.key) for message in messages)
    committed = yield from _write(lease, Commit(turn, events), at)
    for row in chosen:
        yield from query("inbox_taken", id=row[0])
    return committed


def _finish_turn(lease: Lease, commit: Commit, at: datetime) -> Script[Committed]:
    finished = next(data for data in commit.events if isinstance(data, TurnFinished))
    outcome = finished.outcome
    held = yield from _hold(lease)
    if commit.report is not None:
        yield from query("thread_lock", thread=commit.report.thread)
    if outcome in ("done", "limit"):
        kept = tuple(data for data in commit.events if not isinstance(data, TurnFinished))
        if held.aborting:
            return (yield from _write(lease, msgspec.structs.replace(commit, events=kept, posts=()), at))
        if held.steers:
            first = yield from _write(lease, msgspec.structs.replace(commit, events=kept, posts=()), at)
            taken = yield from _take_steers(lease, commit.turn, at, steers_only=False)
            return Committed(first.events + taken.events)
    else:
        yield from query("inbox_drop_steers" if outcome == "aborted" else "inbox_promote_steers", thread=lease.thread)
    committed = yield from _write(lease, msgspec.structs.replace(commit, void_approvals=True), at)
    yield from query("thread_close", thread=lease.thread, now=to_micros(at))
    if commit.trigger:
        yield from note_turn(commit.trigger, lease.thread, finished, at)
    told = (yield from report(commit.report, at)) if commit.report is not None else ()
    (waiting,) = yield Batch((Query("inbox_oldest", {"thread": lease.thread}),), last=True)
    prompt = convert.prompt(waiting[0][0]) if waiting else None
    return Committed(committed.events, prompt=prompt, told=told, claimed=committed.claimed)
