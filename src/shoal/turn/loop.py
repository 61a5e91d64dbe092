"""The turn loop: model ⇄ tools until there is an answer, every step an event before the next begins.

What comes next is never remembered, it is computed: `next_move(state, limits)` reads the fold of the turn's events
(see domain/turnstate.py for its table). So a turn that was cut by a crash, a restart or a wait for a person is simply
run again: it goes on at the first thing that the journal does not have.

    returns "finished"     turn_finished is in the journal, and the reply in the outbox, in one transaction
    returns "parked"       a person has to decide, or no model answers for now; the decision or time wakes the thread
    raises StaleEpoch      another worker took over; everything here is to be dropped
    is cancelled           nothing is lost: the actor journals an abort, or the next start goes on
"""

from typing import Literal

import msgspec

from shoal.domain.agents import TurnLimits
from shoal.domain.events import AssistantSaid, Failed, LimitReached, RetryScheduled, StatusChanged, TurnFinished
from shoal.domain.outage import ANSWERS_AGAIN, GAVE_UP
from shoal.domain.records import Commit, Spend, Step
from shoal.domain.turnstate import FALLBACK, CallModel, Finish, NoteLimit, RunCalls, TurnState, next_move
from shoal.turn.model_step import ModelStep
from shoal.turn.session import Session
from shoal.turn.tool_step import ToolStep

SILENT = "[SILENT]"

TurnOutcome = Literal["finished", "parked"]


class TurnLoop:
    """Runs open turns."""

    def __init__(self, models: ModelStep, tools: ToolStep, limits: TurnLimits) -> None:
        self._models = models
        self._tools = tools
        self._limits = limits

    async def run(self, session: Session) -> TurnOutcome:
        """Advance the open turn until it has finished or waits for a person."""
        limits = self._limits
        if session.caller is not None:
            limits = msgspec.structs.replace(limits, steps_max=min(limits.steps_max, session.caller.steps_max))
        while (move := next_move(session.open, limits)) is not None:
            match move:
                case RunCalls(calls=calls, truncated=truncated):
                    if await self._tools.run(session, calls, truncated=truncated) == "parked":
                        return "parked"
                case CallModel(tools=tools):
                    if self._models.waits(session):
                        session.show(StatusChanged("retrying", "Waiting for the model."))
                        return "parked"
                    await self._take_steers(session)
                    await self._call_model(session, tools=tools)
                case NoteLimit(limit=limit):
                    await session.commit(LimitReached(limit, _bound(limit, limits, session.open)))
                case Finish():
                    await self.finish(session, move)
        session.show(StatusChanged("idle"))
        return "finished"

    async def finish(
        self,
        session: Session,
        move: Finish,
        said: AssistantSaid | None = None,
        *,
        spend: Spend | None = None,
        steps: tuple[Step, ...] = (),
    ) -> None:
        """Close the turn and hand its reply to delivery, unless somebody has more to say to it."""
        reply = move.reply if move.reply.strip() or move.outcome == "aborted" else self._limits.default_response
        has_answered = session.open.told and session.caller is None and move.outcome in ("done", "limit")
        if reply.strip() == SILENT or has_answered:
            reply = ""
        usage = session.open.usage + said.usage if said is not None else session.open.usage
        count = session.open.steps + (said is not None)
        finished = TurnFinished(move.outcome, reply, count, usage)
        commit = Commit(
            session.turn,
            (said, finished) if said is not None else (finished,),
            session.answer(reply),
            spend=spend,
            steps=steps,
        )
        await session.finish(commit)

    async def _call_model(self, session: Session, *, tools: bool) -> None:
        called = await self._models.call(session, tools=tools)
        said, steps = called.outcome, (called.step,)
        if isinstance(said, RetryScheduled):
            posts = session.outage_begins(said, self._models.gives_up_at(session))
            await session.write(Commit(session.turn, (said,), posts, steps=steps))
            return
        if session.open.retry is not None:
            over = GAVE_UP if isinstance(said, Failed) else ANSWERS_AGAIN
            await session.write(Commit(session.turn, posts=session.outage_ends(over), retried=True))
        if called.instead and called.instead != session.open.instead:
            await session.commit(Failed(FALLBACK, called.instead, fatal=False))
        if isinstance(said, LimitReached):
            await self._stop(session, said)
        elif isinstance(said, Failed):
            await session.commit(said, steps=steps)
        elif said.stop == "max_tokens":
            await session.commit(said, spend=called.spend, steps=steps)
        elif said.tool_calls:
            await self._tools.begin(session, said, called.spend, steps)
        else:
            state = session.open
            text = state.reply + said.text if state.answered and state.stop == "max_tokens" else said.text
            answer = Finish("limit" if state.limit else "done", text)
            await self.finish(session, answer, said, spend=called.spend, steps=steps)

    async def _stop(self, session: Session, limit: LimitReached) -> None:
        """End the turn without asking the model once more."""
        state = session.open
        finished = TurnFinished("limit", limit.detail, state.steps, state.usage)
        await session.finish(Commit(session.turn, (limit, finished), session.answer(limit.detail)))

    async def _take_steers(self, session: Session) -> None:
        if session.steered:
            await session.take_steers()


def _bound(limit: Literal["steps", "tool_errors", "output_tokens"], limits: TurnLimits, state: TurnState) -> str:
    match limit:
        case "steps":
            return f"{limits.steps_max} steps"
        case "tool_errors":
            return f"{limits.tool_errors_in_a_row_max} tool errors in a row"
        case "output_tokens":
            return f"{state.cut_off_in_a_row} answers in a row cut off at max_output_tokens"
