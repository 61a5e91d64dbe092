"""Staged calls: those whose result the model does not need wait for one card at the end of the turn.

    state      left by                             what happens
    --------   ---------------------------------   ------------------------------------------------------------------
    staged     the turn ends with an answer        one card asks for all of them, as they would run now
               it is stopped, or fails             they are dropped; a sentence tells the person, and the model with
                                                   the next message, what did not happen
               a call cannot be made any more      it is left out of the card, and the model is told why
    asked      "do" for some or all                these run in a turn of their own, in order; the rest is refused
               "discard", or nobody answers        nothing ran; the model is told with the next message
               answered twice, or too late         one sentence says so; the first answer counts
               another message, another card       both go on: each card is decided by itself
               the conversation is deleted         the card goes with it
    accepted   its turn begins                     after the messages that wait before it; its author has access
               its author has lost access          it is dropped, as every message of theirs; card and model say so
               "/stop all", or it cannot begin     nothing ran; card and model say so
    running    content, rules, tool or the right   that call does not run: it is refused, or asked about again with
               of who accepted it have changed     what has changed
               a crash                             a call without a start runs; one that had started runs again if it is
                                                   idempotent, otherwise its outcome is unknown
               "stop"                              what has not started does not run
    done       -                                   the card says how each call ended, and the model is told with the
                                                   next message

`store/staged.py` has the transactions between these. A subagent's calls are asked about at once, because its caller
waits for the result.
"""

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.effect_notes import NOT_OFFERED
from shoal.kernel.errors import system_words
from shoal.kernel.events import STAGED_HEAD, ApprovalRequested, Failed, ToolFinished
from shoal.kernel.files import in_thread
from shoal.kernel.ids import CardId
from shoal.kernel.messages import AcceptedCalls, Prompt, PromptScope, ToolCall
from shoal.kernel.permissions import CardItem
from shoal.kernel.phrases import short_line
from shoal.kernel.records import AuditEntry, Commit, NewApproval, NewPost
from shoal.store.cards import card_post
from shoal.tools.checkpoints import Checkpoints, files_of
from shoal.tools.executor import Executor, MustAsk, Refused
from shoal.tools.file_diffs import change_lines, file_change
from shoal.turn.asking import ask_together, can_wait, value_origins
from shoal.turn.context import ContextBuilder
from shoal.turn.run import TurnRun

WHAT_CHARS_MAX = 200
STAGED = (
    f"{STAGED_HEAD}{{what}}\nIt has not happened. The person decides when your turn ends. Continue without its "
    "result, do not call it again, and say in your answer that it is waiting for their decision."
)
FILES_SHOWN_MAX, DIFF_CHARS_MAX = 8, 1_200
"""Of the files that the turn changed, how many the card names and how much of their diffs it shows."""


class EndCard(msgspec.Struct, frozen=True):
    """What the commit that ends a turn carries for its staged calls."""

    events: tuple[ApprovalRequested | Failed, ...] = ()
    posts: tuple[NewPost, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    approvals: tuple[NewApproval, ...] = ()
    staged: Prompt | None = None


async def ask_or_stage(
    run: TurnRun, call: ToolCall, asks: MustAsk, executor: Executor, context: ContextBuilder, clock: Clock
) -> Commit:
    """The commit that stages a call which can wait for the end of the turn, or that asks a person now.

    The same call again is not staged twice.
    """
    state = run.view.open
    if not can_wait(state, call, asks):
        return await ask_together(run, call, asks, executor, context, clock)
    is_again = any((staged.name, staged.arguments) == (call.name, call.arguments) for staged in state.staged.values())
    text = STAGED.format(what=short_line(asks.approval.shown or call.name, WHAT_CHARS_MAX))
    result = ToolFinished(call.id, call.name, text, counts=False, staged=not is_again)
    return Commit(run.turn, (result,), audit=asks.audit)


async def end_card(
    run: TurnRun, executor: Executor, context: ContextBuilder, checkpoints: Checkpoints, clock: Clock
) -> EndCard:
    """The card that asks for everything the turn has staged, as it would run now."""
    view, scope, state = run.view, run.scope, run.view.open
    questions, left_out = list[tuple[ToolCall, MustAsk]](), list[Failed]()
    calls_context = context.calls(run)
    for call in state.staged.values():
        admission = await executor.admit(call, calls_context, None, asks_anyway=True)
        if isinstance(admission, MustAsk):
            questions.append((call, admission))
        elif isinstance(admission, Refused):
            message = f"`{call.name}` was staged and can no longer be done: {admission.result.for_people}"
            left_out.append(Failed(NOT_OFFERED, executor.redactor.redact(message), fatal=False))
    if not questions:
        return EndCard(events=tuple(left_out))
    card, place = CardId(clock.new_id()), scope.speaks_in or view.chat
    origins = await value_origins(run, [call for call, _ in questions], executor)
    files = await _files_text(run, checkpoints, context)
    requests = list[MustAsk]()
    for number, (call, question) in enumerate(questions, 1):
        request = question
        if question.advice is not None:
            request = question.with_reason(executor.redactor.redact(await question.advice()))
        item = CardItem(
            card,
            number,
            len(questions),
            scope.agent.name,
            scope.asker.name,
            origins=origins[call.id],
            staged=True,
            files=files if number == 1 else "",
        )
        requests.append(request.on_card(item))
    shown_in = place if place != view.thread else ""
    approvals = tuple(msgspec.structs.replace(request.approval, shown_in=shown_in) for request in requests)
    accepted = AcceptedCalls(card, tuple(call for call, _ in questions), tuple(approval.id for approval in approvals))
    key, asked = f"staged:{card}", state.scope or PromptScope(scope.agent.name, scope.asker, scope.audience)
    prompt = Prompt(
        view.thread,
        key,
        "",
        state.author,
        clock.now(),
        message_id=key,
        origin="staged",
        history=state.history,
        direct=state.direct,
        tainted_by=view.tainted_by,
        scope=asked,
        accepted=accepted,
    )
    audit = tuple(entry for request in requests for entry in request.audit)
    events = (*left_out, *(request.event for request in requests))
    return EndCard(events, (card_post(place, approvals, executor.page),), audit, approvals, prompt)


async def _files_text(run: TurnRun, checkpoints: Checkpoints, context: ContextBuilder) -> str:
    """What the turn changed in files so far, as Markdown; empty when nothing."""
    before = run.view.open.checkpoint
    if before is None or not before.tree:
        return ""
    (now,) = await checkpoints.after(before)
    if not now.tree or not now.changed:
        return ""
    trees = checkpoints.trees(before.workspace)

    def read() -> str:
        changes = files_of(list(trees.changes(before.tree, now.tree)))
        shown = [file_change(trees, change, "", "", context.clean, shows=True) for change in changes[:FILES_SHOWN_MAX]]
        return "\n".join(change_lines(shown, len(changes), DIFF_CHARS_MAX))

    try:
        return await in_thread(read)
    except OSError as error:
        return f"The changed files could not be read ({system_words(error)})."
