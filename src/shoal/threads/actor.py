"""The actor of one thread: runs a turn for each prompt, in sequence. A failed turn does not stop it.

    state      meaning                                       ends when
    --------   -------------------------------------------   -------------------------------------------------------
    INACTIVE   no Actor object; the database has all state   a prompt, a decision or the next start wakes the thread
    ACTIVE     the transcript is in memory, no turn runs     a wake starts a turn (RUNNING), or `idle_seconds` have
                                                             passed (INACTIVE)
    RUNNING    a turn advances in the engine's task          the turn has finished and the queue is empty, or the
                                                             turn has parked (ACTIVE)

    the lease contains    what `advance` does
    -------------------   -----------------------------------------------------------------------------------
    no work               return
    an open turn          continue it: the same code path after a crash, a restart or a decision
    a waiting prompt      open a turn with it and its author's other waiting messages (kernel/messages.py).
                          The same transaction removes them from the mailbox.

An actor keeps the lease of a finished turn and can open the next turn under it. If another worker has claimed the
thread, opening the turn fails.

`signal("abort")` cancels the scope around the turn at its current await. Tools kill their processes while they
unwind. The actor then journals the streamed text, a result for every call, and turn_finished. A drain cancels the
task and journals nothing. The turn continues at the next start.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import anyio
import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.delivery.sender import Senders
from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.crash_log import CrashLog, SetAside
from shoal.kernel.errors import EndedTwice, InvalidInput, QueueChanged, ShoalError, StaleEpoch, StoreError
from shoal.kernel.events import (
    AssistantSaid,
    Compacted,
    EffectsAccepted,
    Event,
    EventData,
    Failed,
    StatusChanged,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.files import Folders
from shoal.kernel.hooks import TurnSummary
from shoal.kernel.ids import OWN_PLATFORMS, ApprovalId, ThreadId, TurnId, thread_address
from shoal.kernel.messages import AcceptedCalls, Prompt, Waiting, joined, pause_left
from shoal.kernel.permissions import Audience
from shoal.kernel.ports import LiveHub, SignalKind
from shoal.kernel.records import CallOutcome, Commit, NewPost
from shoal.kernel.settings import MailboxSettings
from shoal.permissions.access import Links
from shoal.store.store import Store
from shoal.threads.attachments import Attachments
from shoal.threads.backfill import Backfill
from shoal.threads.presence import NO_RIGHTS, Presence, Rights
from shoal.threads.scope import Scopes, noted_audience, noted_channel
from shoal.turn.compaction import ThreadTitles
from shoal.turn.context import ContextBuilder
from shoal.turn.loop import TurnLoop, TurnOutcome
from shoal.turn.outage import STOPPED
from shoal.turn.run import TurnRun
from shoal.turn.thread import ThreadView

log = logging.getLogger(__name__)

ANSWER_FIRST = "I am waiting for a decision on the request above. I will read your message after that."
ABORTED_CALL = "Aborted: a person stopped the turn."
ABORTED_RUNNING = "Aborted while it ran: a person stopped the turn. Its effects are unknown."
FAILED_CALL = "Not run: the turn failed."
FAILED_RUNNING = "The turn failed while this call was running. Its effects are unknown."
RESTORED = (
    "I was restored from a backup and may have answered this message before. Send it again if you still need an answer."
)
INTERNAL_ERROR = "Something went wrong on my side. Please try again. The details are in the log."
TIMED_OUT = (
    "I stopped because this turn reached its time limit. Ask for less in one message, or raise turns.timeout_seconds."
)


class ActorServices(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    hub: LiveHub
    clock: Clock
    agents: AgentRegistry
    wake: Callable[[ThreadId], Awaitable[None]]
    """Makes the engine advance another thread."""
    context: ContextBuilder
    loop: TurnLoop
    titles: ThreadTitles
    senders: Senders
    attachments: Attachments
    backfill: Backfill
    presence: Presence
    scopes: Scopes
    links: Links
    folders: Folders
    crash_log: CrashLog
    restored_at: datetime | None
    """Time at which this home was restored from a backup, or None. Older unfinished work fails, because it may have
    been finished after the backup.
    """
    mailbox: MailboxSettings
    turn_ended: Callable[[TurnSummary], None]
    end_departed: Callable[[], Awaitable[None]]
    """Ends the work of people who no longer have access."""
    project: Callable[[ThreadId, list[Event]], Awaitable[None]]
    """Writes a finished turn into the thread's readable files."""
    stopping: Callable[[], bool]
    """Returns True if Shoal is stopping. In that case, no turn is opened."""


