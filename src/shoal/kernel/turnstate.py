"""State of a turn, computed from its events, and the choice of the next move.

The first row that matches the state determines the move:

    state                                                     next move
    -------------------------------------------------------   -----------------------------------------------------
    The turn has finished.                                    none
    Calls of the last message have no result.                 Run these calls in order.
    The turn has a fatal error.                               Finish as failed.
    All accepted effects have results.                        Finish without text.
    No limit was noted, and too many messages in a row were   Note the limit.
    cut off, or the answer repeats itself or was continued
    too often.
    The answer was cut off, and no limit was reached.         Call the model again.
    The model has answered.                                   Finish as done, or as limit if a limit was noted.
    A limit was noted.                                        Call the model without tools.
    All steps are used, or too many calls in a row failed.    Note the limit.
    None of the above.                                        Call the model.

An answer that contains only thinking is replaced with a notice, and an answer that was cut off ends with a notice. If a
retry is scheduled, the next call waits until the retry is due.

Calls that failed, were invalid or are forbidden count as consecutive errors. Calls that ended for other reasons
(skipped for a steer, denied or left unanswered by a person, cut off, interrupted by a crash) neither add to the count
nor reset it.
"""

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel.events import (
    STAGED_HEAD,
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Checkpointed,
    EffectsAccepted,
    Event,
    Failed,
    LimitReached,
    Outcome,
    RetryRequested,
    RetryScheduled,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import CallId, CardId, TurnId
from shoal.kernel.messages import SILENT, Author, Caller, Origin, PromptScope, StopReason, ToolCall, Usage
from shoal.kernel.settings import TurnsSettings

FALLBACK = "fallback"
"""`Failed.kind` of the note that a fallback model answered."""
LEFT_OUT = "left_out"
"""`Failed.kind` of the note about parts of the conversation that the model did not receive."""
NOT_SHOWN = "not shown: "
"""Prefix of `Attachment.error` for an image that no model accepts."""
UNSEEN = "I cannot see {name!r}: {why}."
CUT_OFF_MAX = 2
"""Maximum number of consecutive truncated answers without text (for example, thinking only). After that, the turn
ends.
"""
CONTINUATIONS_MAX = 3
CUT_SHORT = (
    "My answer was cut off at the model's length limit. Ask for less at a time, or raise model.max_output_tokens."
)
UNANSWERED = {
    "steps": 'I reached the step limit of this turn before I had an answer. Write "go on" to continue.',
    "tool_errors": "Too many of my tool calls failed in a row, and I have no answer. Tell me how to continue.",
}
ONLY_THOUGHT = "The model returned only its reasoning and no answer. Please ask again."
BROKE_OFF = "The model's answer broke off here. Please ask again."
REPEATED_CHARS_MIN = 20
"""Minimum length of a repetition that is removed from a continuation, in characters."""


def joined_reply(reply: str, text: str) -> str:
    """Join an answer and its continuation. If the model started over or repeated text, the repetition is dropped."""
    first, more = reply.strip(), text.strip()
    if len(first) >= REPEATED_CHARS_MIN and more.startswith(first):
        return text
    if first and (more == first or (len(more) >= REPEATED_CHARS_MIN and more in first)):
        return reply
    return reply + text


class CallModel(msgspec.Struct, frozen=True):
    tools: bool


class RunCalls(msgspec.Struct, frozen=True):
    """Run these calls of the last assistant message, in order.

    `truncated` means that the message was cut off. The calls then fail.
    """

    calls: tuple[ToolCall, ...]
    truncated: bool = False


class NoteLimit(msgspec.Struct, frozen=True):
    limit: Literal["steps", "tool_errors", "output_tokens"]


class Finish(msgspec.Struct, frozen=True):
    outcome: Outcome
    reply: str


Move: TypeAlias = CallModel | RunCalls | NoteLimit | Finish


class TurnState(msgspec.Struct):
    """State of a turn.

    `started` and `approvals` are keyed by call id, which is unique within the turn. A repeated request for the same
    call replaces the earlier request and its decision.
    """

    turn: TurnId
    began_at: datetime | None = None
    agent: str = ""
    scope: PromptScope | None = None
    model: str = ""
    history: bool = True
    author: Author = Author("", trusted=False)
    message_id: str = ""
    tainted_by: str = ""
    origin: Origin = "person"
    caller: Caller | None = None
    told: bool = False
    """True if a tool has already sent the turn's answer to the person."""
    direct: bool = False
    speaks: bool = False
    steps: int = 0
    errors_in_a_row: int = 0
    cut_off_in_a_row: int = 0
    """Number of consecutive responses that ended at max_tokens without any text or complete call."""
    continued: int = 0
    """Number of consecutive continuations of the truncated answer."""
    repeats: bool = False
    """Whether the last continuation added nothing new."""
    only_thought: bool = False
    usage: Usage = Usage()
    calls: tuple[ToolCall, ...] = ()
    call_ids: set[CallId] = set()
    started: set[CallId] = set()
    results: set[CallId] = set()
    approvals: dict[CallId, ApprovalRequested] = {}
    verdicts: dict[CallId, ApprovalSettled] = {}
    staged: dict[CallId, ToolCall] = {}
    """Staged calls in order, for which approval is requested when the turn ends."""
    staged_shown: list[str] = []
    """Descriptions of the staged calls, shown to people."""
    effects: CardId = CardId("")
    """Card of an earlier turn that staged calls. This turn runs the calls that were allowed."""
    reply: str = ""
    stop: StopReason = "end"
    answered: bool = False
    limit: str = ""
    error: Failed | None = None
    retry: RetryScheduled | None = None
    """Retry that was scheduled at `retry_set_at` because no model is available."""
    retry_set_at: datetime | None = None
    outages: int = 0
    """Number of outages of the model during the turn. Consecutive retries count as one outage."""
    instead: str = ""
    """Text for people that explains why a fallback model answered."""
    left_out: tuple[str, ...] = ()
    """Descriptions of content that the model did not receive."""
    checkpoint: Checkpointed | None = None
    finished: TurnFinished | None = None

    def apply(self, event: Event) -> None:
        """Apply the next event. Ignores events of other turns."""
        if event.turn != self.turn:
            return
        match event.data:
            case TurnStarted(agent=agent, model=model, history=history, speaks=speaks, asker=asker, audience=audience):
                self.agent, self.model, self.history, self.speaks = agent, model, history, speaks
                self.scope = PromptScope(agent, asker, audience) if asker is not None else None
                self.began_at = event.at
            case UserSaid(backfill=False) as asked:
                self.author, self.message_id = asked.author, asked.message_id
                self.origin, self.caller, self.direct = asked.origin, asked.caller, asked.direct
                self.tainted_by = asked.tainted_by
                unseen = (attachment for attachment in asked.attachments if attachment.error.startswith(NOT_SHOWN))
                notes = (
                    UNSEEN.format(name=outcome.name[:80], why=outcome.error.removeprefix(NOT_SHOWN))
                    for outcome in unseen
                )
                self.left_out = (*self.left_out, *notes)
            case AssistantSaid() as said:
                self.steps += 1
                self.retry = None
                self.usage = self.usage + said.usage
                continues = self.stop == "max_tokens" and not self.calls and self.answered
                brought_nothing = said.stop == "max_tokens" and (said.tool_calls or not said.text.strip())
                self.cut_off_in_a_row = self.cut_off_in_a_row + 1 if brought_nothing else 0
                self.calls, self.stop = said.tool_calls, said.stop
                self.call_ids.update(call.id for call in said.tool_calls)
                self.answered = not said.tool_calls
                reply = joined_reply(self.reply, said.text) if continues else said.text
                repeats = continues and bool(said.text.strip()) and reply == self.reply
                self.continued, self.repeats = self.continued + 1 if continues else 0, repeats
                self.only_thought = self.answered and not reply.strip() and bool(said.thinking.strip())
                self.reply = reply
            case EffectsAccepted() as accepted:
                self.effects, self.calls = accepted.card, accepted.calls
                self.call_ids.update(call.id for call in accepted.calls)
                for call, approval in zip(accepted.calls, accepted.approvals, strict=True):
                    self.approvals[call.id] = ApprovalRequested(approval, call.id, call.name, (), "", event.at)
                    self.verdicts[call.id] = ApprovalSettled(approval, call.id, "allow", by=accepted.by)
            case Steered():
                self.answered = self.told = False
                self.effects = CardId("")
                self.errors_in_a_row = self.cut_off_in_a_row = self.continued = 0
            case LimitReached(limit=limit):
                self.limit = limit
            case Failed(fatal=True) as failed:
                self.error = failed
                self.retry = None
            case Failed(kind=kind, message=message) if kind == FALLBACK:
                self.instead = message
            case Failed(kind=kind, message=message) if kind == LEFT_OUT:
                self.left_out = (*self.left_out, message)
            case RetryScheduled() as scheduled:
                self.outages += self.retry is None
                self.retry, self.retry_set_at = scheduled, event.at
            case RetryRequested(model=model):
                self.model = model or self.model
                if self.retry is not None:
                    self.retry = msgspec.structs.replace(self.retry, next_at=event.at)
            case Checkpointed() as checkpoint:
                self.checkpoint = checkpoint
            case TurnFinished() as finished:
                self.finished = finished
            case ToolStarted(call_id=call_id):
                self.started.add(call_id)
            case ToolFinished(call_id=call_id, is_error=is_error, answers=answers, counts=counts) as result:
                self.results.add(call_id)
                if result.staged:
                    self.staged |= {call.id: call for call in self.calls if call.id == call_id}
                    self.staged_shown.append(result.text.partition("\n")[0].removeprefix(STAGED_HEAD))
                self.told = self.told or answers
                if counts:
                    self.errors_in_a_row = self.errors_in_a_row + 1 if is_error else 0
            case ApprovalRequested() as request:  # a new request replaces earlier requests for the call
                self.approvals[request.call_id] = request
                self.verdicts.pop(request.call_id, None)
                self.started.discard(request.call_id)
            case ApprovalSettled() as settled:
                request = self.approvals.get(settled.call_id)
                if request is None or request.approval_id == settled.approval_id:
                    self.verdicts[settled.call_id] = settled
            case _:
                pass

    def waits(self, now: datetime) -> bool:
        """Return True if a scheduled retry is not yet due. Setting the clock back does not extend the wait."""
        if self.retry is None or self.retry_set_at is None:
            return False
        return self.retry_set_at <= now < self.retry.next_at

    def unresolved(self) -> tuple[ToolCall, ...]:
        return tuple(call for call in self.calls if call.id not in self.results)


def next_move(state: TurnState, limits: TurnsSettings) -> Move | None:
    """Choose the next move from the journal alone. Return None if the turn has finished."""
    if state.finished is not None:
        return None
    unresolved = state.unresolved()
    if unresolved:
        return RunCalls(unresolved, truncated=state.stop == "max_tokens")
    if state.error is not None:
        return Finish("failed", state.error.message)
    if state.effects:
        return Finish("done", SILENT)
    cut_off_max = CUT_OFF_MAX if state.answered else limits.tool_errors_in_a_row_max
    is_cut_off = state.answered and state.stop == "max_tokens"
    goes_on_too_long = is_cut_off and (state.repeats or state.continued >= CONTINUATIONS_MAX)
    if (state.cut_off_in_a_row >= cut_off_max or goes_on_too_long) and not state.limit:
        return NoteLimit("output_tokens")
    goes_on = state.stop == "max_tokens" and state.steps < limits.steps_max and not state.limit
    if state.answered and not goes_on:
        reply = f"{state.reply.strip()}\n\n{CUT_SHORT}".strip() if is_cut_off else state.reply
        return Finish(
            "limit" if state.limit else "done", reply if not state.only_thought or is_cut_off else ONLY_THOUGHT
        )
    if state.limit:
        return CallModel(tools=False)
    if state.steps >= limits.steps_max:
        return NoteLimit("steps")
    if state.errors_in_a_row >= limits.tool_errors_in_a_row_max:
        return NoteLimit("tool_errors")
    return CallModel(tools=True)
