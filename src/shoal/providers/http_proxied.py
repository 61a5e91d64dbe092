"""The client for servers behind a proxy of the environment: httpx2's transport, without its redirects and cookies."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from typing import cast

import httpx2

from shoal.providers.http import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_MAX,
    KEEP_ALIVE_SECONDS,
    Headers,
    HttpFailed,
    HttpResponse,
    Place,
    Timeouts,
    tls,
)


class ProxiedClient:
    """See `HttpClient`."""

    def __init__(self, base_url: str, provider: str, timeouts: Timeouts, proxy: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._place = Place(base_url, provider)
        self._timeouts = timeouts
        self._proxy = proxy
        self._transport: httpx2.AsyncHTTPTransport | None = None

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", asked_at: float | None = None
    ) -> HttpResponse:
        """See `HttpClient`; how long the proxy's connection takes is not seen from here."""
        idle = self._timeouts.idle_seconds
        limits = {"connect": self._timeouts.connect_seconds, "read": idle, "write": idle, "pool": idle}
        words = f"{self._place.words}, by the proxy of the environment,"
        with _translated(words):
            url = httpx2.URL(self._base_url + path)
            sized = [(b"host", url.netloc), *headers]
            if body:
                sized.append((b"content-length", b"%d" % len(body)))
            request = httpx2.Request(method, url, headers=sized, content=body, extensions={"timeout": limits})
            async with asyncio.timeout(self._timeouts.connect_seconds + self._timeouts.idle_seconds):
                response = await self._open().handle_async_request(request)
        return ProxiedResponse(response, words)

    async def close(self) -> None:
        """See `HttpClient`."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _open(self) -> httpx2.AsyncHTTPTransport:
        if self._transport is None:
            limits = httpx2.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=KEEP_ALIVE_MAX,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            )
            verify = tls() if self._place.secure else False
            self._transport = httpx2.AsyncHTTPTransport(verify=verify, limits=limits, proxy=self._proxy)
        return self._transport


class ProxiedResponse:
    """See `HttpResponse`."""

    def __init__(self, response: httpx2.Response, words: str) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._stream = cast("httpx2.AsyncByteStream", response.stream)
        self._words = words

    async def chunks(self) -> AsyncGenerator[bytes]:
        """See `HttpResponse`."""
        with _translated(self._words):
            async for chunk in self._stream:
                yield chunk

    async def close(self) -> None:
        """See `HttpResponse`."""
        await self._stream.aclose()


@contextmanager
def _translated(words: str) -> Generator[None]:
    try:
        yield
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise HttpFailed("unreachable", f"No connection to {words} in time.") from error
    except (httpx2.TimeoutException, TimeoutError) as error:
        raise HttpFailed("timeout", f"{words} sent nothing for too long.") from error
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise HttpFailed("unreachable", f"{words} cannot be reached: {error}.") from error
    except httpx2.HTTPError as error:
        raise HttpFailed("dropped", f"{words} broke the connection.") from error
