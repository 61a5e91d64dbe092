"""The HTTP client against servers with every legal framing, and against some that violate the protocol."""

import asyncio
import contextlib
import gc
import gzip
import itertools
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.connections import Serve, listening

from shoal.kernel.clock import SystemClock
from shoal.kernel.messages import FailureKind, ModelDone, ModelEvent, ModelFailed, ModelRequest, UserMessage
from shoal.kernel.secret import Secret
from shoal.kernel.settings import ProviderSettings
from shoal.models import http_provider
from shoal.models.catalog import build_provider
from shoal.net import http
from shoal.net.connections import default_tls
from shoal.net.http import ConnectionSilent, HttpClient, HttpConnection, HttpFailed, make_client, proxy_for, read_whole

IDLE_SECONDS = 20.0


async def take(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0)
    return head + await reader.readexactly(length)


def saying(*answers: Sequence[bytes], then_close: bool = False) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for pieces in answers:
            await take(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        if not then_close:
            await reader.read()

    return serve


def client(port: int, idle_seconds: float = IDLE_SECONDS, scheme: str = "http") -> HttpClient:
    return make_client(f"{scheme}://127.0.0.1:{port}/v1", "mine", idle_seconds, {})


async def fetch(one: HttpClient, body: bytes = b"{}") -> tuple[int, bytes]:
    response = await one.request("POST", "/x", [(b"a", b"b")], body)
    try:
        return response.status, await read_whole(response)
    finally:
        await response.close()


OK = b"HTTP/1.1 200 OK\r\n"
BODIES: dict[str, tuple[bytes, ...]] = {
    "sized": (OK + b"content-length: 5\r\n\r\nhello",),
    "chunked": (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",),
    "chunk extensions and trailers": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
    ),
    "after a hundred": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK,
        b"content-length: 5\r\n\r\nhello",
    ),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello",),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("cut", [0, 1, 7])
async def test_every_legal_body_is_read_however_it_is_split(name: str, cut: int) -> None:
    whole = b"".join(BODIES[name])
    pieces = [whole[at : at + cut] for at in range(0, len(whole), cut)] if cut else [whole]
    async with listening(saying(pieces, pieces)) as port:
        one = client(port)
        assert await fetch(one) == (200, b"hello")
        assert await fetch(one) == (200, b"hello")
        await one.close()


async def test_a_body_may_end_with_the_connection() -> None:
    async with listening(saying([OK + b"\r\n", b"hello"], then_close=True)) as port:
        one = client(port)
        assert await fetch(one) == (200, b"hello")
        await one.close()


async def test_a_large_body_is_transferred_both_ways() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = (await take(reader)).partition(b"\r\n\r\n")[2]
        writer.write(OK + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with listening(echo) as port:
        one = client(port)
        sent = bytes(range(256)) * 20_000
        assert await fetch(one, sent) == (200, sent)
        await one.close()


async def test_a_slow_consumer_makes_the_server_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BUFFER_BYTES_MAX", 1000)
    async with listening(saying([OK + b"content-length: 400000\r\n\r\n", *[b"x" * 40_000] * 10])) as port:
        one = client(port)
        assert await fetch(one) == (200, b"x" * 400_000)
        await one.close()


async def test_the_request_is_valid_http() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await take(reader))
        writer.write(OK + b"content-length: 0\r\n\r\n")

    async with listening(serve) as port:
        one = client(port)
        await fetch(one)
        await one.close()
    assert seen == [
        b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\na: b\r\n" % port
        + b"content-length: 2\r\n\r\n{}",
    ]


MALFORMED = {
    "not http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a length beyond all": OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\nhello",
    "bad length": OK + b"content-length: five\r\n\r\nhello",
    "bad chunk size": OK + b"transfer-encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n",
    "negative chunk size": OK + b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a header without a colon": OK + b"content-length 5\r\n\r\nhello",
    "an unknown transfer coding": OK + b"transfer-encoding: rot13\r\n\r\nuryyb",
    "endless headers": OK + b"x: " + b"y" * 70_000,
    "endless chunk size": OK + b"transfer-encoding: chunked\r\n\r\n" + b"0" * 70_000,
    "early end in the head": b"HTTP/1.1 200 OK\r\nconte",
    "early end in a sized body": OK + b"content-length: 9\r\n\r\nhello",
    "early end in a chunk": OK + b"transfer-encoding: chunked\r\n\r\n9\r\nhello",
    "early end before the last chunk": OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_invalid_or_incomplete_http_drops_the_connection(name: str) -> None:
    async with listening(saying([MALFORMED[name]], then_close=True)) as port:
        one = client(port)
        with pytest.raises(HttpFailed) as failed:
            await fetch(one)
        assert failed.value.kind == "dropped"
        await one.close()


async def test_any_number_of_informational_responses_is_skipped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3000
    async with listening(saying([early + OK + b"content-length: 2\r\n\r\nhi"])) as port:
        one = client(port)
        assert await fetch(one) == (200, b"hi")
        await one.close()


@pytest.mark.parametrize("first", [b"", OK, OK + b"content-length: 9\r\n\r\nhel"])
async def test_a_silent_server_is_a_timeout(first: bytes) -> None:
    async with listening(saying([first])) as port:
        one = client(port, 0.05)
        with pytest.raises(HttpFailed) as failed:
            await fetch(one)
        assert failed.value.kind == "timeout"
        await one.close()


def dripping(head: bytes, body: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(head)
        with contextlib.suppress(OSError):
            for byte in itertools.cycle(body):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)

    return serve


@pytest.mark.parametrize(
    ("head", "body"), [(b"", b"HTTP/1.1 200 OK\r\nX: y"), (OK + b"transfer-encoding: chunked\r\n\r\n", b"0")]
)
async def test_a_trickling_head_or_frame_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, head: bytes, body: bytes
) -> None:
    monkeypatch.setattr(http, "HEAD_BYTES_MAX", 2**40)
    async with listening(dripping(head, body)) as port:
        one = client(port, 0.1)
        with pytest.raises(HttpFailed) as failed:
            await fetch(one)
        assert failed.value.kind == "timeout"
        await one.close()


async def test_a_trickling_refusal_is_read_as_far_as_it_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.net.http.BODY_SECONDS_MAX", 0.1)
    async with listening(dripping(OK + b"content-length: 100000000\r\n\r\n", b"x")) as port:
        one = client(port)
        response = await one.request("GET", "/", [])
        assert set(await read_whole(response)) == set(b"x")
        await response.close()
        await one.close()


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "anthropic", "gemini"])
async def test_a_trickling_event_is_a_timeout(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("shoal.models.http_provider.EVENT_SECONDS_MAX", 0.1)
    monkeypatch.setattr("shoal.models.http_provider.EVENT_BYTES_PER_SECOND", 1e12)
    head = OK + b"content-type: text/event-stream\r\n\r\n"
    async with listening(dripping(head, b'data: {"type":"ping","choices":[]}')) as port:
        assert (await failure(port, kind)).kind == "timeout"


async def failure(port: int, kind: str = "openai") -> ModelFailed:
    (failed,) = await events(port, kind)
    assert isinstance(failed, ModelFailed)
    return failed


async def events(port: int, kind: str) -> list[ModelEvent]:
    settings = ProviderSettings(
        kind=kind,
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=Secret("value", "sk-0123456789"),
        timeout_seconds=IDLE_SECONDS,
    )
    provider = build_provider("mine", settings, SystemClock(), {})
    found = [one async for one in provider.stream(ModelRequest("m", "", (UserMessage("hi"),), ()))]
    await provider.close()
    return found


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize(
    "kept_open", [b": working\n\n", b'data: {"type":"ping","choices":[{"delta":{"content":""}}],"candidates":[]}\n\n']
)
async def test_a_connection_with_only_keepalives_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, kind: str, kept_open: bytes
) -> None:
    monkeypatch.setattr("shoal.models.http_provider.SILENCES_MAX", 0.1 / IDLE_SECONDS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK + b"content-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(kept_open)
            await writer.drain()
            await asyncio.sleep(0)

    async with listening(serve) as port:
        failed = await failure(port, kind)
    assert (failed.kind, "without sending anything" in failed.message) == ("timeout", True)


def _json(body: bytes) -> bytes:
    return OK + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


NO_ANSWERS: dict[str, tuple[bytes, FailureKind]] = {
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "dropped"),
    "a web page": (OK + b"content-type: text/html\r\ncontent-length: 9\r\n\r\n<p>hi</p>", "dropped"),
    "sent elsewhere for now": (b"HTTP/1.1 302 Found\r\nlocation: /v1/x\r\ncontent-length: 0\r\n\r\n", "unreachable"),
    "moved for good": (b"HTTP/1.1 308 Moved\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", "invalid_request"),
    "an error in its end": (_json(b'{"id":"%b","error":{"code":503,"message":"busy"}}' % (b"x" * 300)), "overloaded"),
    "a list of one error": (_json(b'[{"error":{"code":503,"status":"UNAVAILABLE","message":"?"}}]'), "overloaded"),
    "an error by its message": (_json(b'{"message":"no","code":401}'), "auth"),
    "an error by its object": (_json(b'{"object":"error","message":"no","code":400}'), "invalid_request"),
    "an error by its detail": (_json(b'{"detail":"Internal error"}'), "server_error"),
    "a word": (_json(b'"starting"'), "dropped"),
    "nothing": (_json(b"{}"), "dropped"),
    "null for an error": (_json(b'{"error":null,"choices":[]}'), "invalid_request"),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
async def test_a_missing_answer_has_the_failure_kind_of_its_cause(name: str) -> None:
    said, kind = NO_ANSWERS[name]
    async with listening(saying(*[[said]] * 4)) as port:
        assert (await failure(port)).kind == kind


COMPRESSED = gzip.compress(b'data: {"error":{"message":"Overloaded"}}\n\n' + b": kept open\n\n" * 1000)


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "anthropic", "gemini"])
async def test_an_unrequested_compressed_answer_is_read(kind: str) -> None:
    head = b"\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(COMPRESSED)
    answers = [b"HTTP/1.1 " + status + head + COMPRESSED for status in (b"200 OK", b"429 Slow")]
    found: list[ModelFailed] = []
    for answer in answers:
        async with listening(saying([answer])) as port:
            found.append(await failure(port, kind))
    assert [one.kind for one in found] == ["overloaded", "overloaded"]
    assert all("Overloaded" in one.message for one in found)


