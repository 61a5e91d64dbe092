"""One HTTP/1.1 connection to a provider: a request, then the response's body as it arrives. Source: RFC 9112.

A model's answer is hundreds of tiny pieces, so what counts is the cost of a piece: it goes from the socket into one
buffer, and all that has arrived is handed on at once.
"""

import asyncio
import re
from typing import Literal, TypeAlias

from shoal.domain.errors import ShoalError

HEAD_BYTES_MAX = 65_536
"""Longest status line and headers of a response."""
COPY_BYTES_MAX = 65_536
"""A body up to this size goes out with its head in one piece; a longer one is not copied for that."""
BUFFER_BYTES_MAX = 1_048_576
"""What is read ahead of whoever consumes the body; then the server has to wait."""

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_Body: TypeAlias = Literal["none", "sized", "chunked", "until close"]


class ConnectionBroken(ShoalError):
    """The connection ended, or what came over it is not HTTP. `reused_and_silent`: it had just gone stale."""

    def __init__(self, message: str, *, reused_and_silent: bool = False) -> None:
        super().__init__(message)
        self.reused_and_silent = reused_and_silent


class ConnectionSilent(ShoalError):
    """Nothing came for too long."""


class Connection(asyncio.Protocol):
    """Used by one call at a time. `idle_since` is the loop's time at which it became free."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.idle_since = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._ended = False
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_seconds = 0.0
        self._waiting_since = 0.0
        self._requests = 0
        self._body: _Body = "none"
        self._left = 0
        self._keep = False

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the way out."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep it for whoever reads."""
        self._buffer += data
        if len(self._buffer) > BUFFER_BYTES_MAX and self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True
        self._wake()

    def eof_received(self) -> None:
        """The server says no more; nothing is left to say to it either."""
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._ended = True
        self._transport = None
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- called by the client ----

    @property
    def usable(self) -> bool:
        """Whether another request can go over it: it is open, and nothing unasked has come."""
        return not self._ended and not self._buffer and self._transport is not None

    @property
    def reusable(self) -> bool:
        """Whether the response was read to its end and both sides keep the connection."""
        return self._keep and self._body == "none" and self.usable

    def close(self) -> None:
        """End it now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def rest(self) -> None:
        """Wait for the next request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.idle_since = self._loop.time()

    async def exchange(self, head: bytes, body: bytes, idle_seconds: float) -> None:
        """Send a request and read the response's head, all of it in that time. Raises ConnectionBroken and
        ConnectionSilent."""
        if self._transport is None:
            raise ConnectionBroken("It was closed.", reused_and_silent=self._requests > 0)
        self._requests += 1
        self._idle_seconds = idle_seconds
        self._waiting_since = self._loop.time()
        self._timer = self._loop.call_later(idle_seconds, self._watch)
        if len(body) < COPY_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        while not self._take_head():
            await self._more()

    async def read(self) -> bytes:
        """What has arrived of the body; empty at its end only. Raises ConnectionBroken and ConnectionSilent.

        Silence is that nothing of the body comes, also where pieces of what stands around it do.
        """
        self._waiting_since = self._loop.time()
        while self._unread():
            data = self._take_body()
            if data:
                return data
            if self._unread():
                await self._more()
        return b""

    def _unread(self) -> bool:
        return self._body != "none"

    async def _more(self) -> None:
        if self._ended:
            if self._body == "until close":
                self._body = "none"
                return
            silent = not self._buffer and self.status == 0 and self._requests > 1
            raise ConnectionBroken("It ended before the answer was complete.", reused_and_silent=silent)
        if self._paused and self._transport is not None:
            self._transport.resume_reading()
            self._paused = False
        if self._loop.time() - self._waiting_since > self._idle_seconds:
            raise ConnectionSilent("Nothing that counts came for too long.")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch(self) -> None:
        """One timer a response, moved on while it speaks, instead of one for every piece."""
        silent_for = self._loop.time() - self._waiting_since
        if silent_for < self._idle_seconds or self._waiter is None or self._waiter.done():
            rest = max(self._idle_seconds - silent_for, 0.001)
            self._timer = self._loop.call_later(rest, self._watch)
        else:
            self._waiter.set_exception(ConnectionSilent("Nothing came for too long."))

    # ---- reading ----

    def _take_head(self) -> bool:
        """Read the head once it is complete; informational ones are passed over."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise ConnectionBroken("Its headers are too long.")
            self.status = 0
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        found = _STATUS.match(lines[0])
        if found is None:
            raise ConnectionBroken("It does not speak HTTP/1.1.")
        self.status = int(found.group(1))
        if self.status < 200:
            return self._take_head()
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.decode("latin-1").partition(":")
            name = name.strip().lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
        self.headers = headers
        self._keep = lines[0].startswith(b"HTTP/1.1") and "close" not in headers.get("connection", "").lower()
        self._start_body(headers)
        return True

    def _start_body(self, headers: dict[str, str]) -> None:
        length = headers.get("content-length", "")
        self._left = 0
        if self.status in (204, 304):
            self._body = "none"
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._body, self._left = "chunked", -1
        elif length:
            if not length.isascii() or not length.isdigit():
                raise ConnectionBroken("Its content-length is no number.")
            self._left = int(length)
            self._body = "sized" if self._left else "none"
        else:
            self._body, self._keep = "until close", False

    def _take_body(self) -> bytes:
        if self._body == "chunked":
            return self._take_chunks()
        if self._body == "sized":
            data = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            self._left -= len(data)
            self._body = "sized" if self._left else "none"
            return data
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _take_chunks(self) -> bytes:
        """What is there of all chunks. `_left` is what the present one lacks, its line end included; -1: its size."""
        buffer, at, out = self._buffer, 0, list[bytes]()
        while True:
            if self._left > 0:
                have = min(self._left, len(buffer) - at)
                data = min(max(self._left - 2, 0), have)
                if data:
                    out.append(bytes(buffer[at : at + data]))
                at += have
                self._left -= have
                if self._left:
                    break
                self._left = -1
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if len(buffer) - at > HEAD_BYTES_MAX:
                    raise ConnectionBroken("A chunk has no size.")
                break
            size = self._size(bytes(buffer[at:end]))
            if size == 0:
                at = self._take_trailers(at, end + 2)
                break
            self._left = size + 2
            at = end + 2
        del buffer[:at]
        return b"".join(out)

    def _size(self, line: bytes) -> int:
        text = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(text):
            raise ConnectionBroken("A chunk has no valid size.")
        return int(text, 16)

    def _take_trailers(self, at: int, after: int) -> int:
        """Where the buffer goes on after the last chunk; `at` itself while its trailers are not complete."""
        if self._buffer.startswith(b"\r\n", after):
            self._body = "none"
            return after + 2
        end = self._buffer.find(b"\r\n\r\n", after)
        if end < 0:
            return at
        self._body = "none"
        return end + 4
