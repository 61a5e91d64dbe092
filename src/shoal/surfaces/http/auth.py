"""Who may call: the home's token and those made from it, the page's cookie, and where a browser may call from.

The cookie is `EXPIRES.HMAC` for the home's token and `EXPIRES.HMAC.NAME` for another; the HMAC is keyed with the home's
token and covers the other's digest. It proves that the token was shown once and carries nothing of it. It is only good
for calls that a page of this server makes itself, and as long as its token. Hosts are checked, so that a foreign name
that was pointed at this address (DNS rebinding) reaches nothing.
"""

import hashlib
import hmac
import ipaddress
import logging
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.requests import Request

from shoal.actors.access_tokens import AccessTokens
from shoal.domain.clock import Clock
from shoal.domain.tokens import AccessToken
from shoal.surfaces.http.core import WebOptions
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.principal import HOME_TOKEN, OWNER, OWNER_ON_PAGE, Principal

logger = logging.getLogger(__name__)

COOKIE_SECONDS = 30 * 86_400
FAILURES_MAX = 10
"""Wrong tokens from one address within FAILURE_SECONDS, after which it has to wait."""
FAILURE_SECONDS = 60.0
ADDRESSES_MAX = 4096
"""How many addresses are remembered; the longest quiet one is forgotten first."""
UNGUESSABLE_CHARS_MIN = 32
"""A token this long cannot be guessed, so the right one passes even while its address has to wait."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, never bound here


class FailureLimit:
    """Counts wrong tokens by address, within a window that starts with the first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_seconds(self, address: str) -> float:
        """How long this address has to wait; 0 when it may try."""
        since, count = self._failures.get(address, (0.0, 0))
        left = since + FAILURE_SECONDS - self._clock.monotonic()
        return max(left, 0.0) if count >= FAILURES_MAX else 0.0

    def add(self, address: str) -> None:
        """Count a wrong token."""
        now = self._clock.monotonic()
        since, count = self._failures.pop(address, (now, 0))
        self._failures[address] = (since, count + 1) if now < since + FAILURE_SECONDS else (now, 1)
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)