OTHER_ERRORS: dict[str, FailureKind] = {
    '{"error":{"type":"authentication_error","message":"no"}}': "auth",
    '{"error":"busy"}': "overloaded",
    '{"object":"error","type":"BadRequestError","message":"no","code":400}': "invalid_request",
    '{"message":"busy","code":503}': "overloaded",
    '{"detail":"Not authenticated","code":401}': "server_error",
}
"""Stream errors in another protocol's form, as proxies in front of a provider send them."""


@pytest.mark.parametrize("kind", ["openai", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("said", OTHER_ERRORS)
async def test_an_error_of_another_protocol_has_the_kind_of_its_cause(kind: str, said: str) -> None:
    stream = OK + b"content-type: text/event-stream\r\n\r\ndata: " + said.encode() + b"\n\n"
    async with listening(saying([stream], then_close=True)) as port:
        assert (await failure(port, kind)).kind == OTHER_ERRORS[said]


WHOLE = {
    "openai": '{"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}',
    "openai-responses": '{"type":"response.completed","response":{"status":"completed"}}',
    "anthropic": '{"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\ndata: {"type":"message_stop"}',
    "gemini": '{"candidates":[{"content":{"parts":[{"text":"Hi"}]},"finishReason":"STOP"}]}',
}


@pytest.mark.parametrize("kind", WHOLE)
async def test_data_after_the_last_event_is_ignored(kind: str) -> None:
    after = b"\n\ndata: [DONE]\n\n" if kind == "gemini" else b"\n\ndata: [DONE]\n\ndata: half\n\n"
    stream = OK + b"content-type: text/event-stream\r\n\r\ndata: " + WHOLE[kind].encode() + after
    async with listening(saying([stream], then_close=True)) as port:
        assert isinstance((await events(port, kind))[-1], ModelDone)


@pytest.mark.parametrize("limit", ["EVENT_BYTES_MAX", "ANSWER_CHARS_MAX"])
@pytest.mark.parametrize("kind", ["openai", "gemini"])
async def test_an_endless_answer_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str, limit: str) -> None:
    monkeypatch.setattr(http_provider, limit, 1000)
    said = b"data: " + WHOLE[kind].replace("stop", "").replace("STOP", "").encode() + b"\n\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK + b"content-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(said * 100)
            await writer.drain()

    async with listening(serve) as port:
        failed = (await events(port, kind))[-1]
    assert isinstance(failed, ModelFailed)
    assert failed.kind == "too_large"


class Timers:
    """A replacement for the event loop's clock that the test advances by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, then: Callable[[], None]) -> asyncio.TimerHandle:
        self.due.append((self.now + seconds, then))
        return asyncio.get_running_loop().call_later(3600, then)

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [then for at, then in self.due if at <= self.now]
        self.due = [(at, then) for at, then in self.due if at > self.now]
        for then in due:
            then()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class NoTransport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


async def test_an_answer_may_take_as_long_as_it_makes_progress() -> None:
    timers = Timers()
    one = HttpConnection(timers)  # pyrefly: ignore[bad-argument-type]
    one.connection_made(NoTransport())
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(one.exchange(b"GET / HTTP/1.1\r\n\r\n", b"", 10.0))
        await timers.advance(0)
        one.data_received(OK + b"content-length: 100\r\n\r\n")
        await asked
        for _ in range(9):
            reading = group.create_task(one.read())
            await timers.advance(0)
            await timers.advance(7)
            assert not reading.done()
            one.data_received(b"x")
            assert await reading == b"x"
    silent = asyncio.gather(one.read(), return_exceptions=True)
    await timers.advance(0)
    await timers.advance(9)
    assert not silent.done()
    await timers.advance(2)
    assert isinstance((await silent)[0], ConnectionSilent)
    one.close()


async def test_a_closed_kept_connection_is_replaced() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await take(reader)
        writer.write(OK + b"content-length: 5\r\n\r\nhello")
        if len(connections) == 1:
            # The server reads the second request and closes the connection without a response.
            await take(reader)
            return
        await reader.read()

    async with listening(serve) as port:
        one = client(port)
        assert await fetch(one) == (200, b"hello")
        assert await fetch(one) == (200, b"hello")
        assert len(connections) == 2
        await one.close()


async def test_an_unsent_request_is_retried_on_the_same_connection() -> None:
    taken: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            taken.append(await take(reader))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with listening(serve) as port:
        one = client(port)
        now = asyncio.get_running_loop().time()
        with pytest.raises(HttpFailed, match="Sending to") as failed:
            await one.request("POST", "/x", [], b"{}", now - http.ASKED_SECONDS - 0.1)
        assert (failed.value.kind, failed.value.retry_after_seconds) == ("dropped", 0.0)
        response = await one.request("POST", "/x", [], b"{}", now)
        assert await read_whole(response) == b"ok"
        await response.close()
        await one.close()
    assert (len(taken), connections) == (1, 1)


@pytest.mark.parametrize("header", [b"connection: close\r\n", b""])
async def test_connections_are_kept_when_both_sides_agree(header: bytes) -> None:
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        while True:
            await take(reader)
            writer.write(OK + header + b"content-length: 2\r\n\r\nok")

    async with listening(serve) as port:
        one = client(port)
        for _ in range(3):
            await fetch(one)
        await one.close()
    assert count == (3 if header else 1)


async def test_a_connection_idle_for_long_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_SECONDS", -1.0)
    # The server responds once per connection, so a second request on a connection would hang.
    async with listening(saying([BODIES["sized"][0]])) as port:
        one = client(port)
        for _ in range(3):
            assert await fetch(one) == (200, b"hello")
        await one.close()


async def test_a_response_closed_early_drops_only_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    long = OK + b"content-length: 100\r\n\r\nbeginning"
    async with listening(saying([long])) as port:
        one = client(port)
        for _ in range(3):
            response = await one.request("GET", "/x", [])
            async for _ in response.chunks():
                break
            await response.close()
            await response.close()
        await one.close()


STEPS = 40
"""Each call is cancelled, or its client closed, after a different number of loop iterations below this."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("ending", ["cancel", "close"])
async def test_a_call_leaves_no_connection_open(host: str, ending: str) -> None:
    open_connections, closed = set[asyncio.StreamWriter](), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            await saying([OK + b"content-length: 2\r\n\r\n", b"ok"])(reader, writer)
        finally:
            open_connections.discard(writer)
            closed.set()

    async with listening(serve) as port:
        for steps in range(STEPS):
            one = make_client(f"http://{host}:{port}", "mine", IDLE_SECONDS, {})
            call = asyncio.ensure_future(fetch(one))
            for _ in range(steps):
                await asyncio.sleep(0)
            if ending == "cancel":
                call.cancel()
                await asyncio.wait({call})
            await one.close()
            if ending == "close":
                assert await call == (200, b"ok")
            del call, one
            gc.collect()  # a connection that is still open fails the test with a ResourceWarning
        while open_connections:
            await closed.wait()
            closed.clear()


async def test_failed_calls_release_their_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    async with listening(saying([b"nonsense\r\n\r\n"], then_close=True)) as port:
        one = client(port)
        for _ in range(3):
            with pytest.raises(HttpFailed):
                await fetch(one)
        await one.close()


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/v1", "http://no-such-host.invalid", "nonsense", "http://h:port/", "ftp://h", "http://", ""],
)
async def test_an_unreachable_server_is_reported(url: str) -> None:
    one = make_client(url, "mine", IDLE_SECONDS, {})
    with pytest.raises(HttpFailed, match="mine") as failed:
        await one.request("GET", "/x", [])
    assert failed.value.kind == "unreachable"


