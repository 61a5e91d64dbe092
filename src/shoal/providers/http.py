"""The one way to a provider's server: connections kept open, requests as bytes, bodies as they arrive.

Straight to the server it goes over our own connections, which cost a fifth of what the general client does for a
streamed answer; through a proxy of the environment it goes over httpx2, which is loaded only then.
"""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from shoal.domain.errors import ShoalError
from shoal.domain.messages import FailureKind
from shoal.providers.connection import Connection, ConnectionBroken, ConnectionSilent

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Longest whole (not streamed) response that is read; the rest is dropped."""
CONNECTIONS_MAX = 1000
"""Calls at once to one provider; more wait for a connection."""
BODY_SECONDS_MAX = 60.0
"""Longest time that a whole response is read for; what has not come by then is missing."""
KEEP_ALIVE_MAX = 256
STALE_SECONDS = 0.5
"""How soon a kept connection tells that its other side had closed it."""
ASKED_SECONDS = 1.0
"""How long whoever asks may be right that the work is theirs. What could not be sent by then is theirs to ask again."""
KEEP_ALIVE_SECONDS = 60.0
HAPPY_EYEBALLS_SECONDS = 0.25
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds to wait: `connect` for a connection, `idle` for the first or the next bytes of an answer."""

    connect_seconds: float = 10.0
    idle_seconds: float = 300.0


class HttpFailed(ShoalError):
    """The exchange broke below HTTP. `kind` is unreachable, timeout or dropped."""

    def __init__(self, kind: FailureKind, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after_seconds = retry_after_seconds


class HttpResponse(Protocol):
    """A response whose body is still to come. Close it in every case; closing early cuts the connection."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by lower-case name."""
        ...

    def chunks(self) -> AsyncGenerator[bytes]:
        """The body's bytes as they arrive. Raises HttpFailed."""
        ...

    async def close(self) -> None:
        """Give the connection back, or cut it if the body was not read to its end."""
        ...


class HttpClient(Protocol):
    """Calls below one base address. Nothing is opened before the first call."""

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", asked_at: float | None = None
    ) -> HttpResponse:
        """Send, and return once the response's headers are there. Raises HttpFailed.

        Nothing is sent ASKED_SECONDS after `asked_at` (of the event loop's clock) or later: the process may have been
        frozen meanwhile, and others may have taken the work over.
        """
        ...

    async def close(self) -> None:
        """Close all connections; a later call opens them anew."""
        ...


async def read_whole(response: HttpResponse) -> bytes:
    """The whole body, at most BODY_BYTES_MAX and what comes in BODY_SECONDS_MAX. Raises HttpFailed."""
    body = bytearray()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BODY_SECONDS_MAX), contextlib.aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    break
    return bytes(body)


def make_client(base_url: str, provider: str, timeouts: Timeouts, environ: Mapping[str, str]) -> HttpClient:
    """The client for an address: through the proxy that the environment names for it, or straight."""
    proxy = proxy_for(base_url, environ)
    if proxy is None:
        return DirectClient(base_url, provider, timeouts)
    from shoal.providers.http_proxied import ProxiedClient

    return ProxiedClient(base_url, provider, timeouts, proxy)


class Place:
    """A base address taken apart. `words` names it to a person, without what may be secret in it."""

    def __init__(self, base_url: str, provider: str) -> None:
        parts = urlsplit(base_url)
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.netloc = parts.netloc.rpartition("@")[2]
        self.words = f"{provider} at {parts.scheme}://{self.netloc}"
        self.prefix = parts.path.rstrip("/")
        try:
            self.port = parts.port or (443 if self.secure else 80)
            self.valid = bool(self.host) and parts.scheme in ("http", "https")
        except ValueError:
            self.port, self.valid = 0, False


