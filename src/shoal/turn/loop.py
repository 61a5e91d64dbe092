"""The turn loop: model ⇄ tools until there is an answer, every step an event before the next begins.

What comes next is never remembered, it is computed: `next_move(state, limits)` reads the fold of the turn's events
(see domain/turnstate.py for its table). So a turn that was cut by a crash, a restart or a wait for a person is simply
run again: it goes on at the first thing that the journal does not have.

    returns "finished"     turn_finished is in the journal, and the reply in the outbox, in one transaction
    returns "parked"       a person has to decide; the decision wakes the thread
    raises StaleEpoch      another worker took over; everything here is to be dropped
    is cancelled           nothing is lost: the actor journals an abort, or the next start goes on
"""

from typing import Literal

from shoal.domain.agents import TurnLimits
from shoal.domain.events import AssistantSaid, Failed, LimitReached, StatusChanged, TurnFinished
from shoal.domain.records import Commit, NewPost, Spend, Step
from shoal.domain.turnstate import CallModel, Finish, NoteLimit, RunCalls, next_move
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
        while (move := next_move(session.open, self._limits)) is not None:
            match move:
                case RunCalls(calls=calls, truncated=truncated):
                    if await self._tools.run(session, calls, truncated=truncated) == "parked":
                        return "parked"
                case CallModel(tools=tools):
                    await self._take_steers(session)
                    await self._call_model(session, tools=tools)
                case NoteLimit(limit=limit):
                    await session.commit(LimitReached(limit, self._bound(limit)))
                case Finish():
                    await self.finish(session, move)
        session.hub.show(session.thread, session.turn, StatusChanged("idle"))
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
        if reply.strip() == SILENT:
            reply = ""
        usage = session.open.usage + said.usage if said is not None else session.open.usage
        count = session.open.steps + (said is not None)
        finished = TurnFinished(move.outcome, reply, count, usage)
        posts = (NewPost(f"{session.turn}:reply", session.thread, reply, reply_to=session.open.message_id),)
        commit = Commit(
            session.turn,
            (said, finished) if said is not None else (finished,),
            posts if reply else (),
            spend=spend,
            steps=steps,
        )
        await session.finish(commit)

    async def _call_model(self, session: Session, *, tools: bool) -> None:
        said, spend, step = await self._models.call(session, tools=tools)
        if isinstance(said, LimitReached):
            await self._stop(session, said)
        elif isinstance(said, Failed):
            await session.commit(said, steps=(step,))
        elif said.tool_calls or said.stop == "max_tokens":
            await session.commit(said, spend=spend, steps=(step,))
        else:
            state = session.open
            text = state.reply + said.text if state.answered and state.stop == "max_tokens" else said.text
            answer = Finish("limit" if state.limit else "done", text)
            await self.finish(session, answer, said, spend=spend, steps=(step,))

    async def _stop(self, session: Session, limit: LimitReached) -> None:
        """End the turn without asking the model once more."""
        state = session.open
        finished = TurnFinished("limit", limit.detail, state.steps, state.usage)
        post = NewPost(f"{session.turn}:reply", session.thread, limit.detail, reply_to=state.message_id)
        await session.finish(Commit(session.turn, (limit, finished), (post,)))

    async def _take_steers(self, session: Session) -> None:
        if session.steered:
            await session.take_steers()

    def _bound(self, limit: Literal["steps", "tool_errors"]) -> str:
        if limit == "steps":
            return f"{self._limits.steps_max} steps"
        return f"{self._limits.tool_errors_in_a_row_max} tool errors in a row"
