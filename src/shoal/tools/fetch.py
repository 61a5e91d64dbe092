"""The guarded HTTP client: the one way to an address that a model or a stranger chose.

    url ─► parse_target ─► resolve once ─► every address checked ─► connect to exactly that address ─► answer
              ▲                                                                                         │ redirect
              └─────────────────────────────────────────────────────────────────────────────────────────┘

The connection is made by a network backend of httpcore that never looks a name up: it is handed the addresses that were
checked, so an answer of the DNS that changes in between changes nothing. Host header and TLS name stay the URL's own.
There are no cookies, no proxies, no netrc, and no connection is used for a second request.
"""

import asyncio
import socket
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urljoin

import msgspec

from shoal.kernel.errors import FetchError
from shoal.kernel.phrases import counted
from shoal.net.addresses import Fetched, FetchRequest, Net, WebAddress, literal, parse_target, why_refused
from shoal.net.connections import default_tls, network_reason

if TYPE_CHECKING:
    import httpcore2

AGENT = "shoal/0.1"
REDIRECTS = (301, 302, 303, 307, 308)
CONNECT_SECONDS = 10.0
ADDRESSES_MAX = 4
"""How many addresses of a name are tried."""
LED_TO = "the host that the address leads on to"
"""Name in errors for a host that a server chose. Errors never quote a server, so a failure never taints."""


Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks up the IP addresses of a host for a port. Raises OSError."""


async def system_addresses(host: str, port: int) -> Sequence[str]:
    """What the operating system knows, the preferred address first. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedFetcher:
    """Implements `domain.web.Fetcher`. `allowed` are networks that are opened though they are not public."""

    def __init__(self, resolve: Resolve = system_addresses, allowed: Sequence[Net] = ()) -> None:
        self._resolve = resolve
        self._allowed = tuple(allowed)

    async def fetch(self, request: FetchRequest) -> Fetched:
        try:
            async with asyncio.timeout(request.seconds_max):
                target = parse_target(request.url)
                name = target.host
                for _ in range(request.redirects_max + 1):
                    answer = await self._once(target, request, name)
                    location = answer.header("location")
                    if answer.status not in REDIRECTS or not location:
                        return answer
                    try:
                        following = parse_target(urljoin(target.url, location.strip()).partition("#")[0])
                    except (ValueError, FetchError) as error:
                        raise FetchError("The address leads on to one that is not valid, or not of the web.") from error
                    is_same, repeats = following.origin == target.origin, answer.status in (307, 308)
                    if repeats and not is_same and request.method not in ("GET", "HEAD"):
                        raise FetchError("The address sends what was to be posted there on to somewhere else.")
                    if not (repeats and is_same):
                        method = "HEAD" if request.method == "HEAD" else "GET"
                        headers = request.headers if is_same else ()
                        request = msgspec.structs.replace(request, method=method, headers=headers, body=b"")
                    target, name = following, LED_TO
                raise FetchError(f"The address leads on and on, more than {request.redirects_max} times.")
        except TimeoutError as error:
            raise FetchError(f"There was no answer within {counted(request.seconds_max, 'second')}.") from error

    async def addresses(self, target: WebAddress, name: str = "") -> tuple[str, ...]:
        """Return the addresses to connect to.

        Raises FetchError, with `name`, unless all of the host's addresses are allowed.
        """
        name = name or target.host
        if literal(target.host) is not None:
            found: Sequence[str] = (target.host,)
        else:
            try:
                found = await self._resolve(target.host, target.port)
            except (OSError, UnicodeError) as error:
                raise FetchError(f"There is no host {name}.") from error
        for address in found:
            why = why_refused(address, self._allowed)
            if why:
                raise FetchError(f"{_upper(name)} may not be opened: it is {why}.")
        if not found:
            raise FetchError(f"There is no host {name}.")
        return tuple(found[:ADDRESSES_MAX])

    async def _once(self, target: WebAddress, request: FetchRequest, name: str) -> Fetched:
        import httpcore2

        if request.tls_only and target.scheme != "https":
            raise FetchError(f"{_upper(name)} is to be opened unencrypted. Only https:// will do here.")
        backend = _pinned(await self.addresses(target, name))
        headers = [("Host", target.authority), ("User-Agent", AGENT), ("Accept-Encoding", "gzip, deflate")]
        headers += [("Accept", "*/*"), ("Connection", "close"), *request.headers]
        if request.body or request.method not in ("GET", "HEAD"):
            headers.append(("Content-Length", str(len(request.body))))
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        tls = default_tls() if target.scheme == "https" else None
        try:
            pool = httpcore2.AsyncConnectionPool(ssl_context=tls, network_backend=backend)
            async with pool, pool.stream(request.method, url, headers=headers, content=request.body) as answer:
                said = tuple((key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in answer.headers)
                encoding = next((value for key, value in said if key == "content-encoding"), "").strip().lower()
                if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
                    raise FetchError("The answer is packed in a way that was not asked for.")
                unpacker = zlib.decompressobj(47) if encoding not in ("", "identity") else None
                body = bytearray()
                async for piece in answer.aiter_stream():
                    try:
                        body += piece if unpacker is None else unpacker.decompress(piece, request.bytes_max + 1)
                    except zlib.error as error:
                        raise FetchError("The answer is damaged: it cannot be unpacked.") from error
                    if len(body) > request.bytes_max:
                        break
                return Fetched(
                    target.url, answer.status, said, bytes(body[: request.bytes_max]), cut=len(body) > request.bytes_max
                )
        except httpcore2.ProtocolError as error:  # it quotes the server
            raise FetchError(f"{_upper(name)} does not answer as HTTP asks.") from error
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.UnsupportedProtocol) as error:
            why = network_reason(error).replace(target.host, name)
            raise FetchError(f"{_upper(name)} does not answer: {why}.") from error


def _upper(name: str) -> str:
    return f"T{name[1:]}" if name == LED_TO else name


def _pinned(addresses: Sequence[str]) -> "httpcore2.AsyncNetworkBackend":
    """A network backend that ignores the host's name: it tries the given addresses in order."""
    import httpcore2

    inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    class Pinned(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self, host: str, port: int, *rest: object, **more: object
        ) -> "httpcore2.AsyncNetworkStream":
            failure: httpcore2.ConnectError | httpcore2.ConnectTimeout | None = None
            for address in addresses:
                try:
                    return await inner.connect_tcp(address, port, CONNECT_SECONDS)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failure = error
            raise failure or httpcore2.ConnectError("no address")

    return Pinned()
