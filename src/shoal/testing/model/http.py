"""A minimal HTTP/1.1 server for a scripted model. It supports keep-alive, paced chunks and broken connections."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from shoal.testing.model.script import Gate, Seen

BODY_BYTES_MAX = 256 * 1024 * 1024

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 413: "Content Too Large"}


class Incoming(msgspec.Struct):
    """A request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Drop(msgspec.Struct, frozen=True):
    """A step that closes the connection."""


Send: TypeAlias = bytes | float | Gate | Drop
"""A step of a response: bytes to write, seconds to wait, a gate to pass, or the closing of the connection."""


class Plan(msgspec.Struct):
    """The steps of the response to one request. If the client disconnects before the last step, `seen.cancelled`
    is set.
    """

    sends: Sequence[Send]
    seen: Seen | None = None


Respond: TypeAlias = Callable[[Incoming], Plan]
ACCEPTING_STEPS = 3
"""Number of event loop iterations after which the protocol knows of an accepted connection."""


async def stop_accepting(listening: Iterable[socket.socket]) -> None:
    """Stop accepting connections, and wait for the connections that are being accepted.

    Otherwise, asyncio never closes a connection that arrives while the server closes.
    """
    loop = asyncio.get_running_loop()
    for connection in listening:
        loop.remove_reader(connection)
    for _ in range(ACCEPTING_STEPS):
        await asyncio.sleep(0)


def head(status: int, content_type: str, headers: Sequence[tuple[str, str]] = (), length: int | None = None) -> bytes:
    """Return the status line and headers. If `length` is None, the body must be chunked."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}", f"content-type: {content_type}"]
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    lines.extend(f"{name}: {value}" for name, value in headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def document(status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    return head(status, "application/json", headers, len(body)) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """A client's connection. It processes requests one after another."""

    def __init__(self, respond: Respond, open_connections: set["Connection"]) -> None:
        self._respond = respond
        self._all = open_connections
        self._buffer = bytearray()
        self._sends: deque[Send] = deque()
        self._seen: Seen | None = None
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._all.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._busy and self._seen is not None:
            self._seen.cancelled.set()
        self._sends.clear()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def _advance(self) -> None:
        while not self._busy and self._transport is not None:
            incoming = self._take()
            if incoming is None:
                return
            plan = self._respond(incoming)
            self._sends.extend(plan.sends)
            self._seen = plan.seen
            self._busy = True
            self._pump()

    def _take(self) -> Incoming | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if length > BODY_BYTES_MAX:
            self.close()
            return None
        if len(self._buffer) < end + 4 + length:
            return None
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        method, path, _ = lines[0].split(" ", 2)
        return Incoming(method, path, headers, body)

    def _pump(self) -> None:
        while self._sends and self._transport is not None:
            send = self._sends.popleft()
            if isinstance(send, bytes):
                self._transport.write(send)
            elif isinstance(send, float):
                self._timer = asyncio.get_running_loop().call_later(send, self._go_on)
                return
            elif isinstance(send, Gate):
                send.when_open(self._go_on)
                return
            else:
                self._busy = False
                self._transport.close()
                return
        self._busy = False

    def _go_on(self) -> None:
        self._pump()
        self._advance()
