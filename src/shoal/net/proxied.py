"""HTTP client for requests through the proxy that the environment configures. It uses httpx2's transport, but not its
redirects and cookies.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from typing import cast

import httpx2

from shoal.net.connections import default_tls, network_reason
from shoal.net.http import (
    CONNECT_SECONDS,
    CONNECTIONS_MAX,
    KEEP_ALIVE_MAX,
    KEEP_ALIVE_SECONDS,
    BaseUrl,
    Headers,
    HttpFailed,
    HttpResponse,
)
from shoal.net.shared import SharedClient


class ProxiedClient:
    def __init__(self, base_url: str, provider: str, idle_seconds: float, proxy: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._base = BaseUrl(base_url, provider)
        self._idle_seconds = idle_seconds
        self._proxy = proxy
        self._shared: SharedClient[httpx2.AsyncHTTPTransport] | None = None

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", asked_at: float | None = None
    ) -> HttpResponse:
        """Send a request. `asked_at` is ignored, because httpx2 does not report when it sends."""
        idle = self._idle_seconds
        limits = {"connect": CONNECT_SECONDS, "read": idle, "write": idle, "pool": idle}
        label = f"{self._base.label}, through the proxy set in the environment,"
        with _translated(label):
            url = httpx2.URL(self._base_url + path)
            sized = [(b"host", url.netloc), (b"accept-encoding", b"identity"), *headers]
            if body:
                sized.append((b"content-length", b"%d" % len(body)))
            request = httpx2.Request(method, url, headers=sized, content=body, extensions={"timeout": limits})
            shared = self._shared = self._shared or SharedClient(self._transport(label))
            transport = shared.use()
            try:
                async with asyncio.timeout(CONNECT_SECONDS + idle):
                    response = await transport.handle_async_request(request)
            except BaseException:
                await shared.release()
                raise
        return ProxiedResponse(response, label, shared)

    def _transport(self, label: str) -> httpx2.AsyncHTTPTransport:
        pool = httpx2.Limits(
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=KEEP_ALIVE_MAX,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
        )
        verify = default_tls() if self._base.secure else False
        try:
            return httpx2.AsyncHTTPTransport(verify=verify, limits=pool, proxy=self._proxy)
        except (ImportError, ValueError) as error:  # for example SOCKS, which needs another package
            message = f"{label} cannot be reached: this kind of proxy is not supported. Use an http:// proxy."
            raise HttpFailed("unreachable", message) from error

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()


class ProxiedResponse:
    def __init__(self, response: httpx2.Response, label: str, shared: SharedClient[httpx2.AsyncHTTPTransport]) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._stream = cast("httpx2.AsyncByteStream", response.stream)
        self._label = label
        self._shared: SharedClient[httpx2.AsyncHTTPTransport] | None = shared

    async def chunks(self) -> AsyncGenerator[bytes]:
        with _translated(self._label):
            async for chunk in self._stream:
                yield chunk

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        try:
            await self._stream.aclose()
        finally:
            if shared is not None:
                await shared.release()


@contextmanager
def _translated(label: str) -> Generator[None]:
    try:
        yield
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise HttpFailed("unreachable", f"Connecting to {label} timed out.") from error
    except (httpx2.TimeoutException, TimeoutError) as error:
        raise HttpFailed("timeout", f"{label} stopped responding.") from error
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise HttpFailed("unreachable", f"{label} cannot be reached: {network_reason(error)}.") from error
    except httpx2.HTTPError as error:
        raise HttpFailed("dropped", f"The connection to {label} failed.") from error
