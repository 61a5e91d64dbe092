"""The one way to a provider's server: a kept-open HTTP client that takes prebuilt headers and streams raw bytes.

It uses httpx2's transport without httpx2's client: no redirects, cookies, auth flow or hooks, which a model's server
does not need and which cost a fifth of a request's CPU. One transport a provider, one TLS context for all, all of it on
first use.
"""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from shoal.domain.errors import ShoalError
from shoal.domain.messages import FailureKind

if TYPE_CHECKING:
    import ssl

    import httpx2

BODY_BYTES_MAX = 32 * 1024 * 1024
"""Longest whole (not streamed) response that is read; the rest is dropped."""
CONNECTIONS_MAX = 1000
"""Calls at once to one provider; more wait for a connection."""
KEEP_ALIVE_MAX = 256
KEEP_ALIVE_SECONDS = 60.0

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds to wait: `connect` for a connection, `idle` for the first or the next bytes of an answer."""

    connect_seconds: float = 10.0
    idle_seconds: float = 300.0


class HttpFailed(ShoalError):
    """The exchange broke below HTTP. `kind` is unreachable, timeout or dropped."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class HttpResponse:
    """A response whose body is still to come. Close it in every case; closing early cuts the connection."""

    __slots__ = ("_response", "_stream", "_where", "status")

    def __init__(self, response: "httpx2.Response", where: str) -> None:
        self.status = response.status_code
        self._response = response
        self._stream = cast("httpx2.AsyncByteStream", response.stream)
        self._where = where

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by lower-case name."""
        return self._response.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body's bytes as they arrive. Raises HttpFailed."""
        with _translated(self._where, begun=True):
            async for chunk in self._stream:
                yield chunk

    async def read(self) -> bytes:
        """The whole body, at most BODY_BYTES_MAX. Raises HttpFailed."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                break
        return bytes(body)

    async def close(self) -> None:
        """Give the connection back, or cut it if the body was not read to its end."""
        await self._stream.aclose()


class HttpClient:
    """Calls below one base address. Nothing is opened before the first call."""

    def __init__(self, base_url: str, provider: str, timeouts: Timeouts, environ: Mapping[str, str]) -> None:
        self.base_url = base_url.rstrip("/")
        self._provider = provider
        self._timeouts = timeouts
        self._environ = environ
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._urls: dict[str, httpx2.URL] = {}

    async def request(self, method: str, path: str, headers: Headers, body: bytes = b"") -> HttpResponse:
        """Send, and return once the response's headers are there. Raises HttpFailed."""
        import httpx2

        where = f"{self._provider} at {self.base_url.rpartition('@')[2]}"
        timeouts = self._timeouts
        idle = timeouts.idle_seconds
        limits = {"connect": timeouts.connect_seconds, "read": idle, "write": idle, "pool": idle}
        with _translated(where, begun=False):
            url = self._url(path)
            host = (b"host", url.netloc)
            sized = [host, (b"content-length", b"%d" % len(body)), *headers] if body else [host, *headers]
            request = httpx2.Request(method, url, headers=sized, content=body, extensions={"timeout": limits})
            response = await self._open().handle_async_request(request)
        return HttpResponse(response, where)

    async def close(self) -> None:
        """Close all connections; a later call opens them anew."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _url(self, path: str) -> "httpx2.URL":
        found = self._urls.get(path)
        if found is None:
            import httpx2

            found = self._urls[path] = httpx2.URL(self.base_url + path)
        return found

    def _open(self) -> "httpx2.AsyncHTTPTransport":
        if self._transport is None:
            import httpx2

            secure = self.base_url.startswith("https:")
            self._transport = httpx2.AsyncHTTPTransport(
                verify=_tls() if secure else False,
                limits=httpx2.Limits(
                    max_connections=CONNECTIONS_MAX,
                    max_keepalive_connections=KEEP_ALIVE_MAX,
                    keepalive_expiry=KEEP_ALIVE_SECONDS,
                ),
                proxy=_proxy_for(self._url(""), self._environ),
            )
        return self._transport


@cache
def _tls() -> "ssl.SSLContext":
    """The machine's trust store, loaded once (40 ms)."""
    import httpx2

    return httpx2.create_ssl_context()


def _proxy_for(url: "httpx2.URL", environ: Mapping[str, str]) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY name for this address."""
    lower = {name.lower(): value for name, value in environ.items() if name.lower().endswith("_proxy") and value}
    if not lower:
        return None
    proxy = lower.get(f"{url.scheme}_proxy") or lower.get("all_proxy")
    excluded = (part.strip().lower() for part in lower.get("no_proxy", "").split(","))
    host = url.host
    if any(part == "*" or (part and f".{host}".endswith("." + part.lstrip("."))) for part in excluded):
        return None
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


@contextmanager
def _translated(where: str, *, begun: bool) -> Generator[None]:
    import httpx2

    try:
        yield
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise HttpFailed("unreachable", f"No connection to {where} in time.") from error
    except httpx2.TimeoutException as error:
        raise HttpFailed("timeout", f"{where} sent nothing for too long.") from error
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise HttpFailed("unreachable", f"{where} cannot be reached: {error}. Is base_url right?") from error
    except httpx2.HTTPError as error:
        when = "in the middle of its answer" if begun else "before it answered"
        raise HttpFailed("dropped", f"{where} broke the connection {when}.") from error
