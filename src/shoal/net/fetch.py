"""The guarded HTTP client, the only way to open an address that a model or an untrusted person chose.

For the URL and for each redirect:

1. `parse_target` rejects deceptive forms.
2. The host is resolved once.
3. All of its addresses are checked.
4. The client connects to one of the checked addresses, without another lookup.

A DNS answer that changes later therefore has no effect. The Host header and the TLS name are those of the URL.
Cookies, proxies and netrc are not used, and connections are not reused.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias
from urllib.parse import urljoin

import msgspec

from shoal.kernel.errors import FetchError
from shoal.kernel.phrases import counted
from shoal.net.addresses import (
    REDIRECTS,
    Fetched,
    FetchRequest,
    Net,
    WebAddress,
    literal,
    parse_target,
    site_of,
    why_refused,
)
from shoal.net.connections import network_reason
from shoal.net.http import DamagedBody, DirectClient, HttpFailed, decoded, readable

AGENT = "shoal/0.1"
ADDRESSES_MAX = 4
LED_TO = "the host that the URL redirects to"
"""Name that errors show for a host to which a server redirects. Errors never quote a server, so they never taint a
turn.
"""


Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Function that resolves a host and port to IP addresses. Raises OSError."""


async def system_addresses(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the operating system. The preferred address is first. Raises OSError."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in infos))


class GuardedFetcher:
    """Implements `Fetcher`. `allowed` lists non-public networks that may still be accessed."""

    def __init__(self, resolve: Resolve = system_addresses, allowed: Sequence[Net] = ()) -> None:
        self._resolve = resolve
        self._allowed = tuple(allowed)

    async def fetch(self, request: FetchRequest) -> Fetched:
        try:
            async with asyncio.timeout(request.seconds_max):
                target = parse_target(request.url)
                name = target.host
                for _ in range(request.redirects_max + 1):
                    answer = await self.fetch_once(target, request, name)
                    location = answer.header("location")
                    if answer.status not in REDIRECTS or not location:
                        return answer
                    try:
                        following = parse_target(urljoin(target.url, location.strip()).partition("#")[0])
                    except (ValueError, FetchError) as error:
                        raise FetchError("The URL redirects to an invalid URL.") from error
                    if request.same_site and site_of(following.url) != site_of(target.url):
                        return answer
                    is_same, repeats = following.origin == target.origin, answer.status in (307, 308)
                    if repeats and not is_same and request.method not in ("GET", "HEAD"):
                        raise FetchError("The URL redirects this POST to another host. Use the final URL.")
                    if not (repeats and is_same):
                        method = "HEAD" if request.method == "HEAD" else "GET"
                        headers = request.headers if is_same else ()
                        request = msgspec.structs.replace(request, method=method, headers=headers, body=b"")
                    target, name = following, LED_TO
                raise FetchError(f"The URL redirects more than {request.redirects_max} times.")
        except TimeoutError as error:
            raise FetchError(f"No response arrived within {counted(request.seconds_max, 'second')}.") from error

    async def addresses(self, target: WebAddress, name: str = "") -> tuple[str, ...]:
        """Return the addresses to connect to.

        Raises FetchError unless all addresses of the host are allowed. The error shows the host as `name`.
        """
        name = name or target.host
        if literal(target.host) is not None:
            addresses: Sequence[str] = (target.host,)
        else:
            try:
                addresses = await self._resolve(target.host, target.port)
            except (OSError, UnicodeError) as error:
                raise FetchError(f"{_upper(name)} does not exist.") from error
        for address in addresses:
            why = why_refused(address, self._allowed)
            if why:
                raise FetchError(f"{_upper(name)} is blocked: it is {why}.")
        if not addresses:
            raise FetchError(f"{_upper(name)} does not exist.")
        return tuple(addresses[:ADDRESSES_MAX])

    async def fetch_once(self, target: WebAddress, request: FetchRequest, name: str) -> Fetched:
        """Fetch a URL without following redirects.

        Raises FetchError if the URL is forbidden or its server does not respond.
        """
        if request.tls_only and target.scheme != "https":
            raise FetchError(f"{_upper(name)} would be opened without encryption. Only https:// is allowed here.")
        headers = [("User-Agent", AGENT), ("Accept", "*/*"), ("Connection", "close"), *request.headers]
        if not request.body and request.method not in ("GET", "HEAD"):
            headers.append(("Content-Length", "0"))
        client = DirectClient(
            f"{target.scheme}://{target.authority}",
            name,
            request.seconds_max,
            addresses=await self.addresses(target, name),
            packed=True,
        )
        encoded = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers]
        try:
            response = await client.request(request.method, target.path, encoded, request.body)
            try:
                if not readable(response):
                    raise FetchError("The response uses an unsupported compression.")
                body = bytearray()
                async with aclosing(decoded(response)) as pieces:
                    async for piece in pieces:
                        body += piece
                        if len(body) > request.bytes_max:
                            break
            finally:
                await response.close()
        except DamagedBody as error:
            raise FetchError("The compressed response is damaged.") from error
        except HttpFailed as error:  # the error names the host, which a server may have chosen
            if error.kind == "timeout":
                raise TimeoutError from error
            why = network_reason(error.__cause__ or error).replace(target.host, name)
            wrong = f": {why}" if error.kind == "unreachable" else " with valid HTTP"
            raise FetchError(f"{_upper(name)} does not respond{wrong}.") from error
        finally:
            await client.close()
        is_cut = len(body) > request.bytes_max
        header_items = tuple(response.headers.items())
        return Fetched(target.url, response.status, header_items, bytes(body[: request.bytes_max]), cut=is_cut)


def _upper(name: str) -> str:
    return f"T{name[1:]}" if name == LED_TO else name