class Actor:
    """Advances one thread in this process. Only one worker at a time has a thread's lease."""

    def __init__(self, thread: ThreadId, services: ActorServices) -> None:
        self.thread = thread
        self.view: ThreadView | None = None
        self.running = False
        self.held_bytes = 0
        self.last_used = services.clock.monotonic()
        self._run: TurnRun | None = None
        self._services = services
        self._maintenance: anyio.CancelScope | None = None
        self._skip_maintenance = False
        self._answered: Waiting | None = None

    async def advance(self) -> None:
        """Advance the thread until it has no more work or waits for a person.

        Raises StoreError if the database fails. The work is still stored, but the thread must be woken again.
        """
        services, journal = self._services, self._services.store.journal
        self.running = True
        try:
            lease = None
            if self.view is not None and not self.view.lease.open_turn:  # Reuse the lease of the finished turn.
                lease = await journal.held(self.view.lease)
            lease = lease or await journal.lease(self.thread)
            if lease is None:
                return
            view = self.view
            was_recreated = view is not None and view.lease.created_at != lease.created_at
            was_branched = view is not None and lease.branch_seq > view.transcript.last_seq
            if view is None or was_recreated or was_branched:
                enqueue, folders, context = services.senders.enqueue, services.folders, services.context
                hub, checkpoints = services.hub, services.loop.checkpoints
                if services.crash_log.has_others:  # This process may continue a turn in which another process died.
                    await services.crash_log.learn()
                view = self.view = ThreadView(
                    journal, hub, enqueue, lease, context.traits, folders, context.meter, checkpoints
                )
            else:
                view.renew(lease)
            await view.load()
            while view.lease.open_turn or view.waiting is not None:
                self._skip_maintenance = False
                try:
                    if await self._take_turn(view) == "parked":
                        await self._ask_to_answer(view)
                        services.senders.poke(view.chat)
                        return
                except QueueChanged:
                    lease = await journal.held(view.lease) or await journal.lease(self.thread)
                    if lease is None:
                        break
                    view.renew(lease)
                    await view.load()
                    continue
                await services.project(self.thread, view.unprojected)
                state = view.open
                if state.finished is not None:
                    fields = {
                        "thread_id": self.thread,
                        "outcome": state.finished.outcome,
                        "steps": state.finished.steps,
                    }
                    log.info("turn finished", extra=fields)
                    services.turn_ended(
                        TurnSummary(
                            self.thread,
                            view.turn,
                            state.agent,
                            state.finished.outcome,
                            state.finished.reply,
                            state.finished.steps,
                            state.finished.usage,
                            view.tainted_by,
                        )
                    )
                if state.caller is not None:
                    await services.wake(state.caller.thread)
                view.close_turn()
                if services.stopping():
                    return
            if self._run is not None and not self._skip_maintenance:
                with anyio.CancelScope() as self._maintenance:
                    await services.loop.compactor.after_turn(self._run)
                    if services.titles.is_on:
                        await services.titles.after_turn(self._run)
                self._maintenance = None
        except StaleEpoch as error:
            log.info("thread taken over", extra={"thread_id": self.thread, "why": str(error)})
            self.view = self._run = None
        except BaseException:
            self.view = self._run = None
            raise
        finally:
            self.running = False
            self.held_bytes = self.view.held_bytes if self.view is not None else 0
            self.last_used = services.clock.monotonic()

    async def _ask_to_answer(self, view: ThreadView) -> None:
        """Remind people, once per approval, to decide it before their new messages are answered."""
        behind = view.waiting if view.waiting is not self._answered else None
        if behind is None or behind.prompt.origin != "person" or thread_address(self.thread).platform in OWN_PLATFORMS:
            return
        waiting = await self._services.store.approvals.search(thread=self.thread)
        for asked in [approval for approval in waiting if not approval.item.staged][:1]:
            await self._services.store.outbox.put(NewPost(f"waiting:{asked.id}", self.thread, ANSWER_FIRST))

    def signal(self, kind: SignalKind, turn: TurnId) -> None:
        """Apply a signal to the running turn. Does not block. Ignores signals for an earlier turn."""
        if self.view is None or not self.running or self.view.lease.open_turn != turn:
            return
        if kind == "steer":
            self.view.steered = True
        elif kind == "abort":
            self.view.abort()

    def cancel_maintenance(self) -> None:
        """Cancel background compaction, or keep it from starting, because a prompt is queued."""
        self._skip_maintenance = True
        if self._maintenance is not None:
            self._maintenance.cancel()

    async def _take_turn(self, view: ThreadView) -> TurnOutcome:
        services = self._services
        try:
            if services.restored_at is not None and _since(view) <= services.restored_at:
                raise InvalidInput(RESTORED)
            asked = view.open if view.lease.open_turn else view.waiting.prompt if view.waiting is not None else None
            rights = await services.presence.rights(self.thread, asked) if asked is not None else NO_RIGHTS
            if rights is None:
                await services.end_departed()
                if not view.lease.open_turn:
                    raise QueueChanged(f"Thread {self.thread}: its author no longer has access.")
                view.abort()
                rights = NO_RIGHTS
            run: TurnRun | None = None
            if not view.lease.open_turn:
                assert view.waiting is not None, "no prompt waits"
                async with services.crash_log.one_by_one(f"{self.thread} {view.waiting.lines[0].key}"):
                    run = await self._open(view, rights)
            # Accepted calls run without a model. Count a crash in each call separately.
            over = f" {len(view.open.results)}" if view.open.effects else ""
            async with services.crash_log.one_by_one(f"{self.thread} {view.turn}{over}"):
                if run is None:  # The turn was opened before a crash, a restart or a wait.
                    run = await self._resumed(view, rights)
                self._run = run
                with view.working(anyio.current_time() + services.loop.limits.timeout_seconds):
                    if not view.aborting:
                        return await services.loop.run(run)
            state = view.open
            if view.aborting:
                partial = view.with_known_links("".join(run.streamed))
                cut = AssistantSaid(
                    partial, stop="aborted", model=state.model, tainted_by=view.tainted_by, asked=run.asked
                )
                messages = (cut,) if partial else ()
                await self._close(view, *messages, TurnFinished("aborted", "", state.steps, state.usage))
            else:
                failed = Failed("timeout", TIMED_OUT)
                await self._close(view, failed, TurnFinished("failed", TIMED_OUT, state.steps, state.usage))
            view.show(StatusChanged("idle"))
        except StoreError:
            raise
        except Exception as error:
            foreseen = isinstance(error, ShoalError)
            log.error("turn failed: %s", error, exc_info=not foreseen, extra={"thread_id": self.thread})
            clean, waiting = services.context.clean, view.waiting
            if isinstance(error, EndedTwice):
                aside = SetAside(thread_address(self.thread).platform, self.thread, "")
                await services.crash_log.set_aside(aside, services.clock)
            if (
                not view.lease.open_turn
            ):  # Opening the turn failed. Journal its start without running it, so the failure can be recorded.
                assert waiting is not None, "an unattended turn failed"
                prompt = waiting.prompt
                opening: tuple[EventData, ...] = (
                    TurnStarted(prompt.answered_by or view.lease.agent, ""),
                    _said(prompt),
                )
                if prompt.accepted is not None:  # The card then reports that none of its calls ran.
                    opening += (EffectsAccepted(**msgspec.structs.asdict(prompt.accepted)),)
                await view.open_turn(waiting, Commit(TurnId(services.clock.new_id()), opening))
            message = clean(str(error) if isinstance(error, InvalidInput) else INTERNAL_ERROR)
            failed = Failed("internal", message, clean(f"{type(error).__name__}: {error}"))
            await self._close(view, failed, TurnFinished("failed", message, view.open.steps, view.open.usage))
        return "finished"

    async def _resumed(self, view: ThreadView, rights: Rights) -> TurnRun:
        services = self._services
        scope = await services.scopes.open(view, view.open, rights)
        await services.folders.pull(self.thread, scope.agent)
        system, tools = await services.context.resume(view, scope)
        if self._run is not None and self._run.turn == view.turn:
            return msgspec.structs.replace(self._run, scope=scope, system=system, tools=tools)
        return TurnRun(view.turn, view, scope, system, tools)

    async def _open(self, view: ThreadView, rights: Rights) -> TurnRun:
        """Open a turn for the waiting messages.

        If the author may still be writing, waits and then raises QueueChanged, because more messages may have arrived.
        """
        services, waiting = self._services, view.waiting
        assert waiting is not None, "no prompt waits"
        seconds = pause_left(waiting, self._answered, to_micros(services.clock.now()), services.mailbox.pause_seconds)
        if seconds:
            await services.clock.sleep(seconds)
            raise QueueChanged(f"Thread {self.thread}: its author was still writing.")
        if waiting.prompt.accepted is not None:
            return await self._open_accepted(view, waiting, waiting.prompt.accepted, rights)
        known = self._run.scope.audience if self._run is not None else Audience()
        scope = await services.scopes.open(view, waiting.prompt, rights)
        prompt, lines, author = waiting.prompt, list(waiting.lines), waiting.prompt.author
        if prompt.caller is None and rights.of(author) != author:  # Store the authors' current roles and trust.
            lines = [msgspec.structs.replace(line, author=rights.of(author)) for line in lines]
            prompt = joined(lines)
        agent, audience = scope.agent, scope.audience
        notices = await services.folders.pull(self.thread, agent)
        await services.backfill.before(view, prompt)
        if prompt.refers_to:  # Backfill may just have added the earlier text.
            in_the_log = {event.data.message_id for event in view.unprojected if isinstance(event.data, UserSaid)}
            lines = [
                msgspec.structs.replace(
                    line,
                    refers_to=tuple(
                        reference
                        for reference in line.refers_to
                        if reference.kind not in ("opening", "before") or reference.message_id not in in_the_log
                    ),
                )
                for line in lines
            ]
            prompt = joined(lines)
        if prompt.attachments:  # Download the files here, then push their folder to the other machines.
            inside = partial(services.context.inside, agent, self.thread)
            for number, line in enumerate(lines):
                here = [
                    msgspec.structs.replace(attachment, path=services.folders.here(self.thread, attachment.path))
                    if attachment.path
                    else attachment
                    for attachment in line.attachments
                ]
                copied = msgspec.structs.replace(line, attachments=tuple(here))
                lines[number] = await services.attachments.take(copied, inside, agent.name, scope.asker)
            prompt = joined(lines)
            await services.folders.push(self.thread)
        opening = await services.context.open(view, scope, prompt)
        started = opening.started
        if notices:
            started = msgspec.structs.replace(started, context="\n".join((started.context, *notices)))
        if services.senders.speaks is not None and await services.senders.speaks(prompt):
            started = msgspec.structs.replace(started, speaks=True)
        settings: list[tuple[str, str, str]] = []
        if prompt.origin == "person":
            if prompt.history and prompt.author.trusted and not audience.guest:
                settings += noted_channel(agent.name, self.thread)
            if audience != known:
                settings += noted_audience(prompt, audience)
        expired = (Compacted(opening.expired_seq, reason="window"),) if opening.expired_seq else ()
        turn, events = TurnId(services.clock.new_id()), (*expired, started, _said(prompt))
        commit = Commit(turn, events, prompts=opening.prompts, settings=tuple(settings))
        await view.open_turn(waiting, commit)
        self._answered = waiting
        services.context.note_opened(opening)
        return TurnRun(turn, view, scope, opening.system, opening.tools)

    async def _open_accepted(
        self, view: ThreadView, waiting: Waiting, accepted: AcceptedCalls, rights: Rights
    ) -> TurnRun:
        """Open the turn that runs accepted staged calls.

        The turn calls no model, so its system text does not change.
        """
        services, prompt = self._services, waiting.prompt
        if services.restored_at is not None and prompt.at <= services.restored_at:
            raise InvalidInput(RESTORED)
        scope = await services.scopes.open(view, prompt, rights)
        await services.folders.pull(self.thread, scope.agent)
        started = TurnStarted(
            scope.agent.name,
            scope.agent.model,
            history=prompt.history,
            system=view.base,
            told=view.announced,
            asker=scope.asker,
            audience=scope.audience,
        )
        turn, effects = TurnId(services.clock.new_id()), EffectsAccepted(**msgspec.structs.asdict(accepted))
        await view.open_turn(waiting, Commit(turn, (started, _said(prompt), effects)))
        self._answered = waiting
        system, tools = await services.context.resume(view, scope)
        return TurnRun(turn, view, scope, system, tools)

    async def _close(self, view: ThreadView, *events: EventData) -> None:
        state, finished = view.open, events[-1]
        await self._services.loop.stop_background(self.thread)
        assert isinstance(finished, TurnFinished)
        by_a_person = finished.outcome == "aborted"
        unrun, running = (ABORTED_CALL, ABORTED_RUNNING) if by_a_person else (FAILED_CALL, FAILED_RUNNING)
        results = tuple(
            ToolFinished(
                call.id, call.name, running if call.id in state.started else unrun, is_error=True, stopped=by_a_person
            )
            for call in state.unresolved()
        )
        allowed = {id for id, verdict in state.verdicts.items() if verdict.decision == "allow"}
        outcomes = tuple[tuple[ApprovalId, CallOutcome], ...](
            (request.approval_id, "stopped" if call.id in state.started else "not_run")
            for call in state.unresolved()
            if call.id in allowed | state.started and (request := state.approvals.get(call.id)) is not None
        )
        posts = (*view.outage_ends(STOPPED), *view.answer(finished.reply, finished.outcome))
        await view.finish(Commit(state.turn, results + events, posts, outcomes=outcomes, shows=state.effects))


def _since(view: ThreadView) -> datetime:
    if view.lease.open_turn:
        return view.open.began_at or datetime.max.replace(tzinfo=UTC)
    assert view.waiting is not None, "no prompt waits"
    return datetime.fromtimestamp(view.waiting.since / 1_000_000, UTC)


def _said(prompt: Prompt) -> UserSaid:
    return UserSaid(
        text=prompt.text,
        author=prompt.author,
        message_id=prompt.message_id or prompt.key,
        origin=prompt.origin,
        attachments=prompt.attachments,
        reply_to=prompt.reply_to,
        caller=prompt.caller,
        tainted_by=prompt.tainted_by,
        direct=prompt.direct,
        joined=prompt.joined,
        refers_to=prompt.refers_to,
    )
