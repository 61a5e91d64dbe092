"""Remote MCP servers over streamable HTTP: their tools appear and disappear with the connection, and each request
has the token.
"""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path

import pytest
from tests.connections import listening
from tests.contracts.mcp_stand import configured, connected

from shoal.features.mcp.kinds import TRAITS
from shoal.features.mcp.pins import Pins
from shoal.features.mcp.transport import MESSAGE_BYTES_MAX, McpServer
from shoal.kernel.secret import Secret
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database

pytest.importorskip("mcp", reason="the extra mcp is not installed")
PROGRAM = Path(__file__).with_name("mcp_http_server.py")


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """Yield a socket that is bound to a free port. It refuses connections until a server listens on it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


def port_of(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


@asynccontextmanager
async def serving(bound: socket.socket) -> AsyncGenerator[None]:
    command = (sys.executable, str(PROGRAM), str(bound.fileno()), "the-token")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, pass_fds=[bound.fileno()])
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        bound.close()
        process.kill()
        await process.wait()


def scales(port: int, token: str = "the-token") -> McpServer:
    headers = {"Authorization": Secret("value", f"Bearer {token}")}
    return configured("scales", url=f"http://127.0.0.1:{port}/mcp", headers=headers, timeout_seconds=10)


@pytest.mark.slow
async def test_tools_appear_and_disappear_with_their_server(tmp_path: Path, bound: socket.socket) -> None:
    async with connected(tmp_path, scales(port_of(bound))) as stand:
        await stand.becomes("down")
        async with serving(bound):
            await stand.clock.advance_to_next()
            assert (await stand.becomes("up")).tools == ("mcp_scales_weigh", "mcp_scales_weighed")
            output = await stand.call("mcp_scales_weigh", '{"name": "pear", "grams": 7}')
            assert "pear: 7 g" in output.text
            assert output.tainted_by == "mcp:scales"
        await stand.clock.advance_to_next()
        await stand.becomes("lost")
        await stand.becomes("down")
        assert stand.registry.names() == ()


@pytest.mark.slow
async def test_only_tools_that_the_owner_confirmed_are_offered(tmp_path: Path, bound: socket.socket) -> None:
    server = scales(port_of(bound))
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db"), synchronous="OFF"), ManualClock())
    pins = Pins(store.settings, store.audit, ManualClock(), {"scales": server.settings})
    async with serving(bound), connected(tmp_path, server, pins=pins) as stand:
        assert (await stand.becomes("up")).unconfirmed == 2
        (asked,) = stand.asked
        assert asked.startswith("The MCP server scales offers 2 tools: 1 read, 1 write (weigh).")
        (known,) = await pins.listed()
        await pins.confirm("scales", known.digest, {}, "web:owner")
        assert (await stand.becomes("up")).unconfirmed == 0
        traits = stand.registry.traits
        assert traits.of("mcp_scales_weighed") == TRAITS["read"]
        assert traits.of("mcp_scales_weigh") == TRAITS["write"]
        assert "a pear" in (await stand.call("mcp_scales_weighed")).text
    await store.close()


@pytest.mark.slow
async def test_a_server_that_refuses_the_token_is_down_and_the_token_is_not_shown(
    tmp_path: Path, bound: socket.socket
) -> None:
    async with serving(bound), connected(tmp_path, scales(port_of(bound), "another-token")) as stand:
        state = await stand.becomes("down")
    assert "another-token" not in state.why


Body = Callable[[bytes], Iterator[bytes]]
"""Yields the pieces of an HTTP response, headers included, given a valid result."""


@asynccontextmanager
async def answering(body: Body) -> AsyncGenerator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = head.partition("content-length: ")[2].partition("\r")[0]
            asked = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
            info = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "serverInfo": {"name": "a", "version": "1"},
            }
            results: dict[str, object] = {
                "initialize": info,
                "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
                "tools/call": {"content": [{"type": "text", "text": "x" * 2_000_000}]},
            }
            method, known = str(asked.get("method")), {"jsonrpc": "2.0", "id": asked.get("id")}
            if "id" not in asked:
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            elif method == "tools/call":
                for piece in body(json.dumps({**known, "result": results[method]}).encode()):
                    writer.write(piece)
                    await writer.drain()
                break
            else:
                error = {"error": {"code": -32601, "message": "unknown"}}
                message = {"result": results[method]} if method in results else error
                writer.write(whole(json.dumps({**known, **message}).encode()))
            await writer.drain()

    async with listening(serve) as port:
        yield port


def whole(content: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


async def test_a_large_event_is_accepted(tmp_path: Path) -> None:
    def body(result: bytes) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + result + b"\n\n"

    async with answering(body) as port, connected(tmp_path, scales(port)) as stand:
        await stand.becomes("up")
        output = await stand.call("mcp_scales_t")
    assert not output.is_error
    assert "xxx" in output.text


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_endless_answer_is_read_up_to_the_message_limit(tmp_path: Path, kind: str) -> None:
    sent = 0

    def body(result: bytes) -> Iterator[bytes]:
        nonlocal sent
        yield f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\ndata: ".encode()
        for piece in repeat(b"x" * 65_536):
            sent += len(piece)
            yield piece

    async with answering(body) as port, connected(tmp_path, scales(port)) as stand:
        await stand.becomes("up")
        output = await stand.call("mcp_scales_t")
    assert output.is_error
    assert sent < 3 * MESSAGE_BYTES_MAX


async def test_a_compressed_answer_is_not_decompressed(tmp_path: Path) -> None:
    def body(result: bytes) -> Iterator[bytes]:
        yield whole(result, "Content-Encoding: gzip\r\n")

    async with answering(body) as port, connected(tmp_path, scales(port)) as stand:
        await stand.becomes("up")
        output = await stand.call("mcp_scales_t")
    assert output.is_error
    assert "compressed" in output.text
