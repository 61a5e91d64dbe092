"""HTTP/1.1 client that reuses connections, sends requests as bytes, and passes bodies on as they arrive.

A model's response arrives in hundreds of tiny pieces, so the cost of each piece matters. The socket writes into one
buffer, and everything in the buffer is passed on together. A streamed response costs a fifth of what it costs with a
general-purpose client. Requests through the environment's proxy use httpx2, which is imported only then.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from shoal.kernel import lazy_re
from shoal.kernel.errors import ShoalError
from shoal.kernel.messages import FailureKind
from shoal.net.connections import default_tls, network_reason

HEAD_BYTES_MAX = 65_536
LENGTH_DIGITS_MAX = 15
COPY_BYTES_MAX = 65_536
"""Maximum size of a body that is sent together with its head, in bytes.

Longer bodies are sent separately, without a copy.
"""
BUFFER_BYTES_MAX = 1_048_576
"""Maximum number of bytes to read ahead. Above this limit, reading pauses until the caller consumes the body."""

BODY_BYTES_MAX = 32 * 1024 * 1024
CONNECTIONS_MAX = 1000
UNPACKED_BYTES_MAX = 65_536
BODY_SECONDS_MAX = 60.0
CONNECT_SECONDS = 10.0
KEEP_ALIVE_MAX = 256
STALE_SECONDS = 0.5
"""If a reused connection breaks within this many seconds of a request, the server is assumed to have closed it before
the request.
"""
ASKED_SECONDS = 1.0
"""Maximum number of seconds between a lease check and sending the request. After that, the request fails and must be
made again.
"""
KEEP_ALIVE_SECONDS = 60.0
HAPPY_EYEBALLS_SECONDS = 0.25
_STATUS = lazy_re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")
_SIZE = lazy_re.compile(rb"[0-9A-Fa-f]{1,15}")
_AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[str | int, ...] | tuple[int, bytes]]
_Body: TypeAlias = Literal["none", "sized", "chunked", "until close"]

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class HttpFailed(ShoalError):
    """Raised if the transport of a request or a response failed. `kind` is unreachable, timeout or dropped."""

    def __init__(self, kind: FailureKind, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after_seconds = retry_after_seconds


class DamagedBody(HttpFailed):
    """Raised if the body cannot be decompressed."""


class HttpResponse(Protocol):
    """A response whose body has not been read. Always close it. Closing it before the end of the body also closes the
    connection.
    """

    status: int
    headers: Mapping[str, str]
    """Headers by lowercase name."""

    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body's bytes as they arrive. Raises HttpFailed."""
        ...

    async def close(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end."""
        ...


class HttpClient(Protocol):
    """A client that sends requests under one base URL. Connects on the first call."""

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", asked_at: float | None = None
    ) -> HttpResponse:
        """Send a request, and return when the response's headers have arrived. Raises HttpFailed.

        Also raises HttpFailed if more than ASKED_SECONDS have passed since `asked_at` (the event loop's clock)
        before the request is sent. The process may have been frozen, and another one may have taken over the work.
        """
        ...

    async def close(self) -> None:
        """Close the idle connections. The connections of unfinished and later calls are closed when the calls end."""
        ...


_PLAIN = ("", "identity")
_PACKED = ("gzip", "x-gzip", "deflate")


def _encoding(response: HttpResponse) -> str:
    return response.headers.get("content-encoding", "").strip().lower()


def readable(response: HttpResponse) -> bool:
    return _encoding(response) in (*_PLAIN, *_PACKED)


async def decoded(response: HttpResponse) -> AsyncGenerator[bytes]:
    """Yield the body's bytes as they arrive, decompressed. Raises HttpFailed."""
    async with contextlib.aclosing(response.chunks()) as chunks:
        if _encoding(response) in _PLAIN:
            async for chunk in chunks:
                yield chunk
            return
        import zlib  # rarely needed

        unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            async for chunk in chunks:
                data = unpack.decompress(chunk, UNPACKED_BYTES_MAX)
                yield data
                while unpack.unconsumed_tail:
                    yield unpack.decompress(unpack.unconsumed_tail, UNPACKED_BYTES_MAX)
            yield unpack.flush()
        except zlib.error as error:
            raise DamagedBody("dropped", "The compressed response is damaged.") from error


async def read_whole(response: HttpResponse) -> bytes:
    """Read the complete body and close the response.

    Reads at most BODY_BYTES_MAX within BODY_SECONDS_MAX. Returns empty bytes if decompression fails. Raises HttpFailed.
    """
    body = bytearray()
    try:
        if not readable(response):
            return b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS_MAX), contextlib.aclosing(decoded(response)) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > BODY_BYTES_MAX:
                        break
        return bytes(body)
    finally:
        await response.close()


def make_client(base_url: str, provider: str, idle_seconds: float, environ: Mapping[str, str]) -> HttpClient:
    """Create the client for a URL, direct or through the environment's proxy.

    `idle_seconds` is the maximum wait for the first or the next bytes of a response.
    """
    proxy = proxy_for(base_url, environ) if BaseUrl(base_url, provider).valid else None
    if proxy is None:
        return DirectClient(base_url, provider, idle_seconds)
    from shoal.net.proxied import ProxiedClient

    return ProxiedClient(base_url, provider, idle_seconds, proxy)


class BaseUrl:
    """The parts of a base URL. `label` describes it in messages, without secrets."""

    def __init__(self, base_url: str, provider: str) -> None:
        try:
            parts = urlsplit(base_url)
            port = parts.port
            self.valid = bool(parts.hostname) and parts.scheme in ("http", "https")
        except ValueError:  # half an IPv6 address, or an invalid port
            parts, port, self.valid = urlsplit(""), None, False
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = port or (443 if self.secure else 80)
        self.netloc = parts.netloc.rpartition("@")[2]
        self.label = f"{provider} at {parts.scheme}://{self.netloc}" if self.valid else f"The address of {provider}"
        self.prefix = parts.path.rstrip("/")


class ConnectionBroken(ShoalError):
    """Raised if the connection ended, or if the server does not speak HTTP.

    `reused_and_silent` is set if a reused connection ended before any response, because it was stale.
    """

    def __init__(self, message: str, *, reused_and_silent: bool = False) -> None:
        super().__init__(message)
        self.reused_and_silent = reused_and_silent


class ConnectionSilent(ShoalError):
    """Raised if the server sent nothing for too long."""


class HttpConnection(asyncio.Protocol):
    """An HTTP/1.1 connection (RFC 9112), used by one call at a time. `idle_since` is the loop time at which it
    became idle.
    """

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
        self._is_head = False
        self._body: _Body = "none"
        self._left = 0
        self._keep = False

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > BUFFER_BYTES_MAX and self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
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
        """Whether the connection is open and no unexpected data has arrived."""
        return not self._ended and not self._buffer and self._transport is not None

    @property
    def reusable(self) -> bool:
        return self._keep and self._body == "none" and self.usable

    def close(self) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def rest(self) -> None:
        self._stop_timer()
        self.idle_since = self._loop.time()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def exchange(self, head: bytes, body: bytes, idle_seconds: float) -> None:
        """Send a request and read the response's head within `idle_seconds`.

        Raises ConnectionBroken and ConnectionSilent.
        """
        if self._transport is None:
            raise ConnectionBroken("The connection was closed.", reused_and_silent=self._requests > 0)
        self._requests += 1
        self._is_head = head.startswith(b"HEAD ")
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
        """Return the next bytes of the body, or empty bytes at its end. Raises ConnectionBroken and ConnectionSilent.

        Chunk framing without content counts as silence.
        """
        self._waiting_since = self._loop.time()
        while not self._is_read():
            if data := self._take_body():
                return data
            if not self._is_read():
                await self._more()
        return b""

    def _is_read(self) -> bool:
        return self._body == "none"

    async def _more(self) -> None:
        if self._ended:
            if self._body == "until close":
                self._body = "none"
                return
            silent = not self._buffer and self.status == 0 and self._requests > 1
            raise ConnectionBroken("The connection ended before the response was complete.", reused_and_silent=silent)
        if self._paused and self._transport is not None:
            self._transport.resume_reading()
            self._paused = False
        if self._loop.time() - self._waiting_since > self._idle_seconds:
            raise ConnectionSilent("No content arrived in time.")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch(self) -> None:
        """Check for silence with one timer for the complete response, instead of one timer per piece."""
        silent_for = self._loop.time() - self._waiting_since
        if silent_for < self._idle_seconds or self._waiter is None or self._waiter.done():
            rest = max(self._idle_seconds - silent_for, 0.001)
            self._timer = self._loop.call_later(rest, self._watch)
        else:
            self._waiter.set_exception(ConnectionSilent("No data arrived in time."))

    # ---- reading ----

    def _take_head(self) -> bool:
        self.status, lines = 0, list[bytes]()
        while self.status < 200:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise ConnectionBroken("The response headers are too long.")
                self.status = 0
                return False
            lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            match = _STATUS.match(lines[0])
            if match is None:
                raise ConnectionBroken("The server does not speak HTTP/1.1.")
            self.status = int(match.group(1))
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.decode("latin-1").partition(":")
            name = name.strip().lower()
            if not colon:
                raise ConnectionBroken("The server sent invalid HTTP headers.")
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
        self.headers = headers
        self._keep = lines[0].startswith(b"HTTP/1.1") and "close" not in headers.get("connection", "").lower()
        length = headers.get("content-length", "")
        self._left = 0
        coding = headers.get("transfer-encoding", "identity").lower()
        if self.status in (204, 304) or self._is_head:
            self._body = "none"
        elif "chunked" in coding:
            self._body, self._left = "chunked", -1
        elif coding != "identity":
            raise ConnectionBroken("The response uses an unsupported encoding.")
        elif length:
            if not length.isascii() or not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
                raise ConnectionBroken("The server sent an invalid Content-Length.")
            self._left = int(length)
            self._body = "sized" if self._left else "none"
        else:
            self._body, self._keep = "until close", False
        return True

    def _take_body(self) -> bytes:
        """Return the bytes of the body that have arrived.

        In a chunked body, `_left` is the number of missing bytes of the current chunk, including its line ending. It
        is -1 before the size of a chunk.
        """
        if self._body == "sized":
            data = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            self._left -= len(data)
            self._body = "sized" if self._left else "none"
            return data
        if self._body != "chunked":
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
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
            digits = bytes(buffer[at:end]).partition(b";")[0].strip()
            if not _SIZE.fullmatch(digits):
                raise ConnectionBroken("A chunk has an invalid size.")
            size = int(digits, 16)
            if size == 0:
                # Search from the CRLF after the size: without trailers, it is the first half of the blank line.
                end = buffer.find(b"\r\n\r\n", end)
                if end >= 0:
                    self._body = "none"
                    at = end + 4
                break
            self._left = size + 2
            at = end + 2
        del buffer[:at]
        return b"".join(out)


class DirectClient:
    """Implements `HttpClient` with direct connections.

    With `addresses`, it connects to these in order without a lookup. The Host header and the TLS name are those of
    `base_url`. Compressed responses are requested only if `packed` is set, because small pieces arrive sooner
    uncompressed.
    """

    def __init__(
        self, base_url: str, provider: str, idle_seconds: float, *, addresses: Sequence[str] = (), packed: bool = False
    ) -> None:
        self.base = BaseUrl(base_url, provider)
        self._idle_seconds = idle_seconds
        self._addresses = addresses
        self._encodings = "gzip, deflate" if packed else "identity"
        self._idle: list[HttpConnection] = []
        self._closed = False
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", asked_at: float | None = None
    ) -> HttpResponse:
        """Wait for one of CONNECTIONS_MAX slots, send the request, and return when the response's headers have arrived.

        A stale connection is replaced immediately. Later failures are raised, because the request was sent and the
        caller must check whether another process has taken over.
        """
        base = self.base
        lines = [f"{method} {base.prefix}{path} HTTP/1.1\r\nhost: {base.netloc}".encode()]
        lines.append(f"accept-encoding: {self._encodings}".encode())
        lines.extend(name + b": " + value for name, value in headers)
        if body:
            lines.append(b"content-length: %d" % len(body))
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        await self._slots.acquire()
        answered = False
        try:
            clock = asyncio.get_running_loop().time
            while True:
                connection = None
                while self._idle and connection is None:
                    connection = self._idle.pop()
                    if not connection.usable or connection.idle_since <= clock() - KEEP_ALIVE_SECONDS:
                        connection.close()
                        connection = None
                connection = connection or await self._connect()
                sent_at = clock()
                if asked_at is not None and sent_at - asked_at > ASKED_SECONDS:
                    self._keep(connection)
                    raise HttpFailed("dropped", f"Sending to {self.base.label} timed out.", 0.0)
                try:
                    await connection.exchange(head, body, self._idle_seconds)
                    answered = True
                    return DirectResponse(connection, self)
                except ConnectionSilent as error:
                    raise HttpFailed("timeout", f"{self.base.label} did not respond in time.") from error
                except ConnectionBroken as error:
                    if not error.reused_and_silent or clock() - sent_at > STALE_SECONDS:
                        raise HttpFailed("dropped", f"The connection to {self.base.label} failed. {error}") from error
                finally:
                    if not answered:
                        connection.close()
        finally:
            if not answered:
                self._slots.release()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def release(self, connection: HttpConnection) -> None:
        self._slots.release()
        if connection.reusable:
            self._keep(connection)
        else:
            connection.close()

    def _keep(self, connection: HttpConnection) -> None:
        if len(self._idle) < KEEP_ALIVE_MAX and not self._closed:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> HttpConnection:
        base = self.base
        if not base.valid:
            raise HttpFailed("unreachable", f"{base.label} is not a valid URL. Check base_url.")
        # unlike asyncio's own implementation, this leaves no socket open when it is cancelled
        from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await start_connection(await self._lookup(), happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS)
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(loop),
                    sock=sock,
                    ssl=default_tls() if base.secure else None,
                    server_hostname=base.host if base.secure else None,
                )
                return connection
        except TimeoutError as error:
            raise HttpFailed("unreachable", f"Connecting to {base.label} timed out.") from error
        except (OSError, UnicodeError) as error:
            raise HttpFailed(
                "unreachable", f"{base.label} cannot be reached: {network_reason(error)}. Check base_url."
            ) from error

    async def _lookup(self) -> list[_AddressInfo]:
        """Return the socket addresses of the server. An IP address needs no lookup. Raises OSError and UnicodeError."""
        port, infos = self.base.port, list[_AddressInfo]()
        for host in self._addresses or (self.base.host,):
            try:
                infos += socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            except socket.gaierror:
                infos += await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return infos


class DirectResponse:
    __slots__ = ("_client", "_connection", "headers", "status")

    def __init__(self, connection: HttpConnection, client: DirectClient) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self._connection: HttpConnection | None = connection
        self._client = client

    async def chunks(self) -> AsyncGenerator[bytes]:
        connection = self._connection
        if connection is None:
            return
        try:
            while chunk := await connection.read():
                yield chunk
        except ConnectionSilent as error:
            raise HttpFailed("timeout", f"{self._client.base.label} stopped responding.") from error
        except ConnectionBroken as error:
            message = f"The connection to {self._client.base.label} ended in the middle of the response."
            raise HttpFailed("dropped", message) from error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.release(connection)


def proxy_for(base_url: str, environ: Mapping[str, str]) -> str | None:
    lower = {name.lower(): value for name, value in environ.items() if name.lower().endswith("_proxy") and value}
    if not lower:
        return None
    parts = urlsplit(base_url)
    proxy = lower.get(f"{parts.scheme}_proxy") or lower.get("all_proxy")
    excluded = (part.strip().lower() for part in lower.get("no_proxy", "").split(","))
    if any(part == "*" or (part and f".{parts.hostname}".endswith("." + part.lstrip("."))) for part in excluded):
        return None
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"