class DirectClient:
    """The usual client."""

    def __init__(self, base_url: str, provider: str, timeouts: Timeouts) -> None:
        self._place = Place(base_url, provider)
        self._timeouts = timeouts
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", asked_at: float | None = None
    ) -> HttpResponse:
        """See `HttpClient`."""
        place = self._place
        lines = [f"{method} {place.prefix}{path} HTTP/1.1\r\nhost: {place.netloc}".encode()]
        lines.extend(name + b": " + value for name, value in headers)
        if body:
            lines.append(b"content-length: %d" % len(body))
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        await self._slots.acquire()
        connection: Connection | None = None
        try:
            connection = await self._exchange(head, body, asked_at)
            return DirectResponse(connection, self)
        finally:
            if connection is None:
                self._slots.release()

    async def _exchange(self, head: bytes, body: bytes, asked_at: float | None) -> Connection:
        """A connection with the response's head. A kept one that turns out stale is replaced at once.

        What breaks later had been sent, and others may have taken the work over since: whoever asked decides anew.
        """
        clock = asyncio.get_running_loop().time
        while True:
            connection = self._take_idle() or await self._connect()
            answered, sent_at = False, clock()
            if asked_at is not None and sent_at - asked_at > ASKED_SECONDS:
                self._keep(connection)
                raise HttpFailed("dropped", f"Nothing was sent to {self._place.words} for too long.", 0.0)
            try:
                await connection.exchange(head, body, self._timeouts.idle_seconds)
                answered = True
                return connection
            except ConnectionSilent as error:
                raise HttpFailed("timeout", f"{self._place.words} did not answer in time.") from error
            except ConnectionBroken as error:
                if not error.reused_and_silent or clock() - sent_at > STALE_SECONDS:
                    raise HttpFailed("dropped", f"{self._place.words} broke the connection: {error}") from error
            finally:
                if not answered:
                    connection.close()

    async def close(self) -> None:
        """See `HttpClient`."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def release(self, connection: Connection) -> None:
        """Take a connection back after its response."""
        self._slots.release()
        if connection.reusable:
            self._keep(connection)
        else:
            connection.close()

    def broken(self, error: ConnectionBroken | ConnectionSilent) -> HttpFailed:
        """What an error in the middle of a body means."""
        if isinstance(error, ConnectionSilent):
            return HttpFailed("timeout", f"{self._place.words} sent nothing more for too long.")
        return HttpFailed("dropped", f"{self._place.words} broke the connection in the middle of its answer.")

    def _keep(self, connection: Connection) -> None:
        if len(self._idle) < KEEP_ALIVE_MAX:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.close()

    def _take_idle(self) -> Connection | None:
        """The connection used last; those that were closed meanwhile or idle for too long are dropped."""
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        place = self._place
        if not place.valid:
            raise HttpFailed("unreachable", f"{place.words} is no address. Is base_url right?")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop),
                    place.host,
                    place.port,
                    ssl=tls() if place.secure else None,
                    happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS,
                )
        except TimeoutError as error:
            raise HttpFailed("unreachable", f"No connection to {place.words} in time.") from error
        except (OSError, UnicodeError) as error:
            raise HttpFailed("unreachable", f"{place.words} cannot be reached: {error}. Is base_url right?") from error
        return connection


class DirectResponse:
    """The usual response."""

    __slots__ = ("_client", "_connection", "headers", "status")

    def __init__(self, connection: Connection, client: DirectClient) -> None:
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self._connection: Connection | None = connection
        self._client = client

    async def chunks(self) -> AsyncGenerator[bytes]:
        """See `HttpResponse`."""
        connection = self._connection
        if connection is None:
            return
        try:
            while chunk := await connection.read():
                yield chunk
        except (ConnectionBroken, ConnectionSilent) as error:
            raise self._client.broken(error) from error

    async def close(self) -> None:
        """See `HttpResponse`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.release(connection)


@cache
def tls() -> ssl.SSLContext:
    """The machine's trusted authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR; loaded once (20 ms)."""
    if sys.platform != "linux":
        # Elsewhere they are no files that OpenSSL finds; httpx2 knows how to ask the system.
        import httpx2

        return httpx2.create_ssl_context()
    context = ssl.create_default_context()
    known = ssl.get_default_verify_paths()
    if not known.cafile and not known.capath:
        bundle = next((path for path in _BUNDLES if Path(path).is_file()), None)
        if bundle is not None:
            context.load_verify_locations(bundle)
    return context


def proxy_for(base_url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY name for this address; names in any case."""
    lower = {name.lower(): value for name, value in environ.items() if name.lower().endswith("_proxy") and value}
    if not lower:
        return None
    parts = urlsplit(base_url)
    proxy = lower.get(f"{parts.scheme}_proxy") or lower.get("all_proxy")
    excluded = (part.strip().lower() for part in lower.get("no_proxy", "").split(","))
    if any(part == "*" or (part and f".{parts.hostname}".endswith("." + part.lstrip("."))) for part in excluded):
        return None
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"
