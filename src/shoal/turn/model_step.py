"""One step's model call: stream it, retry it, fall back to the next model, and make what came of it an event."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from shoal.domain.agents import TurnLimits
from shoal.domain.backoff import retry_delay
from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidInput
from shoal.domain.events import AssistantSaid, Failed, LimitReached, StatusChanged, TextStreamed
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
NO_SUCH_MODEL = "No provider has the model that I am to use. Whoever runs this agent can check it with `shoal doctor`."
HELPED_BY_ANOTHER_MODEL: frozenset[FailureKind] = RETRYABLE | frozenset[FailureKind](
    {"quota", "auth", "invalid_request"}
)

CONFIRMED_SECONDS = 0.5
"""How long the word counts that a thread is still this worker's: one that stood still meanwhile asks again."""


class ModelStep:
    """Calls models for turns.

    `confirm` is awaited before each request and raises StaleEpoch when another worker has the thread by now, so that a
    process that was frozen does not ask again for what another has finished.
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
    ) -> None:
        self._models = models
        self._context = context
        self._compactor = compactor
        self._spending = spending
        self._clock = clock
        self._limits = limits
        self._confirm = confirm

    async def call(
        self, session: Session, *, tools: bool
    ) -> tuple[AssistantSaid | Failed | LimitReached, Spend | None, Step]:
        """Get the next assistant message, or what ends the turn. Journals only a dropped history."""
        began = self._clock.now()
        failure, told = ModelFailed("invalid_request", "No model is configured."), NO_SUCH_MODEL
        for name in (session.who.model, *session.who.fallback):
            try:
                route = self._models.route(name)
            except InvalidInput as error:
                failure, told = ModelFailed("invalid_request", str(error)), NO_SUCH_MODEL
                log.warning("model %s cannot be used: %s", name, error)
                continue
            outcome = await self._try_model(session, route, name, tools=tools)
            step = Step(session.open.steps + 1, f"model {name}", began, self._since(began))
            if isinstance(outcome, LimitReached):
                return outcome, None, step
            if isinstance(outcome, ModelDone):
                self._context.learn(session, route, outcome.usage)
                spend = self._spending.spend(step_charge(session, name), route, outcome.usage)
                return self._said(session, name, outcome, tools=tools), spend, step
            failure, told = outcome, FRIENDLY[outcome.kind]
            log.warning("model %s failed: %s (%s)", name, outcome.kind, outcome.message)
            if outcome.kind not in HELPED_BY_ANOTHER_MODEL:
                break
        await self._spending.release(step_charge(session, session.who.model))
        step = Step(session.open.steps + 1, "model failed", began, self._since(began))
        return Failed(failure.kind, told, self._context.clean(failure.message)), None, step

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
            refused = await self._spending.reserve(charge, route, request, self._context.gauge(route))
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
            if outcome.kind not in RETRYABLE or attempt >= self._limits.model_attempts_max:
                return outcome
            delay = retry_delay(attempt, outcome.retry_after_seconds, self._limits.retry_base_seconds)
            if delay > self._limits.retry_after_seconds_max:
                return outcome
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

        gauge = self._context.gauge(route)
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
        )

    def _show(self, session: Session, data: TextStreamed | StatusChanged) -> None:
        session.hub.show(session.thread, session.turn, data)

    def _since(self, began: datetime) -> int:
        return round((self._clock.now() - began).total_seconds() * 1000)
