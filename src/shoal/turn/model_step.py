"""One step's model call: stream it, retry it, fall back to the next model, and make what came of it an event."""

import logging
from datetime import datetime

from shoal.domain.agents import TurnLimits
from shoal.domain.backoff import retry_delay
from shoal.domain.clock import Clock
from shoal.domain.errors import InvalidInput
from shoal.domain.events import AssistantSaid, Failed, LimitReached, StatusChanged, TextStreamed
from shoal.domain.ids import CallId
from shoal.domain.messages import RETRYABLE, FailureKind, ModelDone, ModelFailed, TextDelta, ToolCall
from shoal.domain.ports import Models, Route
from shoal.domain.records import Spend, Step
from shoal.turn.compactor import Compactor
from shoal.turn.context import ContextBuilder
from shoal.turn.session import Session
from shoal.turn.spending import Spending

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
HELPED_BY_ANOTHER_MODEL: frozenset[FailureKind] = RETRYABLE | frozenset[FailureKind](
    {"quota", "auth", "invalid_request"}
)


class ModelStep:
    """Calls models for turns."""

    def __init__(
        self,
        models: Models,
        context: ContextBuilder,
        compactor: Compactor,
        spending: Spending,
        clock: Clock,
        limits: TurnLimits,
    ) -> None:
        self._models = models
        self._context = context
        self._compactor = compactor
        self._spending = spending
        self._clock = clock
        self._limits = limits

    async def call(
        self, session: Session, *, tools: bool
    ) -> tuple[AssistantSaid | Failed | LimitReached, Spend | None, Step]:
        """Get the next assistant message, or what ends the turn. Journals only a dropped history."""
        began = self._clock.now()
        failure = ModelFailed("invalid_request", "No model is configured.")
        for name in (session.who.model, *session.who.fallback):
            try:
                route = self._models.route(name)
            except InvalidInput as error:
                failure = ModelFailed("invalid_request", str(error))
                continue
            outcome = await self._try_model(session, route, tools=tools)
            step = Step(session.open.steps + 1, f"model {name}", began, self._since(began))
            if isinstance(outcome, LimitReached):
                return outcome, None, step
            if isinstance(outcome, ModelDone):
                self._context.learn(session, route, outcome.usage)
                return self._said(session, name, outcome, tools=tools), self._spend(session, route, name, outcome), step
            failure = outcome
            log.warning("model %s failed: %s (%s)", name, outcome.kind, outcome.message)
            if outcome.kind not in HELPED_BY_ANOTHER_MODEL:
                break
        await self._spending.release(session)
        step = Step(session.open.steps + 1, "model failed", began, self._since(began))
        return Failed(failure.kind, FRIENDLY[failure.kind], failure.message), None, step

    async def _try_model(
        self, session: Session, route: Route, *, tools: bool
    ) -> ModelDone | ModelFailed | LimitReached:
        attempt = 0
        try:
            await self._compactor.before_call(session, route)
        except InvalidInput as error:
            return ModelFailed("context_overflow", str(error))
        request = self._context.request(session, route, tools=tools)
        refused = await self._spending.reserve(session, route, request, self._context.factor(route))
        if refused:
            return LimitReached("budget", refused)
        while True:
            outcome = await self._stream(session, route, tools=tools)
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

    async def _stream(self, session: Session, route: Route, *, tools: bool) -> ModelDone | ModelFailed:
        session.streamed.clear()
        session.calls_made += 1
        self._show(session, StatusChanged("thinking"))
        request = self._context.request(session, route, tools=tools)
        outcome: ModelDone | ModelFailed = ModelFailed("dropped", "The stream ended without an answer.")
        async for event in route.provider.stream(request):
            match event:
                case TextDelta(text=text):
                    session.streamed.append(text)
                    self._show(session, TextStreamed(text, session.calls_made))
                case ModelDone() | ModelFailed():
                    session.streamed.clear()
                    outcome = event
                case _:
                    pass
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

    def _spend(self, session: Session, route: Route, name: str, done: ModelDone) -> Spend:
        return Spend(
            id=f"{session.turn}:{session.open.steps + 1}",
            agent=session.who.name,
            user=session.asker.user,
            model=name,
            usage=done.usage,
            usd=self._models.usd(route, done.usage),
            reservation=self._spending.reservation(session),
        )

    def _show(self, session: Session, data: TextStreamed | StatusChanged) -> None:
        session.hub.show(session.thread, session.turn, data)

    def _since(self, began: datetime) -> int:
        return round((self._clock.now() - began).total_seconds() * 1000)
