"""The turn loop: model ⇄ tools until there is an answer. Each step is journaled before the next begins.

The next move is computed, never stored: `next_move(state, limits)` reads the turn's state, which is folded from its
events (see the table in kernel/turnstate.py). To resume a turn after a crash, a restart or a wait for a person, run
it again. It continues at the first step that is missing from the journal.

    `run` returns "finished"     turn_finished is in the journal and the reply in the outbox, in one transaction
    `run` returns "parked"       a person must decide, or no model is available. The decision or a timer wakes the
                                 thread.
    `run` raises StaleEpoch      another worker has claimed the thread. Discard all local state.
    `run` is cancelled           nothing is lost: the actor journals an abort, or the next start continues the turn

The model step calls the agent's models in order and journals the message, a retry, or the end of the turn. The tool
step processes the calls in order. It admits each call, journals its start, runs it, and journals its result:

    state of the call in the journal             what happens
    ------------------------------------------   --------------------------------------------------------------------
    no events                                    admit the call: deny it, request approval, or start it
    approval requested, not decided              park: the turn stops working until the decision wakes it
    approval decided                             if allowed, admit the call. Otherwise its result gives the reason.
    needs approval, can be staged                its result says so (turn/staging.py), and the turn continues
    allowed, but what it runs has changed        request approval again, which replaces the old request, and park
    allowed, but earlier calls changed its       request approval again, as above
    effect
    started, no result after a crash             run it again if the tool is idempotent. Otherwise it fails.
    started, its result has not arrived          park: the result wakes the turn, which runs the call again
    a message arrived for the turn               skip this call and all later ones, each with a result
    (steer = skip)
    the model's message was cut off              this call and all later ones fail with the reason

If a call needs approval, one card requests it for this call and for all later calls that need it. The calls still
run in order, each after all earlier calls have results.

Calls that may run immediately are admitted before their message is journaled, and start in the same transaction. If
the thread changed in between, only the message is journaled, and its calls start as usual.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Literal

import msgspec

from shoal.kernel.agents import AgentSpec
from shoal.kernel.clock import Clock, retry_delay
from shoal.kernel.errors import InvalidInput
from shoal.kernel.events import (
    INTERRUPTED,
    AssistantSaid,
    Checkpointed,
    Failed,
    LimitReached,
    RetryScheduled,
    StatusChanged,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from shoal.kernel.ids import ApprovalId, CallId, ThreadId
from shoal.kernel.messages import RETRYABLE, SILENT, FailureKind, ModelDone, ModelFailed, Origin, ToolCall
from shoal.kernel.ports import Models, Route
from shoal.kernel.records import AdmittedCalls, AuditEntry, CallOutcome, Commit, Spend, Step
from shoal.kernel.settings import TurnsSettings
from shoal.kernel.turnstate import (
    BROKE_OFF,
    FALLBACK,
    LEFT_OUT,
    ONLY_THOUGHT,
    UNANSWERED,
    CallModel,
    Finish,
    NoteLimit,
    RunCalls,
    TurnState,
    joined_reply,
    next_move,
)
from shoal.tools.checkpoints import Checkpoints
from shoal.tools.executor import VERDICTS, Admitted, CallContext, Executor, MustAsk, Refused
from shoal.tools.mending import mended
from shoal.turn.compaction import Compactor
from shoal.turn.context import ContextBuilder
from shoal.turn.outage import ANSWERS_AGAIN, GAVE_UP
from shoal.turn.run import TurnRun
from shoal.turn.spending import Charge, Spending, charge_of
from shoal.turn.staging import EndCard, ask_or_stage, end_card

log = logging.getLogger(__name__)

SKIPPED = "Skipped: a new message arrived."
TRUNCATED = (
    "Not run: your message was cut off at the length limit, so this call may be incomplete. Write a shorter message."
)

FRIENDLY: dict[FailureKind, str] = {
    "rate_limited": "The model's rate limit has been reached. Please try again in a minute.",
    "overloaded": "The model is overloaded right now. Please try again in a minute.",
    "server_error": "The model's server reported an error. Please try again in a minute.",
    "unreachable": "I cannot reach the model right now. Please try again, or check the connection with `shoal doctor`.",
    "dropped": "The connection to the model broke several times. Please try again.",
    "timeout": "The model did not answer in time. Please try again.",
    "quota": "The model's quota is used up. The person who runs this agent must raise it or choose another model.",
    "auth": "The provider rejected the API key. The person who runs this agent can check it with `shoal doctor`.",
    "invalid_request": "The model rejected the request. The details are in the console.",
    "too_large": "The model's answer was too long, so I dropped it. Ask for a shorter answer.",
    "context_overflow": "This conversation has grown too long for the model. Start a new one with /new.",
    "content_filter": "The model's provider declined to answer. Rephrase your message, or choose another model.",
}
TOO_MUCH = (
    "Your message and its instructions do not fit in the model's context window. Send a shorter message, or ask "
    "the person who runs this agent to choose a model with a larger window."
)
WAITING: dict[FailureKind, str] = {
    "rate_limited": "The model's rate limit has been reached.",
    "overloaded": "The model is overloaded right now.",
    "server_error": "The model's server reports an error.",
    "unreachable": "I cannot reach the model right now.",
    "dropped": "The connection to the model keeps breaking.",
    "timeout": "The model does not answer in time.",
}
WHY: dict[FailureKind, str] = {
    "rate_limited": "has reached its rate limit",
    "overloaded": "is overloaded",
    "server_error": "reports a server error",
    "unreachable": "cannot be reached",
    "dropped": "keeps breaking the connection",
    "timeout": "does not answer in time",
    "quota": "has used up its quota",
    "auth": "rejected the API key",
    "invalid_request": "rejected the request",
    "too_large": "sent an answer that was too long",
}
INSTEAD = "{model} answered, because {first} {why}."
CHOICES_MAX = 2
NO_SUCH_MODEL = "No configured provider has my model. The person who runs this agent can check it with `shoal doctor`."
HELPED_BY_ANOTHER_MODEL: frozenset[FailureKind] = RETRYABLE | frozenset[FailureKind](
    {"quota", "auth", "invalid_request"}
)
REFUSALS: frozenset[FailureKind] = frozenset({"invalid_request", "content_filter"})
"""Kinds of failures that earlier messages in the conversation may cause."""

OUTAGE_BASE_SECONDS = 5.0
"""Seconds before the first retry of a turn that waits for a model. The delay doubles with each attempt, up to
`BACKOFF_SECONDS_MAX`.
"""
OUTAGE_ASKED_SECONDS_MAX = 300.0
"""Maximum wait that a provider can request. Many providers request a day but work again within a minute."""
CONFIRMED_SECONDS = 0.5
"""Maximum age of a lease check before a model call. If more time has passed, for example because the process was
suspended, the lease is checked again.
"""

TurnOutcome = Literal["finished", "parked"]


class ModelStep(msgspec.Struct, frozen=True):
    outcome: AssistantSaid | Failed | LimitReached | RetryScheduled
    timing: Step
    spend: Spend | None = None
    instead: str = ""
    """Reason why a fallback model answered, or empty."""
    notes: tuple[str, ...] = ()
    """Notes about content that the model did not receive."""
    broke_off: str = ""
    """Notice that is appended to an incomplete answer, or empty."""


class TurnLoop(msgspec.Struct, frozen=True, eq=False):
    """Runs open turns.

    - `confirm`: awaited before each model request. Raises StaleEpoch if another worker has claimed the thread. This
      keeps a process that was suspended from repeating finished work.
    - `push`: sends a call's file changes to other machines before its result is journaled. Any machine can then
      continue the turn.
    - `checkpoints`: store the state of the workspace before the first call that may change files.
    - `known_models`: returns the names of all models.
    - `warn_unknown_window`: called for each model in use whose window is unknown.
    - `outage_seconds`: maximum wait for a model. `outage_seconds_by_origin` overrides it for messages of some origins.
    - `stoppers`: each stops background work that a thread's calls started, and returns the number of stopped items.
    """

    models: Models
    executor: Executor
    context: ContextBuilder
    compactor: Compactor
    spending: Spending
    clock: Clock
    limits: TurnsSettings
    confirm: Callable[[ThreadId], Awaitable[None]]
    push: Callable[[ThreadId, AgentSpec], Awaitable[tuple[str, ...]]]
    checkpoints: Checkpoints
    known_models: Callable[[], Sequence[str]]
    warn_unknown_window: Callable[[str], Awaitable[None]]
    outage_seconds: float
    outage_seconds_by_origin: dict[Origin, float] = {}
    stoppers: list[Callable[[ThreadId], Awaitable[int]]] = []

    async def stop_background(self, thread: ThreadId) -> int:
        return sum([await stop(thread) for stop in self.stoppers])

    async def run(self, run: TurnRun) -> TurnOutcome:
        view, caller, limits = run.view, run.scope.caller, self.limits
        if caller is not None:
            limits = msgspec.structs.replace(limits, steps_max=min(limits.steps_max, caller.steps_max))
        while (move := next_move(view.open, limits)) is not None:
            match move:
                case RunCalls(calls=calls, truncated=truncated):
                    if await self._run_calls(run, calls, truncated=truncated) == "parked":
                        return "parked"
                case CallModel(tools=tools):
                    retry, now = view.open.retry, self.clock.now()
                    if retry is not None and view.open.waits(now):
                        seconds = (retry.next_at - now).total_seconds()
                        view.show(StatusChanged("retrying", f"the model {WHY[retry.kind]}", seconds))
                        return "parked"
                    if view.steered:
                        await view.take_steers()
                    await self._take_model_step(run, tools=tools)
                case NoteLimit(limit=limit):
                    details = {
                        "steps": "1 step" if limits.steps_max == 1 else f"{limits.steps_max} steps",
                        "tool_errors": f"{limits.tool_errors_in_a_row_max} tool errors in a row",
                        "output_tokens": f"{max(view.open.cut_off_in_a_row, view.open.continued + 1)} answers in a row"
                        " cut off at max_output_tokens",
                    }
                    await view.commit(LimitReached(limit, details[limit]))
                case Finish():
                    await self._finish(run, move)
        view.show(StatusChanged("idle"))
        return "finished"

    async def _finish(
        self,
        run: TurnRun,
        move: Finish,
        message: AssistantSaid | None = None,
        *,
        spend: Spend | None = None,
        steps: tuple[Step, ...] = (),
    ) -> None:
        view, state = run.view, run.view.open
        reply = move.reply
        if not reply.strip() and move.outcome != "aborted":
            reply = UNANSWERED.get(state.limit, self.limits.default_response)
        has_answered = state.told and state.caller is None and move.outcome in ("done", "limit")
        if reply.strip() == SILENT or has_answered:
            reply = ""
        reply = view.with_known_links(reply)
        usage = state.usage + message.usage if message is not None else state.usage
        finished = TurnFinished(move.outcome, reply, state.steps + (message is not None), usage)
        events, posts = (message,) if message is not None else (), view.answer(reply, move.outcome)
        await self._end(run, Commit(view.turn, events, posts, spend=spend, steps=steps), finished)

    async def _end(self, run: TurnRun, commit: Commit, finished: TurnFinished) -> None:
        card, state = EndCard(), run.view.open
        if state.staged and finished.outcome in ("done", "limit"):
            card = await end_card(run, self.executor, self.context, self.checkpoints, self.clock)
        await run.view.finish(
            msgspec.structs.replace(
                commit,
                events=(*commit.events, *card.events, finished),
                posts=(*commit.posts, *card.posts),
                audit=card.audit,
                approvals=card.approvals,
                staged=card.staged,
                shows=state.effects,
            )
        )

    # ---- the model step ----

    async def _take_model_step(self, run: TurnRun, *, tools: bool) -> None:
        view = run.view
        step = await self._ask_models(run, tools=tools)
        outcome, steps, state = step.outcome, (step.timing,), view.open
        if isinstance(outcome, RetryScheduled):
            posts = view.outage_begins(outcome, self._gives_up_at(state))
            await view.write(Commit(view.turn, (outcome,), posts, steps=steps))
            return
        if state.retry is not None:
            over = GAVE_UP if isinstance(outcome, Failed) else ANSWERS_AGAIN
            await view.write(Commit(view.turn, posts=view.outage_ends(over), retried=True))
        if step.instead and step.instead != state.instead:
            await view.commit(Failed(FALLBACK, step.instead, fatal=False))
        if notes := await view.new_notes(step.notes):
            await view.commit(*(Failed(LEFT_OUT, note, fatal=False) for note in notes))
        if isinstance(outcome, LimitReached):  # The turn ends without another model request.
            finished = TurnFinished("limit", outcome.detail, state.steps, state.usage)
            posts = view.answer(outcome.detail, finished.outcome)
            await self._end(run, Commit(view.turn, (outcome,), posts), finished)
        elif isinstance(outcome, Failed) or outcome.stop == "max_tokens":
            await view.commit(outcome, spend=step.spend, steps=steps)
        elif outcome.tool_calls:
            await self._begin_calls(run, outcome, step.spend, steps)
        else:
            continues = state.answered and state.stop == "max_tokens"
            text = joined_reply(state.reply, outcome.text) if continues else outcome.text
            if not text.strip() and outcome.thinking.strip():
                text = ONLY_THOUGHT
            text = f"{text.rstrip()}\n\n{step.broke_off}" if step.broke_off else text
            answer = Finish("limit" if state.limit else "done", text)
            await self._finish(run, answer, outcome, spend=step.spend, steps=steps)

    async def _ask_models(self, run: TurnRun, *, tools: bool) -> ModelStep:
        agent, began = run.scope.agent, self.clock.now()
        names = (agent.model, *agent.fallback)
        failures: list[ModelFailed] = []
        apology = NO_SUCH_MODEL

        def step(description: str) -> Step:
            duration_ms = round((self.clock.now() - began).total_seconds() * 1000)
            return Step(run.view.open.steps + 1, description, began, duration_ms)

        for name in names:
            try:
                route = self.models.route(name)
            except InvalidInput as error:
                failures.append(ModelFailed("invalid_request", str(error)))
                apology = NO_SUCH_MODEL
                log.warning("model skipped", extra={"model": name, "why": str(error)})
                continue
            if not route.context_tokens and not self.context.knows_window(route):
                await self.warn_unknown_window(name)
            charge = charge_of(run, name)
            try:
                outcome = await self._try_model(run, route, charge, tools=tools, is_last=name == names[-1])
            except InvalidInput as error:
                outcome = ModelFailed("context_overflow", str(error))
            if isinstance(outcome, LimitReached):
                return ModelStep(outcome, step(f"model {name}"))
            if isinstance(outcome, ModelDone):
                spend = self.spending.spend(charge, outcome.usage, self.models.usd(route, outcome.usage))
                instead = INSTEAD.format(model=name, first=names[0], why=WHY[failures[0].kind]) if failures else ""
                known, calls = set(run.view.open.call_ids), list[ToolCall]()
                for call in outcome.message.tool_calls if tools else ():  # Call ids must be unique within the turn.
                    call_id = call.id if call.id and call.id not in known else CallId(f"call_{self.clock.new_id()}")
                    known.add(call_id)
                    written = ToolCall(call_id, call.name, call.arguments)
                    is_whole = outcome.stop != "max_tokens"  # A truncated call never runs.
                    calls.append(mended(written, self.executor.registry, agent.tools) if is_whole else written)
                message = AssistantSaid(
                    text=run.view.with_known_links(outcome.message.text),
                    tool_calls=tuple(calls),
                    stop=outcome.stop,
                    model=outcome.model or name,
                    usage=outcome.usage,
                    thinking=outcome.thinking,
                    opaque=outcome.message.opaque,
                    tainted_by=run.view.tainted_by,
                    asked=run.asked,
                )
                return ModelStep(message, step(f"model {name}"), spend, instead, outcome.notes)
            failures.append(outcome)
            apology = FRIENDLY[outcome.kind]
            if outcome.kind == "context_overflow" and len(run.view.transcript.turn_starts()) < 2:
                apology = TOO_MUCH
            log.warning("model %s failed: %s (%s)", name, outcome.kind, outcome.message)
            if outcome.kind not in HELPED_BY_ANOTHER_MODEL:
                break
        await self.spending.release(charge_of(run, agent.model))
        partial = max(failures, key=lambda failure: len(failure.partial.strip()))
        if partial.partial.strip():  # Keep the partial text, which was paid for.
            text = run.view.with_known_links(partial.partial)
            message = AssistantSaid(text, tainted_by=run.view.tainted_by, asked=run.asked, model=agent.model)
            log.warning("answer broke off", extra={"kind": partial.kind, "why": self.context.clean(partial.message)})
            return ModelStep(message, step("model broke off"), broke_off=BROKE_OFF)
        last = failures[-1]
        failed = Failed(last.kind, apology, self.context.clean(last.message))
        return ModelStep(self._schedule_retry(run, failures) or failed, step("model failed"))

    async def _try_model(
        self, run: TurnRun, route: Route, charge: Charge, *, tools: bool, is_last: bool
    ) -> ModelDone | ModelFailed | LimitReached:
        view, attempt = run.view, 0
        await self.compactor.before_call(run, route)
        while True:
            shares = self.context.shares(run, route)
            request, units = self.context.request(run, route, shares, tools=tools)
            asked_at = self.clock.monotonic()
            await self.confirm(view.thread)
            refused = await self.spending.reserve(charge, route, request, shares.gauge)
            if refused:
                return LimitReached("budget", refused)
            if self.clock.monotonic() - asked_at > CONFIRMED_SECONDS:
                await self.confirm(view.thread)
            outcome, _ = await self.spending.stream(charge, route, request, shares.gauge, run.begin_call())
            if isinstance(outcome, ModelDone):
                usage, is_guess = outcome.usage, False
                if usage.estimated:  # The input count, the output count, or both may be estimated.
                    is_guess = usage.input_tokens == shares.gauge.cautious().request(request)
                self.context.learn(run, route, units, 0 if is_guess else usage.input_tokens)
                if run.unsummarised:  # An earlier summary failed because no model was available.
                    await self.compactor.note_failure(run, run.unsummarised)
                    run.unsummarised = ""
                return outcome
            if outcome.kind == "context_overflow":
                if await self.compactor.on_overflow(run, route, outcome.window_tokens, shares.gauge.request(request)):
                    continue
                return outcome
            if is_last and outcome.kind in REFUSALS and await self.compactor.leave_behind(run, route):
                continue
            attempt += 1
            attempts_max = self.limits.model_attempts_max if view.open.retry is None else 1
            if outcome.kind not in RETRYABLE or attempt >= attempts_max:
                return outcome
            if (outcome.retry_after_seconds or 0.0) > self.limits.retry_after_seconds_max:
                return outcome
            seconds = retry_delay(attempt, outcome.retry_after_seconds, self.limits.retry_base_seconds)
            view.show(StatusChanged("retrying", f"the model {WHY[outcome.kind]}", seconds))
            await self.clock.sleep(seconds)

    def _gives_up_at(self, state: TurnState) -> datetime:
        now = self.clock.now()
        since = min(state.retry.since, now) if state.retry is not None else now
        seconds = self.outage_seconds_by_origin.get(state.origin, self.outage_seconds)
        return since + timedelta(seconds=seconds)

    def _schedule_retry(self, run: TurnRun, failures: Sequence[ModelFailed]) -> RetryScheduled | None:
        """Schedule the next attempt. Return None if the turn has waited long enough or waiting cannot help.

        Uses the shortest wait that a provider requests, within the time that the turn has left. A person can choose
        one model from each of the first CHOICES_MAX providers that were not asked.
        """
        passing = [failure for failure in failures if failure.kind in RETRYABLE]
        state, agent, now = run.view.open, run.scope.agent, self.clock.now()
        until, before = self._gives_up_at(state), state.retry
        if not passing or now >= until:
            return None
        attempt = before.attempt + 1 if before is not None else 1
        wanted = min((failure.retry_after_seconds or 0.0) for failure in passing)
        wanted = min(wanted, OUTAGE_ASKED_SECONDS_MAX)
        delay = min(retry_delay(attempt, wanted or None, OUTAGE_BASE_SECONDS), (until - now).total_seconds())
        asked = {name.partition("/")[0] for name in (agent.model, *agent.fallback)}
        choices: dict[str, str] = {}
        for name in self.known_models():
            provider = name.partition("/")[0]
            if provider not in asked:
                choices.setdefault(provider, name)
        first = passing[0]
        return RetryScheduled(
            first.kind,
            WAITING[first.kind],
            now + timedelta(seconds=delay),
            min(before.since, now) if before is not None else now,
            attempt,
            self.context.clean(first.message),
            tuple(choices.values())[:CHOICES_MAX],
        )

    # ---- the tool step ----

    async def _begin_calls(
        self, run: TurnRun, message: AssistantSaid, spend: Spend | None, steps: tuple[Step, ...]
    ) -> None:
        view = run.view
        admitted, last_seq, begun = list[Admitted](), view.transcript.last_seq, tuple[Checkpointed | ToolStarted, ...]()
        try:
            context = self.context.calls(run)
            # A message that changes the taint must be journaled before its calls are admitted. Calls that wait start as
            # usual.
            if message.tainted_by == view.tainted_by and not self._comes_later(message.tool_calls[0]):
                for call in self._together(view.open, message.tool_calls):
                    admission = await self.executor.admit(call, context, None)
                    if not isinstance(admission, Admitted):
                        admitted = []
                        break
                    admitted.append(admission)
                begun = (*await self._checkpoint(run, admitted), *(call.started for call in admitted))
        finally:  # Keep the text, which was paid for, even if the turn was stopped.
            starts = AdmittedCalls(last_seq, begun, _audit_of(admitted)) if begun else None
            await view.write(Commit(view.turn, (message,), spend=spend, steps=steps, starts=starts))
        if admitted and admitted[0].call.id in view.open.started:
            await self._run_started(run, admitted, context)

    async def _run_calls(self, run: TurnRun, calls: tuple[ToolCall, ...], *, truncated: bool) -> TurnOutcome | None:
        view = run.view
        if truncated:
            await self._fail_calls(run, calls, TRUNCATED)
            return None
        context = self.context.calls(run)
        while calls:
            if view.steered and self.limits.steer == "skip" and not view.open.effects:
                if any(self._comes_later(call) and call.id in view.open.started for call in calls):
                    await self.stop_background(view.thread)
                await self._fail_calls(run, calls, SKIPPED, void_approvals=True)
                return None
            together = self._together(view.open, calls)
            if len(together) > 1 and not self._comes_later(calls[0]):
                admitted, asks = list[Admitted](), None
                for call in together:
                    admission = await self.executor.admit(call, context, None)
                    match admission:
                        case Admitted():
                            admitted.append(admission)
                        case Refused(result=result, audit=audit):
                            await view.write(Commit(view.turn, (result,), audit=audit))
                        case MustAsk():
                            asks = call, admission
                            break
                if admitted:
                    started = tuple(call.started for call in admitted)
                    await view.write(Commit(view.turn, started, audit=_audit_of(admitted)))
                    await self._run_started(run, admitted, context)
                if asks is not None:  # No later call runs before the decision.
                    return await self._ask_person(run, *asks)
            else:  # All waiting calls start together. Each gets its result when it arrives.
                outcomes = [await self._run_one(run, context, call) for call in together]
                if "parked" in outcomes:
                    return "parked"
            calls = calls[len(together) :]
        return None

    def _together(self, state: TurnState, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the leading calls that may run together: read-only calls that have not started, or calls that wait.

        Return only the first call if it must run alone.
        """
        if self._comes_later(calls[0]):
            return tuple(takewhile(self._comes_later, calls))
        touched = state.started | state.approvals.keys()
        count = 0
        for call in calls:
            tool = self.executor.registry.get(call.name)
            if tool is None or not tool.traits.read_only or call.id in touched:
                break
            count += 1
        return calls[: max(count, 1)]

    async def _run_started(
        self, run: TurnRun, admitted: Sequence[Admitted], context: CallContext
    ) -> TurnOutcome | None:
        view = run.view
        view.show(StatusChanged("tool", ", ".join(call.call.name for call in admitted)))
        if len(admitted) == 1:
            results = [await self.executor.run(admitted[0], context)]
        else:
            results = await asyncio.gather(*(self.executor.run(call, context) for call in admitted))
        finished, outcomes, outcome = list[ToolFinished](), list[tuple[ApprovalId, CallOutcome]](), None
        for call, result in zip(admitted, results, strict=True):
            if isinstance(result, ToolFinished):
                notices = () if call.traits.read_only else await self.push(context.thread, context.agent)
                finished.append(msgspec.structs.replace(result, text="\n".join((result.text, *notices))))
                outcomes += _outcome(view.open, result.call_id, "failed" if result.is_error else "ran")
        if finished:
            now, number = self.clock.now(), view.open.steps
            steps = tuple(Step(number, f"tool {result.name}", now, result.duration_ms) for result in finished)
            await view.write(Commit(view.turn, tuple(finished), outcomes=tuple(outcomes), steps=steps))
        for call, result in zip(admitted, results, strict=True):
            if isinstance(result, MustAsk):
                outcome = await self._ask_person(run, call.call, result)
            elif result is None:
                outcome = "parked"
        return outcome

    async def _run_one(self, run: TurnRun, context: CallContext, call: ToolCall) -> TurnOutcome | None:
        """Advance a call according to the table in the module docstring."""
        view, state = run.view, run.view.open
        verdict = state.verdicts.get(call.id)
        request = state.approvals.get(call.id)
        if call.id in state.started:
            tool = self.executor.registry.get(call.name)
            if tool is None or not (tool.traits.idempotent or tool.traits.waits):
                result = ToolFinished(call.id, call.name, INTERRUPTED, is_error=True, counts=False)
                await view.write(Commit(view.turn, (result,), outcomes=_outcome(state, call.id, "interrupted")))
                return None
            admission = await self.executor.again(call, context, request)
        elif request is not None and verdict is None:
            view.show(StatusChanged("waiting", call.name))
            return "parked"
        elif verdict is not None and verdict.decision != "allow":
            text = VERDICTS[verdict.decision]
            await view.commit(ToolFinished(call.id, call.name, text, is_error=True, counts=False))
            return None
        else:
            admission = await self.executor.admit(call, context, request)
            if isinstance(admission, MustAsk):
                return await self._ask_person(run, call, admission)
            if isinstance(admission, Admitted):
                audit, approval = admission.audit, admission.use_approval
                begun = (*await self._checkpoint(run, [admission]), admission.started)
                await view.write(Commit(view.turn, begun, audit=audit, use_approval=approval))
        if isinstance(admission, Admitted):
            return await self._run_started(run, [admission], context)
        outcomes = _outcome(state, call.id, "changed")
        await view.write(Commit(view.turn, (admission.result,), audit=admission.audit, outcomes=outcomes))
        return None

    async def _checkpoint(self, run: TurnRun, admitted: Sequence[Admitted]) -> tuple[Checkpointed, ...]:
        state = run.view.open
        if state.checkpoint is not None:
            return ()
        return await self.checkpoints.before(admitted, run.scope.agent.workspace, state.author.id)

    async def _ask_person(self, run: TurnRun, call: ToolCall, asks: MustAsk) -> TurnOutcome | None:
        view, outcomes = run.view, _outcome(run.view.open, call.id, "asked_anew")
        commit = await ask_or_stage(run, call, asks, self.executor, self.context, self.clock)
        await view.write(msgspec.structs.replace(commit, outcomes=outcomes))
        if not commit.approvals:
            return None
        view.show(StatusChanged("waiting", call.name))
        return "parked"

    async def _fail_calls(
        self, run: TurnRun, calls: Sequence[ToolCall], text: str, *, void_approvals: bool = False
    ) -> None:
        results = tuple(ToolFinished(call.id, call.name, text, is_error=True, counts=False) for call in calls)
        await run.view.write(Commit(run.turn, results, void_approvals=void_approvals))

    def _comes_later(self, call: ToolCall) -> bool:
        tool = self.executor.registry.get(call.name)
        return tool is not None and tool.traits.waits


def _audit_of(admitted: Sequence[Admitted]) -> tuple[AuditEntry, ...]:
    return tuple(entry for call in admitted for entry in call.audit)


def _outcome(state: TurnState, call: CallId, outcome: CallOutcome) -> tuple[tuple[ApprovalId, CallOutcome], ...]:
    request = state.approvals.get(call)
    return ((request.approval_id, outcome),) if request is not None else ()
