"""Export journal events as OpenTelemetry traces, metrics and logs, following the conventions for generative AI.

span                  starts at           ends at               details
-------------------   -----------------   -------------------   --------------------------------------------------------
invoke_agent AGENT    first event         `turn_finished`       events for approvals, retries, limits and errors; a
                                                                subagent's span links to the call that started it
chat MODEL            previous event      `assistant_message`   token counts and the stop reason
execute_tool TOOL     `tool_started`      `tool_result`         a call that did not run has no duration

Each turn is a trace. Ids are digests of names, so a turn that another process continues after a crash remains one
trace. Messages and tool results are exported only with `telemetry.content`. Secrets are removed from all text.

An SDK thread sends queued spans. If the collector is unavailable, spans that do not fit into the queue are lost. This
module is imported only if telemetry is on.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec

from shoal.delivery.hub import Hub
from shoal.installation import how_to_add
from shoal.kernel.clock import to_micros
from shoal.kernel.errors import ConfigError
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Compacted,
    Event,
    Failed,
    LimitReached,
    RetryRequested,
    RetryScheduled,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import TurnId
from shoal.kernel.settings import ProviderSettings
from shoal.kernel.version import VERSION

try:
    from opentelemetry import trace
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ModuleNotFoundError as error:
    raise ConfigError([f"Telemetry is on, but the `otel` extra is not installed. {how_to_add('otel')}"]) from error

log = logging.getLogger("shoal.terminal.telemetry")
"""Logger whose messages `shoal ask` also shows."""

TURNS_MAX = 10_000
"""Maximum number of turns with open spans. The turns that were inactive the longest are dropped first."""
CONTENT_CHARS_MAX = 8_000
SHUTDOWN_SECONDS = 3.0
"""Maximum time to send queued data at shutdown, in seconds."""
PROVIDER_NAMES = {"gemini": "gcp.gemini", "openai-responses": "openai"}
"""Provider names in OpenTelemetry's conventions that differ from the names in Shoal."""
_SEVERITIES = {
    "DEBUG": SeverityNumber.DEBUG,
    "INFO": SeverityNumber.INFO,
    "WARNING": SeverityNumber.WARN,
    "ERROR": SeverityNumber.ERROR,
    "CRITICAL": SeverityNumber.FATAL,
}
_PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


_Value: TypeAlias = str | int | list[str]


