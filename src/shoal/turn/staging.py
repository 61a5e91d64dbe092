"""Staged calls wait for one card at the end of the turn, because the model does not need their results.

    state      event                               what happens
    --------   ---------------------------------   ------------------------------------------------------------------
    staged     the turn ends with an answer        one card requests approval of all calls in their current form
               the turn is stopped or fails        the calls are dropped. A notice informs the person, and the next
                                                   message informs the model.
               a call is no longer possible        the card omits the call, and the model gets the reason
    asked      "do" for some or all calls          these calls run in order in a separate turn. The others are denied.
               "discard", or no answer             nothing runs. The next message informs the model.
               a second or late answer             a notice explains that the first answer counts
               another message or another card     both continue. Each card is decided separately.
               the conversation is deleted         the card is deleted with it
    accepted   the turn is next in the mailbox     the turn begins if its author still has access
               its author has lost access          the calls are dropped. The card and the model get the reason.
               "/stop all", or the turn cannot     nothing runs. The card and the model get the reason.
               begin
    running    content, rules, the tool or the     the call is denied, or approval is requested again with the changes
               approver's rights have changed
               a crash                             Calls that had not started yet run. A call that had started runs
                                                   again if it is idempotent. Otherwise its outcome is unknown.
               "stop"                              calls that have not started do not run
    done       -                                   the card shows how each call ended, and the next message informs
                                                   the model

The transactions between these states are in `store/staged.py`. A subagent's calls request approval immediately,
because its caller waits for the result.
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
    f"{STAGED_HEAD}{{what}}\nIt has not happened. The person decides after your turn ends. Continue without its "
    "result, do not call it again, and say in your answer that it is waiting for their decision."
)
FILES_SHOWN_MAX, DIFF_CHARS_MAX = 8, 1_200
"""Maximum number of changed files that the card names, and maximum total length of their diffs."""


class EndCard(msgspec.Struct, frozen=True):
    """The additions to the commit that ends a turn with staged calls."""

    events: tuple[ApprovalRequested | Failed, ...] = ()
    posts: tuple[NewPost, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    approvals: tuple[NewApproval, ...] = ()
    staged: Prompt | None = None


async def ask_or_stage(
    run: TurnRun, call: ToolCall, asks: MustAsk, executor: Executor, context: ContextBuilder, clock: Clock
) -> Commit:
    """Build a commit that stages the call, or requests approval if the call cannot wait.

    Identical calls are staged once.
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
    """Build the card that requests approval of all staged calls. Checks each call against the current rules."""
    view, scope, state = run.view, run.scope, run.view.open
    questions, left_out = list[tuple[ToolCall, MustAsk]](), list[Failed]()
    calls_context = context.calls(run)
    for call in state.staged.values():
        admission = await executor.admit(call, calls_context, None, asks_anyway=True)
        if isinstance(admission, MustAsk):
            questions.append((call, admission))
        elif isinstance(admission, Refused):
            message = f"Shoal cannot run the staged call `{call.name}`: {admission.result.for_people}"
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
        return f"Shoal could not read the changed files ({system_words(error)})."
