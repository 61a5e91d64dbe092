"""One step's tool calls: each admitted, journaled as started, run, journaled with its result, in call order.

a call's journal when the loop reaches it        what happens
----------------------------------------------   ------------------------------------------------------------
nothing                                          admit it: refuse, ask, or start
approval requested, not decided                  park: the turn ends its work until the decision wakes it
approval decided                                 allow: admit with it; else its result says why not
allowed, and what it runs has changed            ask anew: the new request takes the place of the old one, and park
started, no result (a crash)                     run again if the tool is idempotent, else say so to the model
started, its result is not there yet             park: whoever brings it wakes the turn, which runs the call again
a message for the turn arrived (steer = skip)    this and the rest are skipped, each with a result
the assistant's message was cut off              this and the rest fail with the reason

The calls of a message that may run at once start in the message's own transaction: they are admitted just before it, on
what the session knows, and where something has happened to the thread by then only the message is journaled, and its
calls are reached as ever.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.agents import AgentSpec, TurnLimits
from shoal.domain.cards import CardState, card_edit, card_post
from shoal.domain.clock import Clock
from shoal.domain.events import ApprovalRequested, AssistantSaid, StatusChanged, ToolFinished
from shoal.domain.files import STILL_FOLDERS
from shoal.domain.ids import ThreadId
from shoal.domain.messages import ToolCall
from shoal.domain.records import Commit, NewPost, Spend, Starts, Step
from shoal.domain.transcript import INTERRUPTED
from shoal.tools.executor import VERDICTS, Admitted, CallContext, Executor, Refused, Waits
from shoal.turn.context import ContextBuilder
from shoal.turn.session import Session

SKIPPED = "Skipped: a new message arrived."
TRUNCATED = "Not run: your message was cut off at the length limit, so this call may be incomplete. Make it shorter."

StepOutcome = Literal["done", "parked"]
Push: TypeAlias = Callable[[ThreadId, AgentSpec], Awaitable[tuple[str, ...]]]
_KEEP: Push = STILL_FOLDERS.push


class ToolStep:
    """Runs the calls of assistant messages.

    What a call changed is given to other machines by `push` before its result is journaled, so that whoever goes on
    with the turn has it. `stop_children` stops the threads that calls of this one began.
    """

    def __init__(
        self,
        executor: Executor,
        context: ContextBuilder,
        clock: Clock,
        limits: TurnLimits,
        stop_children: Callable[[ThreadId], Awaitable[int]],
        push: Push = _KEEP,
    ) -> None:
        self._executor = executor
        self._context = context
        self._clock = clock
        self._limits = limits
        self._stop_children = stop_children
        self._push = push

    async def begin(self, session: Session, said: AssistantSaid, spend: Spend | None, steps: tuple[Step, ...]) -> None:
        """Journal a message with the start of those of its calls that may run at once, and run them."""
        admitted, last_seq = list[Admitted](), session.transcript.last_seq
        try:
            context = self._context.calls(session)
            if said.tainted_by == session.tainted_by:  # else the message itself changes what its calls may do
                admitted = await self._admit_first(session, context, said.tool_calls)
        finally:  # what was said and paid for is kept, also when the turn was stopped meanwhile
            audit = tuple(entry for one in admitted for entry in one.audit)
            starts = Starts(last_seq, tuple(one.started for one in admitted), audit) if admitted else None
            await session.write(Commit(session.turn, (said,), spend=spend, steps=steps, starts=starts))
        if admitted and admitted[0].call.id in session.open.started:
            await self._run_started(session, admitted, context)

    async def _admit_first(self, session: Session, context: CallContext, calls: tuple[ToolCall, ...]) -> list[Admitted]:
        """The calls at the front that may run at once, when nothing stands in the way of any of them."""
        if self._waits(calls[0]):
            return []
        admitted: list[Admitted] = []
        for call in self._together(session, calls):
            admission = await self._executor.admit(call, context, None)
            if not isinstance(admission, Admitted):
                return []
            admitted.append(admission)
        return admitted

    async def run(self, session: Session, calls: tuple[ToolCall, ...], *, truncated: bool) -> StepOutcome:
        """Give each call its result; `parked` when one waits for a person or for a child."""
        if truncated:
            await self._fail(session, calls, TRUNCATED)
            return "done"
        context = self._context.calls(session)
        while calls:
            if session.steered and self._limits.steer == "skip":
                if any(self._waits(call) and call.id in session.open.started for call in calls):
                    await self._stop_children(session.thread)
                await self._fail(session, calls, SKIPPED, void_approvals=True)
                return "done"
            together = self._together(session, calls)
            if self._waits(calls[0]):
                if await self._wait_for(session, context, together) == "parked":
                    return "parked"
            elif len(together) > 1:
                await self._run_together(session, context, together)
            elif await self._run_one(session, context, calls[0]) == "parked":
                return "parked"
            calls = calls[len(together) :]
        return "done"

    async def _wait_for(self, session: Session, context: CallContext, calls: Sequence[ToolCall]) -> StepOutcome:
        """Start calls that wait for others, all of them, and take the results that are there."""
        outcomes = [await self._run_one(session, context, call) for call in calls]
        return "parked" if "parked" in outcomes else "done"

    def _together(self, session: Session, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The calls at the front that may run at once: read-only ones that nothing happened to yet, or such as wait
        for others; else the first."""
        if self._waits(calls[0]):
            return tuple(takewhile(self._waits, calls))
        touched = session.open.started | session.open.approvals.keys()
        count = 0
        for call in calls:
            tool = self._executor.registry.get(call.name)
            if tool is None or not tool.spec.read_only or call.id in touched:
                break
            count += 1
        return calls[: max(count, 1)]

    async def _run_together(self, session: Session, context: CallContext, calls: Sequence[ToolCall]) -> None:
        admitted: list[Admitted] = []
        for call in calls:
            admission = await self._executor.admit(call, context, None)
            match admission:
                case Admitted():
                    admitted.append(admission)
                case Refused(result=result, audit=audit):
                    await session.write(Commit(session.turn, (result,), audit=audit))
                case Waits():  # asked for after all: one at a time
                    await self._start(session, admitted, context)
                    return
        await self._start(session, admitted, context)

    async def _start(self, session: Session, admitted: Sequence[Admitted], context: CallContext) -> None:
        if not admitted:
            return
        audit = tuple(entry for one in admitted for entry in one.audit)
        await session.write(Commit(session.turn, tuple(one.started for one in admitted), audit=audit))
        await self._run_started(session, admitted, context)

    async def _run_started(self, session: Session, admitted: Sequence[Admitted], context: CallContext) -> None:
        if len(admitted) == 1:
            await self._run_admitted(session, context, admitted[0])
            return
        self._show(session, ", ".join(one.call.name for one in admitted))
        results = await asyncio.gather(*(self._executor.run(one, context) for one in admitted))
        there = tuple(result for result in results if isinstance(result, ToolFinished))
        await session.commit(*there, steps=tuple(self._timed(session, result) for result in there))
        for one, result in zip(admitted, results, strict=True):
            if isinstance(result, Waits):
                await self._ask(session, one.call, result)

    async def _run_one(self, session: Session, context: CallContext, call: ToolCall) -> StepOutcome:
        state = session.open
        verdict = state.verdicts.get(call.id)
        request = state.approvals.get(call.id)
        if call.id in state.started:
            return await self._go_on(session, context, call, request)
        if request is not None and verdict is None:
            self._show_waiting(session, call)
            return "parked"
        if verdict is not None and verdict.decision != "allow":
            text = VERDICTS[verdict.decision]
            await session.commit(ToolFinished(call.id, call.name, text, is_error=True, counts=False))
            return "done"
        admission = await self._executor.admit(call, context, request)
        match admission:
            case Refused(result=result, audit=audit):
                await session.write(Commit(session.turn, (result,), _edited(session, request, "changed"), audit))
            case Waits():
                return await self._ask(session, call, admission)
            case Admitted():
                start = Commit(
                    session.turn, (admission.started,), audit=admission.audit, use_approval=admission.use_approval
                )
                await session.write(start)
                return await self._run_admitted(session, context, admission)
        return "done"

    async def _ask(self, session: Session, call: ToolCall, waits: Waits) -> StepOutcome:
        """Ask a person, anew where they were asked already."""
        before = _edited(session, session.open.approvals.get(call.id), "asked_anew")
        card = card_post(session.chat, waits.approval, self._executor.page)
        await session.write(Commit(session.turn, (waits.event,), (*before, card), waits.audit, waits.approval))
        self._show_waiting(session, call)
        return "parked"

    async def _go_on(
        self, session: Session, context: CallContext, call: ToolCall, request: ApprovalRequested | None
    ) -> StepOutcome:
        """A call that has started and has no result: run it again where that does no harm."""
        if not self._runs_again(call):
            result = ToolFinished(call.id, call.name, INTERRUPTED, is_error=True, counts=False)
            await session.write(Commit(session.turn, (result,), _edited(session, request, "interrupted")))
            return "done"
        admission = await self._executor.again(call, context, request)
        if isinstance(admission, Admitted):
            return await self._run_admitted(session, context, admission)
        await session.write(Commit(session.turn, (admission.result,), _edited(session, request, "changed")))
        return "done"

    async def _run_admitted(self, session: Session, context: CallContext, admitted: Admitted) -> StepOutcome:
        self._show(session, admitted.call.name)
        result = await self._executor.run(admitted, context)
        if result is None:
            self._show_waiting(session, admitted.call)
            return "parked"
        if isinstance(result, Waits):
            return await self._ask(session, admitted.call, result)
        if not admitted.spec.read_only and (notices := await self._push(context.thread, context.agent)):
            result = msgspec.structs.replace(result, text="\n".join((result.text, *notices)))
        request = session.open.approvals.get(result.call_id)
        posts = _edited(session, request, "failed" if result.is_error else "ran")
        await session.write(Commit(session.turn, (result,), posts, steps=(self._timed(session, result),)))
        return "done"

    def _runs_again(self, call: ToolCall) -> bool:
        tool = self._executor.registry.get(call.name)
        return tool is not None and (tool.spec.idempotent or tool.spec.waits)

    def _waits(self, call: ToolCall) -> bool:
        tool = self._executor.registry.get(call.name)
        return tool is not None and tool.spec.waits

    async def _fail(
        self, session: Session, calls: Sequence[ToolCall], text: str, *, void_approvals: bool = False
    ) -> None:
        results = tuple(ToolFinished(call.id, call.name, text, is_error=True, counts=False) for call in calls)
        await session.write(Commit(session.turn, results, void_approvals=void_approvals))

    def _timed(self, session: Session, result: ToolFinished) -> Step:
        return Step(session.open.steps, f"tool {result.name}", self._clock.now(), result.duration_ms)

    def _show(self, session: Session, names: str) -> None:
        session.hub.show(session.thread, session.turn, StatusChanged("tool", names))

    def _show_waiting(self, session: Session, call: ToolCall) -> None:
        session.hub.show(session.thread, session.turn, StatusChanged("waiting", call.name))


def _edited(session: Session, request: ApprovalRequested | None, state: CardState) -> tuple[NewPost, ...]:
    """The change of the card that a person allowed the call on, if there is one."""
    if request is None:
        return ()
    return (card_edit(session.chat, request.approval_id, request.shown, state),)