class _Ids(IdGenerator):
    """Id generator that returns the ids that the caller has set."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _OpenTurn:
    """A turn with open spans. `last_ns` is the time of its last event, in nanoseconds since 1970."""

    def __init__(self, span: Span, at_ns: int) -> None:
        self.span = span
        self.last_ns = at_ns
        self.agent = self.model = self.provider = ""
        self.calls: dict[str, Span] = {}
        self.asked: list[dict[str, str]] = []


class Journalist:
    """Converts this process's journal events to spans and metrics."""

    def __init__(
        self,
        traces: TracerProvider,
        ids: _Ids,
        figures: MeterProvider,
        redact: Callable[[str], str],
        kinds: Mapping[str, str],
        *,
        with_content: bool,
    ) -> None:
        self._tracer = traces.get_tracer("shoal")
        self._ids = ids
        meter = figures.get_meter("shoal")
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Duration of model calls, tool calls and turns."
        )
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of model calls.")
        self._redact = redact
        self._kinds = kinds
        self._with_content = with_content
        self._open: OrderedDict[TurnId, _OpenTurn] = OrderedDict()

    def record(self, event: Event) -> None:
        """Record an event of the journal. Never blocks or raises."""
        if not event.turn:
            return
        at = to_micros(event.at) * 1000
        turn = self._open.get(event.turn)
        if turn is None:
            about = {"gen_ai.operation.name": "invoke_agent", "shoal.turn.id": event.turn}
            span = self._begin(event, "invoke_agent", trace.INVALID_SPAN, about, at)
            turn = self._open[event.turn] = _OpenTurn(span, at)
            if len(self._open) > TURNS_MAX:
                self._open.popitem(last=False)
        self._open.move_to_end(event.turn)
        match event.data:
            case UserSaid() as said:
                if said.caller is not None:
                    thread, caller = said.caller.line[-1]
                    called = SpanContext(_id(16, caller), _id(8, caller, said.caller.call_id), False, TraceFlags(1))
                    turn.span.add_link(called, {"gen_ai.conversation.id": thread})
                turn.asked.append({"role": "user", "content": said.text})
                if self._with_content:
                    turn.span.set_attribute("gen_ai.input.messages", self._messages(turn.asked))
            case TurnStarted() as started:
                turn.agent, turn.model = started.agent, started.model
                name = started.model.partition("/")[0]
                kind = self._kinds.get(name, name)
                turn.provider = PROVIDER_NAMES.get(kind, kind)
                turn.span.update_name(f"invoke_agent {started.agent}")
                turn.span.set_attributes({"gen_ai.agent.name": started.agent, **self._about(turn, "invoke_agent")})
            case AssistantSaid() as said:
                self._chat(event, turn, said, at)
            case ToolStarted() as started:
                turn.calls[started.call_id] = self._tool(event, turn, started.call_id, started.name, at)
            case ToolFinished() as result:
                span = turn.calls.pop(result.call_id, None) or self._tool(event, turn, result.call_id, result.name, at)
                if result.is_error:
                    span.set_attribute("error.type", "tool_error")
                    span.set_status(Status(StatusCode.ERROR))
                if self._with_content:
                    span.set_attribute("gen_ai.tool.call.result", self._text(result.text))
                span.end(at)
                self._measure(turn, "execute_tool", result.duration_ms / 1000, {"gen_ai.tool.name": result.name})
            case TurnFinished() as finished:
                self._finish(turn, finished, at)
                del self._open[event.turn]
            case ApprovalRequested(tool=tool, call_id=call):
                about = {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call}
                turn.span.add_event("shoal.approval_requested", about, at)
            case ApprovalSettled(decision=decision, call_id=call, scope=scope):
                about = {"shoal.decision": decision, "shoal.scope": scope, "gen_ai.tool.call.id": call}
                turn.span.add_event("shoal.approval_decided", about, at)
            case RetryScheduled(kind=kind, attempt=attempt, next_at=next_at):
                about = {"error.type": kind, "shoal.attempt": attempt, "shoal.next_at": next_at.isoformat()}
                turn.span.add_event("shoal.retry_scheduled", about, at)
            case LimitReached(limit=limit):
                turn.span.add_event("shoal.limit_reached", {"shoal.limit": limit}, at)
            case Failed(kind=kind, fatal=fatal):
                turn.span.add_event("shoal.error", {"error.type": kind, "shoal.fatal": fatal}, at)
                if fatal:
                    turn.span.set_attribute("error.type", kind)
                    turn.span.set_status(Status(StatusCode.ERROR))
            case Compacted() | Steered() | RetryRequested():
                turn.span.add_event(f"shoal.{event.type}", timestamp=at)
            case _:
                pass
        turn.last_ns = at

    def _begin(self, event: Event, name: str, parent: Span, about: Mapping[str, _Value], at: int, *ids: str) -> Span:
        self._ids.trace_id, self._ids.span_id = _id(16, event.turn), _id(8, event.turn, *ids)
        kind = SpanKind.CLIENT if about["gen_ai.operation.name"] == "chat" else SpanKind.INTERNAL
        about = {"gen_ai.conversation.id": event.thread, **about}
        return self._tracer.start_span(name, trace.set_span_in_context(parent), kind, about, start_time=at)

    def _chat(self, event: Event, turn: _OpenTurn, message: AssistantSaid, at: int) -> None:
        usage, model = message.usage, message.model or turn.model
        attributes: dict[str, _Value] = {
            **self._about(turn, "chat"),
            "gen_ai.agent.name": turn.agent,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [message.stop],
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        }
        if self._with_content:
            attributes["gen_ai.input.messages"] = self._messages(turn.asked)
            attributes["gen_ai.output.messages"] = self._messages([{"role": "assistant", "content": message.text}])
            turn.asked = []
        self._begin(event, f"chat {model}", turn.span, attributes, turn.last_ns, str(event.seq)).end(at)
        about = {"gen_ai.response.model": model}
        self._measure(turn, "chat", (at - turn.last_ns) / 1e9, about)
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self._tokens.record(count, {**self._about(turn, "chat"), **about, "gen_ai.token.type": kind})

    def _tool(self, event: Event, turn: _OpenTurn, call_id: str, name: str, at: int) -> Span:
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "function",
            "gen_ai.agent.name": turn.agent,
        }
        return self._begin(event, f"execute_tool {name}", turn.span, about, at, call_id)

    def _finish(self, turn: _OpenTurn, finished: TurnFinished, at: int) -> None:
        turn.span.set_attributes(
            {
                "shoal.outcome": finished.outcome,
                "shoal.steps": finished.steps,
                "gen_ai.usage.input_tokens": finished.usage.input_tokens,
                "gen_ai.usage.output_tokens": finished.usage.output_tokens,
            }
        )
        if self._with_content:
            messages = [{"role": "assistant", "content": finished.reply}]
            turn.span.set_attribute("gen_ai.output.messages", self._messages(messages))
        for call in turn.calls.values():
            call.end(at)
        turn.span.end(at)
        begun = getattr(turn.span, "start_time", None) or at
        self._measure(turn, "invoke_agent", (at - begun) / 1e9, {"shoal.outcome": finished.outcome})

    def _about(self, turn: _OpenTurn, operation: str) -> dict[str, str]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": turn.provider,
            "gen_ai.request.model": turn.model,
        }

    def _measure(self, turn: _OpenTurn, operation: str, seconds: float, more: Mapping[str, str]) -> None:
        self._seconds.record(seconds, {**self._about(turn, operation), **more})

    def _text(self, text: str) -> str:
        return self._redact(text)[:CONTENT_CHARS_MAX]

    def _messages(self, messages: list[dict[str, str]]) -> str:
        outputs = [
            {"role": message["role"], "parts": [{"type": "text", "content": self._text(message["content"])}]}
            for message in messages
        ]
        return msgspec.json.encode(outputs).decode()


