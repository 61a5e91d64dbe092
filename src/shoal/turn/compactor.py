"""Keeps a thread's conversation below the model's window: summarises its old part in place, before it has to be cut.

    how full the conversation is         when it is summarised
    ----------------------------------   ----------------------------------------------------------------------------
    above three quarters of its room     after the turn, in the background: a new message ends the attempt
    above its room                       before the next model call, in line
    the provider says it overflows       in line, once a turn; without a summary this turn goes on with less of it

A summary that fails changes nothing but a note in the journal: the request is then fitted by leaving the oldest out,
and the next turn has it all again. One of what was cleared meanwhile is dropped.
"""

import logging

import anyio

from shoal.domain.clock import Clock
from shoal.domain.errors import StoreError
from shoal.domain.events import Failed
from shoal.domain.ids import TurnId
from shoal.domain.messages import ModelDone, ModelFailed
from shoal.domain.ports import Route
from shoal.turn.compaction import Plan, compacted, plan_compaction, summary_request, urgency
from shoal.turn.context import ContextBuilder
from shoal.turn.session import Session
from shoal.turn.spending import Charge, Spending

log = logging.getLogger(__name__)

MAILBOX_SECONDS = 1.0
"""How often the mailbox is looked at while a summary is written in the background."""


class Compactor:
    """Compacts threads."""

    def __init__(self, context: ContextBuilder, spending: Spending, clock: Clock) -> None:
        self._context = context
        self._spending = spending
        self._clock = clock

    async def before_call(self, session: Session, route: Route) -> None:
        """Summarise in line when the conversation no longer fits; tried once a turn."""
        if session.compacted_in == session.turn or self._urgency(session, route) != "now":
            return
        session.compacted_in = session.turn
        await self._compact(session, route, "full")

    async def on_overflow(self, session: Session, route: Route) -> bool:
        """Make room after the provider refused the request; False when nothing more can be done in this turn."""
        if session.overflowed:
            return False
        session.overflowed = True
        if await self._compact(session, route, "overflow"):
            return True
        if len(session.transcript.turn_starts()) < 2:
            return False
        session.squeezed_to = session.tally.units() * 2 // 3
        return True

    async def after_turn(self, session: Session, route: Route) -> None:
        """Summarise in the background when the conversation nears its room. Cancelling it changes nothing."""
        if self._urgency(session, route) == "no":
            return
        plan = self._plan(session, route)
        if plan is None:
            return
        done = await self._summary_unless_asked(session, route, plan)
        if isinstance(done, ModelDone) and done.message.text.strip() and await _still_has(session, plan):
            await session.note(compacted(plan, done.message.text, "near", session.taint.summarised(plan.upto_seq)))

    def _urgency(self, session: Session, route: Route) -> str:
        room = self._context.room(session, route)
        session.tally.update(session.transcript.entries)
        return urgency(session.tally, room)

    def _plan(self, session: Session, route: Route) -> Plan | None:
        room = self._context.room(session, route)
        return plan_compaction(
            session.transcript.entries,
            session.tally,
            room,
            self._context.limits,
            self._context.gauge(session, route).factor,
        )

    async def _compact(self, session: Session, route: Route, reason: str) -> bool:
        plan = self._plan(session, route)
        if plan is None and reason == "full":
            return False
        if plan is None:
            why = "there is too little beside its newest part"
        else:
            done = await self._summary(session, route, plan)
            if isinstance(done, ModelDone) and done.message.text.strip():
                if await _still_has(session, plan):
                    taint = session.taint.summarised(plan.upto_seq)
                    await session.commit(compacted(plan, done.message.text, reason, taint))
                return True
            why = done.message if isinstance(done, ModelFailed) else "the summary was empty"
        log.warning("a conversation could not be summarised", extra={"thread_id": session.thread, "why": why})
        note = Failed(
            "compaction",
            "The older part of this conversation could not be summarised; the model may see less of it in this turn.",
            self._context.clean(why),
            fatal=False,
        )
        await session.commit(note)
        return False

    async def _summary(self, session: Session, route: Route, plan: Plan) -> ModelDone | ModelFailed:
        request = summary_request(plan, route.model, self._context.room(session, route))
        turn = session.turn if session.state is not None else TurnId("")
        who, id = session.who, f"summary:{self._clock.new_id()}"
        charge = Charge(id, who.model, session.thread, turn, who.name, session.asker, session.line)
        return await self._spending.ask(charge, route, request, self._context.gauge(session, route))

    async def _summary_unless_asked(self, session: Session, route: Route, plan: Plan) -> ModelDone | ModelFailed | None:
        """The summary; None when a prompt came meanwhile. One that another process has taken in is told to nobody here
        while the thread is at work."""
        done: ModelDone | ModelFailed | None = None
        failure: StoreError | None = None

        async def watch() -> None:
            info = await session.journal.thread(session.thread)
            while info is None or not info.queued:
                await self._clock.sleep(MAILBOX_SECONDS)
                info = await session.journal.thread(session.thread)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                done = await self._summary(session, route, plan)
            except StoreError as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return done


async def _still_has(session: Session, plan: Plan) -> bool:
    """Whether what a plan covers is in the window now: it may have been cleared while the summary was written."""
    await session.catch_up()
    return any(entry.seq <= plan.upto_seq for entry in session.transcript.entries)
