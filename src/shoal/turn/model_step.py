"""One step's model call: stream it, retry it, fall back to the next model, and make what came of it an event.

every model failed, and                                  what comes of it
------------------------------------------------------   ---------------------------------------------------------
one of the failures may pass, within the outage's time   retry_scheduled: the turn waits, and asks each model once
none may pass, or the outage has lasted too long         error: the turn ends
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.domain.agents import TurnLimits
from shoal.domain.backoff import retry_delay
from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidInput
from shoal.domain.events import AssistantSaid, Failed, LimitReached, RetryScheduled, StatusChanged, TextStreamed
from shoal.domain.ids import CallId, ThreadId
from shoal.domain.messages import (
    RETRYABLE,
    FailureKind,
    ModelDone,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    TextDelta,
    ToolCall,
)
from shoal.domain.ports import Models, Route
from shoal.domain.records import Spend, Step
from shoal.turn.compactor import Compactor
from shoal.turn.context import ContextBuilder
from shoal.turn.session import Session
from shoal.turn.spending import Charge, Spending, step_charge

log = logging.getLogger(__name__)

FRIENDLY: dict[FailureKind, str] = {
    "rate_limited": "The model is busy: its rate limit is reached. Please try again in a minute.",
    "overloaded": "The model is overloaded right now. Please try again in a minute.",
    "unreachable": "I cannot reach the model right now. Please try again, or check the connection with `shoal doctor`.",
    "dropped": "The connection to the model broke several times. Please try again.",
    "timeout": "The model did not answer in time. Please try again.",
    "quota": "The model's quota is used up. Whoever runs this agent has to raise it or name another model.",
    "auth": "The model refused the API key. Whoever runs this agent can check it with `shoal doctor`.",
    "invalid_request": "The model did not accept the request. The details are in the console.",
    "context_overflow": "This conversation has grown too long for the model. Start a new one with /new.",
    "content_filter": "The model's provider declined to answer this.",
}
WAITING: dict[FailureKind, str] = {
    "rate_limited": "The model's rate limit is reached.",
    "overloaded": "The model is overloaded right now.",
    "unreachable": "I cannot reach the model right now.",
    "dropped": "The connection to the model keeps breaking.",
    "timeout": "The model does not answer in time.",
}
WHY: dict[FailureKind, str] = {
    "rate_limited": "has reached its rate limit",
    "overloaded": "is overloaded",
    "unreachable": "cannot be reached",
    "dropped": "keeps breaking the connection",
    "timeout": "does not answer in time",
    "quota": "has used up its quota",
    "auth": "refused the API key",
    "invalid_request": "did not accept the request",
}
INSTEAD = "{model} answered, because {first} {why}."
CHOICES_MAX = 2
"""How many other models a person is offered while a turn waits."""
NO_SUCH_MODEL = "No provider has the model that I am to use. Whoever runs this agent can check it with `shoal doctor`."
HELPED_BY_ANOTHER_MODEL: frozenset[FailureKind] = RETRYABLE | frozenset[FailureKind](
    {"quota", "auth", "invalid_request"}
)

OUTAGE_BASE_SECONDS = 5.0
"""First pause of a turn that waits for a model; it doubles up to `BACKOFF_SECONDS_MAX`."""
CONFIRMED_SECONDS = 0.5
"""How long the word counts that a thread is still this worker's: one that stood still meanwhile asks again."""


class Called(msgspec.Struct, frozen=True):
    """What came of a step's model call. `instead` says, where another model than the first answered, why."""

    outcome: AssistantSaid | Failed | LimitReached | RetryScheduled
    step: Step
    spend: Spend | None = None
    instead: str = ""