class _LogHandler(logging.Handler):
    """Log handler that removes secrets from records and exports them."""

    def __init__(self, provider: LoggerProvider, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._provider = provider
        self._redact = redact

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry"):  # otherwise export errors would be exported too
            return
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN_RECORD}
        attributes = {name: self._redact(str(value)) for name, value in fields.items()}
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.stacktrace"] = self._redact(logging.Formatter().formatException(record.exc_info))
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                severity_text=record.levelname,
                severity_number=_SEVERITIES.get(record.levelname, SeverityNumber.UNSPECIFIED),
                body=self._redact(record.getMessage()),
                attributes=attributes,
            )
        )


class _Trouble(logging.Handler):
    """Log handler for the SDK's loggers. Warns once, at the first error. Calls `gave_up` with the logger's name for
    every record.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gave_up: Callable[[str], object] | None = None
        self._has_warned = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self._has_warned:
            self._has_warned = True
            errno = re.search(r"\[Errno -?\d+\] ([\w ]+)", record.getMessage())
            where = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
            log.warning(
                "sending telemetry to %s failed: %s; start a collector there, or unset OTEL_EXPORTER_OTLP_ENDPOINT",
                where, errno[1] if errno is not None else record.getMessage().rstrip("."),
            )  # fmt: skip
        if self.gave_up is not None:
            self.gave_up(record.name)


@asynccontextmanager
async def telemetry(
    providers: Mapping[str, ProviderSettings], hub: Hub, redact: Callable[[str], str], *, with_content: bool
) -> AsyncGenerator[None]:
    """Export traces, metrics and logs while the block runs.

    On exit, queued data is sent for at most SHUTDOWN_SECONDS, and each signal gives up after its first failure. The
    OTEL_* variables configure the destination, by default a collector on this machine. A signal whose exporter is
    `none` is not sent.
    """
    sent = {name for name in ("TRACES", "METRICS", "LOGS") if os.environ.get(f"OTEL_{name}_EXPORTER") != "none"}
    for name in ("", "TRACES_", "METRICS_", "LOGS_"):
        protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{name}PROTOCOL", "http/protobuf")
        if protocol != "http/protobuf":
            log.warning(
                "telemetry uses http/protobuf, the only supported protocol; ignored %s=%s",
                f"OTEL_EXPORTER_OTLP_{name}PROTOCOL", protocol,
            )  # fmt: skip
    resource = Resource.create({"service.version": VERSION})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):  # no OTEL_* variable sets a name
        resource = resource.merge(Resource({"service.name": "shoal"}))
    ids = _Ids()
    traces = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    if "TRACES" in sent:
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if "METRICS" in sent else []
    figures = MeterProvider(readers, resource, shutdown_on_exit=False)
    logs = LoggerProvider(resource, shutdown_on_exit=False)
    if "LOGS" in sent:
        logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    kinds = {name: provider.kind or name for name, provider in providers.items()}
    journalist = Journalist(traces, ids, figures, redact, kinds, with_content=with_content)
    hub.tap(journalist.record)
    handler = _LogHandler(logs, redact)
    logging.getLogger().addHandler(handler)
    sdk, trouble = logging.getLogger("opentelemetry"), _Trouble()
    sdk.handlers, sdk.propagate = [trouble], False  # permanent, because the SDK's threads may outlive this block
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        loop = asyncio.get_running_loop()
        ended = {exporter: asyncio.Event() for exporter in ("trace_exporter", "metric_exporter", "_log_exporter")}

        def end(exporter: str) -> None:
            is_over = ended.get(exporter.rpartition(".")[2])
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                if is_over is not None:
                    loop.call_soon_threadsafe(is_over.set)

        def shut_down(provider: TracerProvider | MeterProvider | LoggerProvider, exporter: str) -> None:
            provider.shutdown()
            end(exporter)

        trouble.gave_up = end
        # Daemon threads do not delay the exit of the process.
        for provider, exporter in zip((traces, figures, logs), ended, strict=True):
            threading.Thread(target=shut_down, args=(provider, exporter), daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                for is_over in ended.values():
                    await is_over.wait()


def _id(length: int, *names: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:length])
