"""The state of a turn as a fold over its events, and the pure choice of what to do next.

what the journal says last                         next move
------------------------------------------------   -------------------------------------------
turn opened, steered, or a step's calls all done   call the model (without tools after a limit)
... and the steps or the errors in a row are up    note the limit, then call without tools
an assistant message with calls lacking a result   run those calls, in order
an answer cut off by max_tokens                    call the model again
an answer                                          finish (done, or limit after a limit)
an error                                           finish (failed)
turn_finished                                      nothing
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from shoal.domain.agents import TurnLimits
from shoal.domain.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Event,
    Failed,
    LimitReached,
    Outcome,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.domain.ids import CallId, TurnId
from shoal.domain.messages import Author, Caller, Origin, StopReason, ToolCall, Usage


class CallModel(msgspec.Struct, frozen=True):
    """Ask the model for the next step."""

    tools: bool


class RunCalls(msgspec.Struct, frozen=True):
    """Run these calls of the last assistant message, in order. `truncated`: the message was cut off, fail them."""

    calls: tuple[ToolCall, ...]
    truncated: bool = False


class NoteLimit(msgspec.Struct, frozen=True):
    """Record that a bound was met."""

    limit: Literal["steps", "tool_errors"]


class Finish(msgspec.Struct, frozen=True):
    """End the turn with this reply."""

    outcome: Outcome
    reply: str


Move: TypeAlias = CallModel | RunCalls | NoteLimit | Finish


class TurnState:
    """The fold. `started` and `approvals` are keyed by the call's id, which is unique within the turn.

    `told`: a tool has told the person what the turn had to say. `caller`: another turn's call began this one.
    """

    __slots__ = (
        "agent",
        "answered",
        "approvals",
        "asked",
        "author",
        "call_ids",
        "caller",
        "calls",
        "direct",
        "error",
        "errors_in_a_row",
        "finished",
        "history",
        "limit",
        "message_id",
        "model",
        "origin",
        "reply",
        "results",
        "started",
        "steps",
        "stop",
        "told",
        "turn",
        "usage",
        "verdicts",
    )

    def __init__(self, turn: TurnId, events: Iterable[Event] = ()) -> None:
        self.turn = turn
        self.agent = self.model = ""
        self.history = True
        self.author = Author("")
        self.message_id = self.asked = ""
        self.origin: Origin = "person"
        self.caller: Caller | None = None
        self.told = self.direct = False
        self.steps = self.errors_in_a_row = 0
        self.usage = Usage()
        self.calls: tuple[ToolCall, ...] = ()
        self.call_ids: set[CallId] = set()
        self.started: set[CallId] = set()
        self.results: set[CallId] = set()
        self.approvals: dict[CallId, ApprovalRequested] = {}
        self.verdicts: dict[CallId, ApprovalSettled] = {}
        self.reply = ""
        self.stop: StopReason = "end"
        self.answered = False
        self.limit = ""
        self.error: Failed | None = None
        self.finished: TurnFinished | None = None
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Take the next event of this turn in; events of other turns change nothing."""
        if event.turn != self.turn:
            return
        match event.data:
            case TurnStarted(agent=agent, model=model, history=history):
                self.agent, self.model, self.history = agent, model, history
            case UserSaid(backfill=False) as asked:
                self.author, self.message_id, self.asked = asked.author, asked.message_id, asked.text
                self.origin, self.caller, self.direct = asked.origin, asked.caller, asked.direct
            case AssistantSaid() as said:
                self._apply_assistant(said)
            case Steered():
                self.answered = self.told = False
                self.errors_in_a_row = 0
            case LimitReached(limit=limit):
                self.limit = limit
            case Failed(fatal=True) as failed:
                self.error = failed
            case TurnFinished() as finished:
                self.finished = finished
            case ToolStarted() | ToolFinished() | ApprovalRequested() | ApprovalSettled():
                self._apply_call(event.data)
            case _:
                pass

    def _apply_call(self, data: ToolStarted | ToolFinished | ApprovalRequested | ApprovalSettled) -> None:
        match data:
            case ToolStarted(call_id=call_id):
                self.started.add(call_id)
            case ToolFinished(call_id=call_id, is_error=is_error, answers=answers):
                self.results.add(call_id)
                self.told = self.told or answers
                self.errors_in_a_row = self.errors_in_a_row + 1 if is_error else 0
            case ApprovalRequested() as request:
                self.approvals[request.call_id] = request
            case ApprovalSettled() as settled:
                self.verdicts[settled.call_id] = settled

    def _apply_assistant(self, said: AssistantSaid) -> None:
        self.steps += 1
        self.usage = self.usage + said.usage
        continues = self.stop == "max_tokens" and not self.calls and self.answered
        self.calls, self.stop = said.tool_calls, said.stop
        self.call_ids.update(call.id for call in said.tool_calls)
        self.answered = not said.tool_calls
        self.reply = self.reply + said.text if continues else said.text

    def unresolved(self) -> tuple[ToolCall, ...]:
        """The calls of the last assistant message that have no result yet, in call order."""
        return tuple(call for call in self.calls if call.id not in self.results)


def next_move(state: TurnState, limits: TurnLimits) -> Move | None:
    """What to do next, from the journal alone; None when the turn has finished."""
    if state.finished is not None:
        return None
    unresolved = state.unresolved()
    if unresolved:
        return RunCalls(unresolved, truncated=state.stop == "max_tokens")
    if state.error is not None:
        return Finish("failed", state.error.message)
    cut_off = state.stop == "max_tokens" and state.steps < limits.steps_max and not state.limit
    if state.answered and not cut_off:
        return Finish("limit" if state.limit else "done", state.reply)
    if state.limit:
        return CallModel(tools=False)
    if state.steps >= limits.steps_max:
        return NoteLimit("steps")
    if state.errors_in_a_row >= limits.tool_errors_in_a_row_max:
        return NoteLimit("tool_errors")
    return CallModel(tools=True)
