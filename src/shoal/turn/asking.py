"""Request approval of a tool call, together with later calls of the same message that also need approval."""

import re
from collections.abc import Sequence

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.events import StatusChanged
from shoal.kernel.files import in_thread
from shoal.kernel.ids import CallId, CardId
from shoal.kernel.messages import ToolCall
from shoal.kernel.permissions import CardItem, ValueOrigin
from shoal.kernel.records import Commit
from shoal.kernel.turnstate import TurnState
from shoal.markdown.spoken import speakable
from shoal.permissions.origins import origins_of, values_of, words_of
from shoal.store.cards import CARD_CALLS_MAX, card_post
from shoal.text.shown import strip_controls
from shoal.tools.executor import Executor, MustAsk
from shoal.turn.context import ContextBuilder
from shoal.turn.run import TurnRun

WHY_CHARS_READ, WHY_CHARS_MAX = 2000, 200
"""Maximum number of characters that are read from the model's text to explain a card, and maximum number that the card
shows.
"""
ORIGIN_EVENTS_MAX = 2000
"""Maximum number of recent events that are searched for the origin of a call's values."""
_LINK = lazy_re.compile(r"\b(?:https?://|www\.)\S+", re.IGNORECASE)
_QUOTES = {ord("“"): '"', ord("”"): '"'}


async def ask_together(
    run: TurnRun, call: ToolCall, asks: MustAsk, executor: Executor, context: ContextBuilder, clock: Clock
) -> Commit:
    view, calls = run.view, context.calls(run)
    begun = view.open.started | view.open.approvals.keys() | view.open.results
    questions = [(call, asks)]
    for later in view.open.calls[view.open.calls.index(call) + 1 :]:
        if later.id in begun or len(questions) == CARD_CALLS_MAX:
            continue
        admission = await executor.admit(later, calls, None)
        if not isinstance(admission, MustAsk) or can_wait(view.open, later, admission):
            continue
        if not _follows(later, admission, questions, executor):
            questions.append((later, admission))
    card = CardId(clock.new_id() if len(questions) > 1 else "")
    origins = await value_origins(run, [asked for asked, _ in questions], executor)
    why = _own_words(executor.redactor.redact(view.open.reply))
    requests = list[MustAsk]()
    for number, (asked, question) in enumerate(questions, 1):
        request = question
        if question.advice is not None:
            view.show(StatusChanged("tool", asked.name))
            request = question.with_reason(executor.redactor.redact(await question.advice()))
        person = run.scope.asker.name
        item = CardItem(card, number, len(questions), run.scope.agent.name, person, why, origins[asked.id])
        requests.append(request.on_card(item))
    approvals = tuple(request.approval for request in requests)
    events = tuple(request.event for request in requests)
    audit = tuple(entry for request in requests for entry in request.audit)
    return Commit(view.turn, events, (card_post(view.chat, approvals, executor.page),), audit, approvals)


def _follows(
    call: ToolCall, asks: MustAsk, before: Sequence[tuple[ToolCall, MustAsk]], executor: Executor
) -> bool:  # fmt: skip
    """Return True if an earlier call changes the same file, which makes this call's effect unknown."""
    traits, actions = executor.registry.traits, set(asks.approval.actions)
    return traits.of(call.name).writes_file and any(
        traits.of(earlier.name).writes_file and actions & set(request.approval.actions) for earlier, request in before
    )


def can_wait(state: TurnState, call: ToolCall, asks: MustAsk) -> bool:
    """Return True if the approval can be requested at the end of the turn.

    It cannot wait in a subagent's turn, whose caller needs the result, or if it was already requested.
    """
    return asks.can_stage and state.caller is None and not state.effects and call.id not in state.approvals


async def value_origins(
    run: TurnRun, calls: Sequence[ToolCall], executor: Executor
) -> dict[CallId, tuple[ValueOrigin, ...]]:
    view, last_seq = run.view, run.view.transcript.last_seq
    events = await view.journal.along(view.thread, last_seq, max(0, last_seq - ORIGIN_EVENTS_MAX))

    def of_each() -> dict[CallId, tuple[ValueOrigin, ...]]:
        words, by_call = words_of(events, run.scope.asker.user), dict[CallId, tuple[ValueOrigin, ...]]()
        for call in calls:
            values = values_of(call.arguments, commands=executor.registry.traits.of(call.name).takes_commands)
            by_call[call.id] = tuple(
                msgspec.structs.replace(origin, value=executor.redactor.redact(origin.value))
                for origin in origins_of(values, words)
            )
        return by_call

    return await in_thread(of_each)


def _own_words(text: str) -> str:
    plain = _LINK.sub("(a link)", speakable(text[:WHY_CHARS_READ], WHY_CHARS_MAX))
    return strip_controls(" ".join(plain.translate(_QUOTES).split()))