class ModelStep:
    """Calls models for turns.

    `confirm` is awaited before each request and raises StaleEpoch when another worker has the thread by now, so that a
    process that was frozen does not ask again for what another has finished. `known` names every model there is.
    """

    def __init__(
        self,
        models: Models,
        context: ContextBuilder,
        compactor: Compactor,
        spending: Spending,
        clock: Clock,
        limits: TurnLimits,
        confirm: Callable[[ThreadId], Awaitable[None]],
        known: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._models = models
        self._context = context
        self._compactor = compactor
        self._spending = spending
        self._clock = clock
        self._limits = limits
        self._confirm = confirm
        self._known = known

    async def call(self, session: Session, *, tools: bool) -> Called:
        """Get the next assistant message, or what ends the turn or lets it wait. Journals only a dropped history."""
        began = self._clock.now()
        names = (session.who.model, *session.who.fallback)
        failures: list[ModelFailed] = []
        told = NO_SUCH_MODEL
        for name in names:
            try:
                route = self._models.route(name)
            except InvalidInput as error:
                failures.append(ModelFailed("invalid_request", str(error)))
                told = NO_SUCH_MODEL
                log.warning("model %s cannot be used: %s", name, error)
                continue
            outcome = await self._try_model(session, route, name, tools=tools)
            step = Step(session.open.steps + 1, f"model {name}", began, self._since(began))
            if isinstance(outcome, LimitReached):
                return Called(outcome, step)
            if isinstance(outcome, ModelDone):
                self._context.learn(session, route, outcome.usage)
                spend = self._spending.spend(step_charge(session, name), route, outcome.usage)
                instead = INSTEAD.format(model=name, first=names[0], why=WHY[failures[0].kind]) if failures else ""
                return Called(self._said(session, name, outcome, tools=tools), step, spend, instead)
            failures.append(outcome)
            told = FRIENDLY[outcome.kind]
            log.warning("model %s failed: %s (%s)", name, outcome.kind, outcome.message)
            if outcome.kind not in HELPED_BY_ANOTHER_MODEL:
                break
        await self._spending.release(step_charge(session, session.who.model))
        step = Step(session.open.steps + 1, "model failed", began, self._since(began))
        scheduled = self._scheduled(session, failures)
        if scheduled is not None:
            return Called(scheduled, step)
        last = failures[-1]
        return Called(Failed(last.kind, told, self._context.clean(last.message)), step)

    def waits(self, session: Session) -> bool:
        """Whether the turn waits for its model, and its time has not come."""
        return session.open.waits(self._clock.now())

    def gives_up_at(self, session: Session) -> datetime:
        """When a turn that waits for its model waits no longer."""
        state, now = session.open, self._clock.now()
        since = min(state.retry.since, now) if state.retry is not None else now
        by_trigger = state.origin == "trigger"
        return since + timedelta(
            seconds=self._limits.trigger_outage_seconds if by_trigger else self._limits.outage_seconds
        )

    def _scheduled(self, session: Session, failures: Sequence[ModelFailed]) -> RetryScheduled | None:
        """When to ask again: after the shortest wait that a provider wants, at the latest when the turn gives up."""
        passing = [failure for failure in failures if failure.kind in RETRYABLE]
        now, until, before = self._clock.now(), self.gives_up_at(session), session.open.retry
        if not passing or now >= until:
            return None
        attempt = before.attempt + 1 if before is not None else 1
        wanted = min((failure.retry_after_seconds or 0.0) for failure in passing)
        delay = retry_delay(attempt, wanted or None, OUTAGE_BASE_SECONDS)
        first = passing[0]
        return RetryScheduled(
            first.kind,
            WAITING[first.kind],
            min(now + timedelta(seconds=delay), until),
            min(before.since, now) if before is not None else now,
            attempt,
            self._context.clean(first.message),
            self._choices(session),
        )

    def _choices(self, session: Session) -> tuple[str, ...]:
        """A model of each of the first providers that were not asked."""
        asked = {name.partition("/")[0] for name in (session.who.model, *session.who.fallback)}
        others: dict[str, str] = {}
        for name in self._known():
            provider = name.partition("/")[0]
            if provider not in asked:
                others.setdefault(provider, name)
        return tuple(others.values())[:CHOICES_MAX]

    async def _try_model(
        self, session: Session, route: Route, name: str, *, tools: bool
    ) -> ModelDone | ModelFailed | LimitReached:
        attempt = 0
        try:
            await self._compactor.before_call(session, route)
        except InvalidInput as error:
            return ModelFailed("context_overflow", str(error))
        while True:
            request = self._context.request(session, route, tools=tools)
            charge = step_charge(session, name)
            asked_at = self._clock.monotonic()
            await self._confirm(session.thread)
            refused = await self._spending.reserve(charge, route, request, self._context.gauge(session, route))
            if refused:
                return LimitReached("budget", refused)
            if self._clock.monotonic() - asked_at > CONFIRMED_SECONDS:
                await self._confirm(session.thread)
            outcome = await self._stream(session, route, request, charge)
            if isinstance(outcome, ModelDone):
                return outcome
            if outcome.kind == "context_overflow" and await self._compactor.on_overflow(session, route):
                continue
            attempt += 1
            tries = self._limits.model_attempts_max if session.open.retry is None else 1
            if outcome.kind not in RETRYABLE or attempt >= tries:
                return outcome
            if (outcome.retry_after_seconds or 0.0) > self._limits.retry_after_seconds_max:
                return outcome
            delay = retry_delay(attempt, outcome.retry_after_seconds, self._limits.retry_base_seconds)
            self._show(session, StatusChanged("retrying", f"The model is {outcome.kind}; trying again."))
            await self._clock.sleep(delay)

    async def _stream(
        self, session: Session, route: Route, request: ModelRequest, charge: Charge
    ) -> ModelDone | ModelFailed:
        session.streamed.clear()
        session.calls_made += 1
        self._show(session, StatusChanged("thinking"))
        offset = 0

        def see(event: ModelEvent) -> None:
            nonlocal offset
            match event:
                case TextDelta(text=text):
                    session.streamed.append(text)
                    self._show(session, TextStreamed(text, session.calls_made, offset))
                    offset += len(text)
                case ModelDone() | ModelFailed():
                    session.streamed.clear()
                case _:
                    pass

        gauge = self._context.gauge(session, route)
        outcome, _ = await self._spending.stream(charge, route, request, gauge, see)
        return outcome

    def _said(self, session: Session, name: str, done: ModelDone, *, tools: bool) -> AssistantSaid:
        known = set(session.open.call_ids)
        calls: list[ToolCall] = []
        for call in done.message.tool_calls if tools else ():
            call_id = call.id if call.id and call.id not in known else CallId(f"call_{self._clock.new_id()}")
            known.add(call_id)
            calls.append(ToolCall(call_id, call.name, call.arguments))
        return AssistantSaid(
            text=done.message.text,
            tool_calls=tuple(calls),
            stop=done.stop,
            model=done.model or name,
            usage=done.usage,
            thinking=done.thinking,
            opaque=done.message.opaque,
            tainted_by=session.tainted_by,
        )

    def _show(self, session: Session, data: TextStreamed | StatusChanged) -> None:
        session.hub.show(session.thread, session.turn, data)

    def _since(self, began: datetime) -> int:
        return round((self._clock.now() - began).total_seconds() * 1000)
