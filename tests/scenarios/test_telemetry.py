"""OpenTelemetry data as a collector receives it, decoded with the official protobuf definitions."""

import gzip
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from shoal.features.telemetry.settings import TelemetrySettings
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario

SECRET = "sk-q7Vb2mX0rT9cLw4JzK8n"
KINDS = {"traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest, "logs": ExportLogsServiceRequest}


class Collector:
    """Accepts the data of an exporter over HTTP as protobuf."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.append((self.path.rpartition("/")[2], body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def text(self) -> str:
        return "".join(body.decode("utf-8", "replace") for _, body in self.bodies)

    def of(self, signal: str) -> list[object]:
        return [KINDS[signal].FromString(body) for name, body in self.bodies if name == signal]

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.of("traces")
            for resource in request.resource_spans  # pyrefly: ignore[missing-attribute]
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.address)
    yield found
    found.close()


def attributes(span: Span) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes}


def call(name: str, **arguments: object) -> Reply:
    return Reply(calls=(Call(name, json.dumps(arguments)),))


async def test_a_turn_is_a_trace_of_its_calls(collector: Collector, tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(call("time"), "it is late")) as world:
        await world.ada.says("what time is it?")
        await world.ada.sees("it is late")
    [turn] = [span for span in collector.spans() if span.name.startswith("invoke_agent")]
    chats = [span for span in collector.spans() if span.name.startswith("chat ")]
    [tool] = [span for span in collector.spans() if span.name == "execute_tool time"]
    assert turn.name == "invoke_agent main"
    assert not turn.parent_span_id
    assert {span.parent_span_id for span in (*chats, tool)} == {turn.span_id}
    assert {span.trace_id for span in collector.spans()} == {turn.trace_id}
    assert len(chats) == 2
    assert chats[0].end_time_unix_nano <= tool.end_time_unix_nano <= chats[1].end_time_unix_nano
    said = attributes(turn)
    assert said["gen_ai.operation.name"] == "invoke_agent"
    assert said["gen_ai.conversation.id"] == world.ada.thread
    assert said["shoal.outcome"] == "done"
    said = attributes(chats[0])
    assert said["gen_ai.operation.name"] == "chat"
    assert int(str(said["gen_ai.usage.output_tokens"])) > 0
    assert attributes(tool)["gen_ai.tool.name"] == "time"
    names = {metric.name for request in collector.of("metrics") for resource in request.resource_metrics  # pyrefly: ignore[missing-attribute]
             for scope in resource.scope_metrics for metric in scope.metrics}  # fmt: skip
    assert names == {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}


async def test_a_subagents_turn_is_linked_to_its_calling_span(collector: Collector, tmp_path: Path) -> None:
    model = FakeModel(call("subagent", task="look"), "found it", "it was found")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("have it looked for")
        await world.ada.sees("it was found")
    turns = [span for span in collector.spans() if span.name.startswith("invoke_agent")]
    [asked] = [span for span in collector.spans() if span.name == "execute_tool subagent"]
    [child] = [span for span in turns if span.links]
    assert child.links[0].span_id == asked.span_id
    assert child.links[0].trace_id == asked.trace_id != child.trace_id


async def test_content_is_exported_only_if_configured_and_without_secrets(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAVE_KEY", SECRET)
    settings: dict[str, dict[str, object]] = {"tools": {"brave_api_key": {"env": "BRAVE_KEY"}}}
    for content in (False, True):
        more = {**settings, "telemetry": {"content": content}}
        async with scenario(tmp_path / str(content), FakeModel(f"the key is {SECRET}"), settings=more) as world:
            await world.ada.says("tell me of the tide")
            await world.ada.sees("the key is")
            logging.getLogger("shoal.test").warning("a look at %s", SECRET, extra={"key": SECRET})
        assert ("tell me of the tide" in collector.text()) is content
        asked = [attributes(span).get("gen_ai.input.messages", "") for span in collector.spans()]
        # in the spans of the model call and of the turn
        assert [content] * 2 == ["tell me of the tide" in str(text) for text in asked[-2:]]
        assert SECRET not in collector.text()
    assert "a look at" in collector.text()


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
async def test_a_signal_without_an_exporter_is_not_sent(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: str
) -> None:
    monkeypatch.setenv(f"OTEL_{signal.upper()}_EXPORTER", "none")
    async with scenario(tmp_path, FakeModel("here")) as world:
        await world.ada.says("are you there?")
        await world.ada.sees("here")
        logging.getLogger("shoal.test").warning("a look around")
    assert {name for name, _ in collector.bodies} == set(KINDS) - {signal}


async def test_an_unreachable_collector_blocks_nothing_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with scenario(tmp_path, FakeModel("here")) as world:
        await world.ada.says("are you there?")
        await world.ada.sees("here")
    told = [record for record in caplog.records if record.name.startswith(("shoal.terminal", "opentelemetry"))]
    assert len(told) == 1, "a refused connection is not tried again, which the exporter would say"
    assert "sending telemetry to http://127.0.0.1:1 failed: Connection refused" in told[0].getMessage()


async def test_the_variables_name_the_service_and_other_protocols_are_reported(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    for attributes_set, name in (("", "shoal"), ("service.name=harbour,deployment=test", "harbour")):
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", attributes_set)
        collector.bodies.clear()
        async with scenario(tmp_path / name, FakeModel("here")) as world:
            await world.ada.says("are you there?")
            await world.ada.sees("here")
        for request in collector.of("traces"):
            (resource,) = request.resource_spans  # pyrefly: ignore[missing-attribute]
            found = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert found["service.name"] == name
    assert "http/protobuf, the only supported protocol; ignored OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in caplog.text


@pytest.mark.parametrize(
    ("enabled", "environ", "is_on"),
    [
        ("auto", {}, False),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ("auto", {"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}, False),
        ("on", {}, True),
        ("on", {"OTEL_SDK_DISABLED": "True"}, False),
        ("off", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
    ],
)
def test_the_setting_and_the_variables_switch_telemetry_on(enabled: str, environ: dict[str, str], is_on: bool) -> None:
    assert TelemetrySettings(enabled=enabled).is_on(environ) is is_on  # pyrefly: ignore[bad-argument-type]
