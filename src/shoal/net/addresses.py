"""Checks of URLs that a model or an untrusted person chose, and the `Fetcher` port that opens them.

The checks are pure functions. They reject doubtful URLs and IP addresses.

Sources: the IANA registries of special-purpose addresses (RFC 6890), RFC 6052 (NAT64), RFC 3056 (6to4), RFC 4380
(Teredo), RFC 5214 (ISATAP), and the WHATWG URL standard for numeric hosts.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.errors import FetchError

Address: TypeAlias = IPv4Address | IPv6Address
Net: TypeAlias = IPv4Network | IPv6Network

URL_CHARS_MAX = 2048
PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)

_UNSAFE = lazy_re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ufeff\ud800-\udfff]")
_LABEL = lazy_re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = lazy_re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_ISATAP = lazy_re.compile(r"^(?:0000|0200):5efe$")

_V4_REFUSED = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "168.63.129.16/32", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
    )
)  # fmt: skip
_V6_GLOBAL = IPv6Network("2000::/3")
_V6_REFUSED = tuple(IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3ffe::/16", "3fff::/20"))


class WebAddress(NamedTuple):
    """The parts of a checked URL. `host` is lowercase ASCII without brackets. `path` is the request target."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """The origin of the URL. Credentials are sent only to the origin that they belong to."""
        return self.scheme, self.host, self.port

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def canonical_address(text: str) -> str:
    """Return the canonical form of a URL without its fragment, or an empty string if the URL is invalid."""
    try:
        return parse_target(text.partition("#")[0]).url
    except FetchError:
        return ""


def site_of(url: str) -> str:
    """Return the host of a URL without `www.`, with a port unless it is the default. Empty if the URL is invalid."""
    try:
        target = parse_target(url)
    except FetchError:
        return ""
    return target.authority.removeprefix("www.")


def parse_target(url: str) -> WebAddress:
    """Parse an http or https URL.

    Raises FetchError for other schemes and for deceptive forms: userinfo, hosts written as one number or with octal or
    hexadecimal parts, trailing dots, IPv6 zones, control characters, and backslashes.
    """
    if len(url) > URL_CHARS_MAX or _UNSAFE.search(url):
        raise FetchError("The URL is too long or contains spaces, backslashes or control characters.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchError("The URL has an invalid host or port.") from error
    if parts.scheme not in PORTS:
        raise FetchError("Only http:// and https:// URLs can be opened.")
    if "@" in parts.netloc or "%" in parts.netloc:
        raise FetchError("A URL must not contain a user name, a password or escapes before its path.")
    if port == 0 or parts.netloc.endswith(":"):
        raise FetchError("The URL has an invalid port.")
    host = _host(parts.hostname or "", bracketed=parts.netloc.startswith("["))
    path = quote(parts.path or "/", safe=_PATH_SAFE)
    if parts.query:
        path += "?" + quote(parts.query, safe=_PATH_SAFE + "?[]|")
    return WebAddress(parts.scheme, host, port or PORTS[parts.scheme], path)


def _host(text: str, *, bracketed: bool) -> str:
    if bracketed:
        try:
            return str(IPv6Address(text))
        except ValueError as error:
            raise FetchError(f"{text!r} is not an IPv6 address.") from error
    try:
        host = text.encode("idna").decode("ascii").lower()
    except UnicodeError as error:
        raise FetchError(f"{text[:80]!r} is not a host name.") from error
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise FetchError(f"{text[:80]!r} is not a host name.")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(host))
        except ValueError as error:
            raise FetchError(
                f"{text[:80]!r} is an IP address in an unusual form. Use four decimal numbers, such as 192.0.2.1."
            ) from error
    return host


def literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def why_refused(address: str, allowed: Sequence[Net] = ()) -> str:
    """Return why this IP address must not be opened. The result is empty if the address is public or within `allowed`.

    IPv6 addresses that contain an IPv4 address (mapped, compatible, 6to4, NAT64, Teredo, ISATAP) are rejected unless
    they are within `allowed`.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return "not an IP address"
    if any(parsed.version == net.version and parsed in net for net in allowed):
        return ""
    if isinstance(parsed, IPv4Address):
        return "not a public address" if any(parsed in net for net in _V4_REFUSED) else ""
    if parsed.scope_id or parsed not in _V6_GLOBAL or any(parsed in net for net in _V6_REFUSED):
        return "not a public address"
    return "an IPv6 address that contains an IPv4 address" if _ISATAP.match(parsed.exploded[20:29]) else ""


FETCH_BYTES_MAX = 5_000_000
FETCH_SECONDS_MAX = 30.0
REDIRECTS_MAX = 5


class FetchRequest(msgspec.Struct, frozen=True):
    """An HTTP request. Its headers are dropped after a redirect to another origin."""

    url: str
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    bytes_max: int = FETCH_BYTES_MAX
    seconds_max: float = FETCH_SECONDS_MAX
    redirects_max: int = REDIRECTS_MAX
    tls_only: bool = False
    """Whether every URL, including redirects, must begin with https://."""
    same_site: bool = False
    """True if a redirect to another site is returned as the response instead of being followed."""


class Fetched(msgspec.Struct, frozen=True):
    """A response, and its URL after redirects. `cut` is set if the body was longer than `bytes_max`."""

    url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    cut: bool = False

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


class Fetcher(Protocol):
    """A client that opens only URLs of the public web."""

    async def fetch(self, request: FetchRequest) -> Fetched:
        """Send the request and read the response, regardless of its status. Cancellation closes the connection.

        Raises FetchError if the URL must not be opened, or if its server does not respond within the limits.
        """
        ...