async def test_credentials_in_a_url_are_not_shown() -> None:
    one = make_client("http://me:secret@127.0.0.1:9/v1", "mine", IDLE_SECONDS, {})
    with pytest.raises(HttpFailed) as failed:
        await one.request("GET", "/x", [])
    assert "secret" not in str(failed.value)


def certificate(folder: Path) -> Path:
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + made.public_bytes(encoding))
    return path


async def test_tls_accepts_only_certificates_that_the_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="makes the certificate")
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    default_tls.cache_clear()
    async with listening(saying([BODIES["chunked"][0]]), context) as port:
        with pytest.raises(HttpFailed) as failed:
            await fetch(client(port, scheme="https"))
        assert failed.value.kind == "unreachable"
        assert "certificate" in str(failed.value)
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        default_tls.cache_clear()
        one = client(port, scheme="https")
        assert await fetch(one) == (200, b"hello")
        await one.close()
    default_tls.cache_clear()


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://api.example.com", {}, None),
        ("https://api.example.com", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example.com", {"https_proxy": "p:1"}, "http://p:1"),
        ("http://api.example.com", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http://api.example.com", {"ALL_PROXY": "socks5://p:1"}, "socks5://p:1"),
        ("https://api.example.com", {"HTTPS_PROXY": "p", "NO_PROXY": "example.com"}, None),
        ("https://api.example.com", {"HTTPS_PROXY": "p:1", "NO_PROXY": "ample.com,other"}, "http://p:1"),
        ("http://127.0.0.1:11434", {"HTTP_PROXY": "p:1", "NO_PROXY": "localhost, 127.0.0.1"}, None),
        ("http://h", {"HTTP_PROXY": "p:1", "NO_PROXY": "*"}, None),
    ],
)
def test_the_environment_names_the_proxy(url: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_for(url, environ) == proxy


async def test_a_call_goes_through_the_proxy_and_fails_with_it() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append((await take(reader)).split(b"\r\n")[0])
            writer.write(OK + b"content-length: 5\r\n\r\nhello")

    async with listening(serve) as port:
        one = make_client("http://models.test/v1", "mine", IDLE_SECONDS, {"HTTP_PROXY": f"http://127.0.0.1:{port}"})
        assert await fetch(one) == (200, b"hello")
        await one.close()
    assert seen == [b"POST http://models.test/v1/x HTTP/1.1"]
    gone = make_client("http://models.test/v1", "mine", IDLE_SECONDS, {"HTTP_PROXY": "http://127.0.0.1:9"})
    with pytest.raises(HttpFailed) as failed:
        await fetch(gone)
    assert failed.value.kind == "unreachable"
    await gone.close()


async def test_a_broken_proxied_connection_is_dropped() -> None:
    async with listening(saying([OK + b"content-length: 9\r\n\r\nhel"], then_close=True)) as port:
        one = make_client("http://models.test", "mine", IDLE_SECONDS, {"HTTP_PROXY": f"http://127.0.0.1:{port}"})
        with pytest.raises(HttpFailed) as failed:
            await fetch(one)
        assert failed.value.kind == "dropped"
        await one.close()


@pytest.mark.parametrize("proxy", ["socks4://127.0.0.1:9", "ftp://p", "http://[::1", "http://p:99999", "nothing"])
async def test_an_unusable_proxy_is_an_ordinary_failure(proxy: str) -> None:
    one = make_client("https://models.test/v1", "mine", IDLE_SECONDS, {"ALL_PROXY": proxy})
    with pytest.raises(HttpFailed) as failed:
        await fetch(one)
    assert failed.value.kind == "unreachable"
    await one.close()
