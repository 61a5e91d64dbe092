"""The actor of one thread: takes its prompts one by one, runs a turn for each, and survives whatever happens in one.

    state      means                                         left by
    --------   -------------------------------------------   ---------------------------------------------------
    INACTIVE   no Actor object exists; the rows have it all   a prompt, a decision or the next start wakes the thread
    ACTIVE     transcript in memory, nothing runs             a wake (-> RUNNING), idle_seconds (-> INACTIVE)
    RUNNING    a turn advances in the engine's task           finished and nothing queued, or parked (-> ACTIVE)

    lease says            what advance() does
    -------------------   -----------------------------------------------------------------------------
    nothing to do         return
    an open turn          go on with it: after a crash, a restart or a decision it is the same path
    a waiting prompt      open a turn with it, in one transaction that empties its place in the mailbox

An actor keeps the lease of a turn that has finished: as long as no other worker has taken the thread over, which the
opening of the next turn finds out, it needs no new one.

Abort: `signal("abort")` cancels the scope around the turn, at whatever await it stands; tools kill their processes
while they unwind. Only then is the abort journaled: the text streamed so far, a result for every call, turn_finished.
A drain cancels the task itself instead, and journals nothing: the turn goes on at the next start.
"""

import logging

import anyio
import msgspec

from shoal.actors.last_channel import last_channel, noted_channel
from shoal.actors.parts import Parts
from shoal.actors.readers import known_audience, noted_audience
from shoal.domain.agents import as_guest, within
from shoal.domain.cards import card_edit
from shoal.domain.errors import InvalidInput, ShoalError, StaleEpoch, StoreError
from shoal.domain.events import (
    AssistantSaid,
    Compacted,
    EventData,
    Failed,
    StatusChanged,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.domain.ids import ThreadId, TurnId, thread_address
from shoal.domain.messages import Author, Caller, Prompt
from shoal.domain.outage import STOPPED
from shoal.domain.permissions import Asker
from shoal.domain.ports import SignalKind
from shoal.domain.records import Commit, Lease
from shoal.domain.turnstate import TurnState
from shoal.turn.loop import TurnOutcome
from shoal.turn.session import Session

log = logging.getLogger(__name__)

ABORTED_CALL = "Aborted: a person stopped the turn."
ABORTED_RUNNING = "Aborted while it ran: a person stopped the turn. What it did so far is unknown."
FAILED_CALL = "Not run: the turn failed."
FAILED_RUNNING = "The turn failed while it ran. What it did so far is unknown."
INTERNAL_ERROR = "Something went wrong on my side. The details are in the log; please try again."
TIMED_OUT = "I stopped: this took longer than I may work on one message."


class Actor:
    """Advances one thread in this process."""

    __slots__ = ("_hurried", "_parts", "_settling", "last_used", "running", "session", "thread")

    def __init__(self, thread: ThreadId, parts: Parts) -> None:
        self.thread = thread
        self.session: Session | None = None
        self.running = False
        self.last_used = parts.clock.monotonic()
        self._parts = parts
        self._settling: anyio.CancelScope | None = None
        self._hurried = False

    @property
    def held_bytes(self) -> int:
        """About what its conversation takes in memory."""
        return self.session.held_bytes if self.session is not None else 0

    async def advance(self) -> None:
        """Run what the thread has to do until nothing is left or it waits for a person.

        Raises StoreError when the database fails; nothing is lost then, the thread has to be woken again.
        """
        self.running = True
        try:
            lease = await self._held() or await self._parts.store.journal.lease(self.thread)
            if lease is not None:
                await self._run(lease)
        except StaleEpoch as error:
            log.info("thread taken over", extra={"thread_id": self.thread, "why": str(error)})
            self.session = None
        except BaseException:
            self.session = None
            raise
        finally:
            self.running = False
            self.last_used = self._parts.clock.monotonic()

    def signal(self, kind: SignalKind, turn: TurnId) -> None:
        """React to a changed row of the turn that runs; never waits. What came too late for its turn is ignored."""
        if self.session is None or not self.running or self.session.lease.open_turn != turn:
            return
        if kind == "steer":
            self.session.steered = True
        elif kind == "abort":
            self.session.abort()

    def hurry(self) -> None:
        """A prompt waits: leave what can wait, or do not begin it."""
        self._hurried = True
        if self._settling is not None:
            self._settling.cancel()

    async def _held(self) -> Lease | None:
        """The lease of the last turn, where the next one can be opened under it."""
        if self.session is None or self.session.lease.open_turn:
            return None
        return await self._parts.store.journal.held(self.session.lease)

    async def _run(self, lease: Lease) -> None:
        session = await self._activate(lease)
        while session.lease.open_turn or session.next_prompt is not None:
            self._hurried = False
            if await self._step(session) == "parked":
                self._parts.poke_sender(session.chat)
                return
            await self._project(session)
            if session.caller is not None:
                await self._parts.children.ended(session.caller)
            session.close_turn()
            if self._parts.stopping():
                return
        await self._settle(session)

    async def _settle(self, session: Session) -> None:
        """What can wait is done while nothing else is to do; a new prompt ends it (`hurry`)."""
        if session.agent is None or self._hurried:
            return
        with anyio.CancelScope() as scope:
            self._settling = scope
            await self._parts.settle(session)
        self._settling = None

    async def _activate(self, lease: Lease) -> Session:
        session = self.session
        if session is None:
            parts = self._parts
            session = self.session = Session(
                parts.store.journal, parts.hub, parts.courier, lease, parts.folders, parts.context.meter
            )
        else:
            session.renew(lease)
        await session.load()
        return session

    async def _step(self, session: Session) -> TurnOutcome:
        """Advance one turn; whatever goes wrong in it ends this turn only, and is journaled."""
        try:
            if session.lease.open_turn:
                await self._resume(session)
            else:
                await self._open(session)
            return await self._run_turn(session)
        except StoreError:
            raise
        except Exception as error:
            foreseen = isinstance(error, ShoalError)
            log.error("turn failed: %s", error, exc_info=not foreseen, extra={"thread_id": self.thread})
            await self._fail(session, error)
            return "finished"

    async def _resume(self, session: Session) -> None:
        state = session.open
        agent = await self._parts.agents.resolve(state.agent or session.lease.agent, _place(self.thread, state.caller))
        session.agent = self._parts.agents.with_model(agent, state.model)
        await self._bind(session, state)
        await self._parts.folders.pull(self.thread, session.who)
        await self._parts.context.resume(session)

    async def _open(self, session: Session) -> None:
        prompt = session.next_prompt
        assert prompt is not None, "no prompt waits"
        agent = await self._parts.agents.resolve(
            prompt.agent or session.lease.agent, _place(self.thread, prompt.caller)
        )
        session.agent = self._parts.agents.with_model(agent, prompt.model)
        known = session.audience
        await self._bind(session, prompt)
        session.overflowed, session.squeezed_to = False, 0
        notices = await self._parts.folders.pull(self.thread, session.who)
        await self._parts.backfill(session, prompt)
        prompt = await self._take_files(prompt)
        opening = await self._parts.context.open(session, prompt)
        expired = (Compacted(opening.expired_seq, reason="window"),) if opening.expired_seq else ()
        started = opening.started
        if notices:
            started = msgspec.structs.replace(started, context="\n".join((started.context, *notices)))
        settings: tuple[tuple[str, str, str], ...] = ()
        if prompt.origin == "person" and prompt.history and prompt.author.trusted and not session.audience.guest:
            settings += noted_channel(session.who.name, self.thread)
        if prompt.origin == "person" and prompt.direct and session.audience != known:
            settings += noted_audience(self.thread, session.audience)
        commit = Commit(
            TurnId(self._parts.clock.new_id()),
            (*expired, started),
            prompts=opening.prompts,
            settings=settings,
        )
        await self._start(session, prompt, commit)
        self._parts.context.opened(opening)

    async def _take_files(self, prompt: Prompt) -> Prompt:
        """The prompt with its files on this machine, and those that came with it on all others."""
        if not prompt.attachments:
            return prompt
        folders = self._parts.folders
        here = [
            msgspec.structs.replace(one, path=folders.here(self.thread, one.path)) if one.path else one
            for one in prompt.attachments
        ]
        taken = await self._parts.take_files(msgspec.structs.replace(prompt, attachments=tuple(here)))
        await folders.push(self.thread)
        return taken

    async def _bind(self, session: Session, asked: Prompt | TurnState) -> None:
        """Settle for whom the turn works: who wrote, or whoever asked the turn that called it, within its bounds.

        One without a conversation speaks where people last wrote to the agent.
        """
        session.speaks_in = ThreadId("")
        if not asked.history:
            session.speaks_in = await last_channel(self._parts.store.settings, session.who.name)
        session.caller = caller = asked.caller
        if caller is None:
            asker = asker_of(self.thread, asked.author, direct=asked.direct)
            session.asker = self._parts.people.asker(asker)
            await self._find_readers(session, asked)
        else:
            session.agent = within(session.who, caller)
            asker = asker_of(caller.root, caller.author, direct=caller.direct)
            session.asker = self._parts.people.asker(asker)
            session.audience = caller.audience
        if session.audience.guest:
            session.agent = as_guest(session.who, session.chat)

    async def _find_readers(self, session: Session, asked: Prompt | TurnState) -> None:
        """Settle how far the turn sees. One that nobody wrote is read by who reads its conversation; of others it tells
        nothing where who asked for it is not trusted."""
        trusted = asked.author.trusted and not asked.tainted_by
        if asked.origin not in ("person", "api"):
            known = await known_audience(self._parts.store.settings, self.thread)
            if known is not None:
                session.asker = msgspec.structs.replace(session.asker, kind="direct")
                session.audience = msgspec.structs.replace(known, everywhere=known.everywhere and trusted)
                return
        found = self._parts.audiences.of(session.asker, asked.author, self.thread)
        session.audience = msgspec.structs.replace(found, everywhere=found.everywhere and trusted)

    async def _start(self, session: Session, prompt: Prompt, opening: Commit) -> None:
        """Open the turn with these events and what the prompt says."""
        said = UserSaid(
            text=prompt.text,
            author=prompt.author,
            message_id=prompt.message_id or prompt.key,
            origin=prompt.origin,
            attachments=prompt.attachments,
            reply_to=prompt.reply_to,
            caller=prompt.caller,
            tainted_by=prompt.tainted_by,
            direct=prompt.direct,
        )
        await session.start(prompt, msgspec.structs.replace(opening, events=(*opening.events, said)))

    async def _run_turn(self, session: Session) -> TurnOutcome:
        deadline = anyio.current_time() + self._parts.limits.timeout_seconds
        with anyio.CancelScope(deadline=deadline) as scope:
            session.scope = scope
            try:
                if not session.aborting:
                    return await self._parts.loop.run(session)
            finally:
                session.scope = None
        await self._end(session, timed_out=not session.aborting)
        return "finished"

    async def _fail(self, session: Session, error: Exception) -> None:
        if not session.lease.open_turn:
            prompt = session.next_prompt
            assert prompt is not None, "a turn failed that nobody asked for"
            session.caller = prompt.caller
            started = TurnStarted(prompt.agent or session.lease.agent, "")
            await self._start(session, prompt, Commit(TurnId(self._parts.clock.new_id()), (started,)))
        message = str(error) if isinstance(error, InvalidInput) else INTERNAL_ERROR
        message = self._parts.context.clean(message)
        failed = Failed("internal", message, self._parts.context.clean(f"{type(error).__name__}: {error}"))
        await self._close(session, failed, TurnFinished("failed", message, session.open.steps, session.open.usage))

    async def _end(self, session: Session, *, timed_out: bool) -> None:
        """Journal what the cancelled turn leaves."""
        state = session.open
        if timed_out:
            failed = Failed("timeout", TIMED_OUT)
            await self._close(session, failed, TurnFinished("failed", TIMED_OUT, state.steps, state.usage))
        else:
            partial = "".join(session.streamed)
            cut = AssistantSaid(partial, stop="aborted", model=state.model, tainted_by=session.tainted_by)
            said = (cut,) if partial else ()
            await self._close(session, *said, TurnFinished("aborted", "", state.steps, state.usage))
        session.hub.show(self.thread, state.turn, StatusChanged("idle"))

    async def _close(self, session: Session, *events: EventData) -> None:
        state = session.open
        await self._parts.children.stop(self.thread)
        finished = events[-1]
        assert isinstance(finished, TurnFinished)
        by_a_person = finished.outcome == "aborted"
        unrun, running = (ABORTED_CALL, ABORTED_RUNNING) if by_a_person else (FAILED_CALL, FAILED_RUNNING)
        results = tuple(
            ToolFinished(call.id, call.name, running if call.id in state.started else unrun, is_error=True)
            for call in state.unresolved()
        )
        cards = tuple(
            card_edit(session.chat, request.approval_id, request.shown, "stopped")
            for call in state.unresolved()
            if call.id in state.started and (request := state.approvals.get(call.id)) is not None
        )
        posts = (*cards, *session.outage_ends(STOPPED), *session.answer(finished.reply))
        commit = Commit(state.turn, results + events, posts)
        await session.finish(commit)

    async def _project(self, session: Session) -> None:
        events, session.unprojected = session.unprojected, []
        await self._parts.projector.project(self.thread, events)
        finished = session.open.finished
        if finished is not None:
            log.info(
                "turn finished",
                extra={"thread_id": self.thread, "outcome": finished.outcome, "steps": finished.steps},
            )


def asker_of(thread: ThreadId, author: Author, *, direct: bool) -> Asker:
    """Who a turn's calls are made for."""
    address = thread_address(thread)
    kind = "direct" if direct else "group"
    return Asker(
        trust="trusted" if author.trusted else "untrusted",  # who is the owner is for `People` to say
        user=author.id,
        name=author.name,
        roles=author.roles,
        platform=address.platform,
        channel=address.channel,
        kind=kind,
    )


def _place(thread: ThreadId, caller: Caller | None) -> ThreadId:
    """The thread whose channel decides with what an agent answers."""
    return caller.root if caller is not None else thread