class Gate:
    """Checks hosts, origins and credentials; raises ApiError 400, 401, 403 or 429."""

    def __init__(self, options: WebOptions, clock: Clock, tokens: AccessTokens) -> None:
        if not options.token:
            raise ValueError("The HTTP surface needs a token.")
        self._token = options.token.encode()
        self._digest = hashlib.sha256(self._token).digest()
        self._clock = clock
        self._tokens = tokens
        self._failures = FailureLimit(clock)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in options.allowed_origins)
        names = {urlsplit(origin).hostname or "" for origin in self._origins}
        self._hosts = frozenset(names | {options.host.lower()}) - _WILDCARDS
        self._any_address = options.host in _WILDCARDS

    def check_host(self, request: Request) -> None:
        """Refuse a Host that is neither loopback nor configured."""
        name = _host_name(request.headers.get("host", ""))
        if name in self._hosts or _is_loopback(name) or (self._any_address and _is_address(name)):
            return
        message = "This Host is not known here. Add its origin to web.allowed_origins, or use the printed address."
        raise ApiError(400, "unknown_host", message)

    def foreign_origin(self, request: Request) -> str:
        """The caller's origin when it is an allowed one other than this server's; else empty. Raises on any other."""
        origin = request.headers.get("origin", "").lower()
        if not origin or self._is_own(request, origin):
            return ""
        if origin in self._origins:
            return origin
        message = "Browsers may not call from this origin. Add it to web.allowed_origins if it should."
        raise ApiError(403, "foreign_origin", message)

    def _is_own(self, request: Request, origin: str) -> bool:
        return origin == f"{request.scope.get('scheme', 'http')}://{request.headers.get('host', '').lower()}"

    async def principal(self, request: Request) -> Principal:
        """Who calls, and what they may. Raises ApiError 401, 403 or 429, StoreError."""
        header = request.headers.get("authorization", "")
        if header:
            scheme, _, given = header.partition(" ")
            if scheme.lower() != "bearer":
                raise _unauthorized("Send the token as Authorization: Bearer TOKEN.")
            return await self.bearer(request, given.strip())
        found = await self.visitor(request)
        if found is None:
            raise _unauthorized("Send Authorization: Bearer TOKEN, or open the page and sign in.")
        self._check_page_call(request)
        return found

    async def bearer(self, request: Request, given: str) -> Principal:
        """Whose token this is. Wrong ones are counted; an address with too many has to wait.

        Raises ApiError 401 for a wrong, revoked or expired one, 403 when its person has no access, 429, StoreError.
        """
        token = await self._tokens.find(given)
        if token is not None:  # it has 256 random bits: nobody finds one by guessing, so that it never has to wait
            if self._tokens.has_expired(token):
                raise _unauthorized(f"The token {token.name!r} has expired; `shoal token create` makes another one.")
            return await self._admitted(token, by_cookie=False)
        address = request.client.host if request.client else ""
        seconds = self._failures.wait_seconds(address)
        if seconds and len(self._token) < UNGUESSABLE_CHARS_MIN:
            raise _wait(seconds)
        if hmac.compare_digest(hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(), self._digest):
            return OWNER
        if seconds:
            raise _wait(seconds)
        self._failures.add(address)
        logger.warning("a wrong token was sent", extra={"address": address})
        raise _unauthorized(
            "The token is wrong or was revoked. Use the one in the file `token` of Shoal's home directory, or one that "
            "`shoal token create` made."
        )

    async def _admitted(self, token: AccessToken, *, by_cookie: bool) -> Principal:
        author = await self._tokens.author(token)
        if author is None:
            where = token.person.partition(":")[0]
            message = f"{token.person} has no access any more: put them into platforms.{where}.allow, or pair them."
            raise ApiError(403, "forbidden", message)
        await self._tokens.note_use(token)
        return Principal.of(token, author, by_cookie=by_cookie)

    async def stands(self, principal: Principal) -> bool:
        """Whether the token is still good. Raises StoreError."""
        return principal.token is HOME_TOKEN or await self._tokens.stands(principal.token)

    def cookie_name(self, request: Request) -> str:
        """One name a port: browsers share cookies between the ports of a host."""
        port = _host_port(request.headers.get("host", ""))
        return f"shoal_{port}" if port else "shoal"

    def make_cookie(self, principal: Principal) -> str:
        """A cookie value that is good for COOKIE_SECONDS, and no longer than its token."""
        token, expires = principal.token, str(int(self._clock.now().timestamp()) + COOKIE_SECONDS)
        name = f".{token.name}" if token.name else ""
        return f"{expires}.{self._signature(expires, token)}{name}"

    async def visitor(self, request: Request) -> Principal | None:
        """Who the cookie says it is; None without one, and for one that has expired or whose token has ended.

        Raises ApiError 403 when the person has no access any more, StoreError.
        """
        expires, _, rest = request.cookies.get(self.cookie_name(request), "").partition(".")
        signature, _, name = rest.partition(".")
        if not (expires.isascii() and expires.isdecimal() and signature.isascii()):
            return None
        token = await self._tokens.named(name) if name else HOME_TOKEN
        if token is None or not hmac.compare_digest(signature, self._signature(expires, token)):
            return None
        if int(expires) <= self._clock.now().timestamp() or self._tokens.has_expired(token):
            return None
        return OWNER_ON_PAGE if token is HOME_TOKEN else await self._admitted(token, by_cookie=True)

    def _signature(self, expires: str, token: AccessToken) -> str:
        covered = f"page cookie {expires}{token.digest and f' {token.digest}'}"
        return hmac.new(self._token, covered.encode(), hashlib.sha256).hexdigest()

    def _check_page_call(self, request: Request) -> None:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise ApiError(403, "foreign_page", "The page's cookie is only good for the page itself; use the token.")
        if request.method in _SAFE_METHODS:
            return
        origin = request.headers.get("origin", "").lower()
        if not self._is_own(request, origin) and origin not in self._origins:
            raise ApiError(403, "no_origin", "A change by the page's cookie needs the page's Origin; use the token.")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and "x-shoal" not in request.headers:
            raise ApiError(403, "no_header", "A change by the page's cookie needs JSON or the header X-Shoal: 1.")


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})


def _wait(seconds: float) -> ApiError:
    after = str(int(seconds) + 1)
    message = f"Too many wrong tokens came from this address. Wait {after} seconds."
    return ApiError(429, "too_many_failures", message, {"Retry-After": after})


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _host_port(host: str) -> str:
    port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host else ""
    return port if port.isdecimal() and port.isascii() else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
