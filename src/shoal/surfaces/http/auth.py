"""Authenticates callers, and checks the Origin and Host of their requests.

A caller sends the home's token, another token, or the page's cookie together with the page's key.

The page's cookie is `EXPIRES.HMAC` for the home's token and `EXPIRES.HMAC.NAME` for another token. The HMAC is keyed
with the home's token and covers the digest of the other token. It proves that the browser once sent the token,
without revealing it. The cookie becomes invalid when its token does.

Browsers send cookies to every port of a host, so other servers on the host see this cookie and could replay it. The
cookie alone therefore gives access only to the page's own files. Each call must also send the page's key, which is
another HMAC, in the header `X-Shoal`. The browser receives the key once, at sign-in, and stores it for the page's
origin, which includes the port.

A browser cannot add a header to requests for files that it loads by itself (pictures, sound, downloads). The URLs of
these files carry a ticket instead, which the page gets with `GET /api/me`. A ticket expires within two days and is
valid only for files.

The Host header is checked to prevent DNS rebinding.
"""

import hashlib
import hmac
import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Callable
from email.utils import format_datetime
from urllib.parse import urlencode, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.kernel import lazy_re
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, StoreError
from shoal.kernel.permissions import AccessToken
from shoal.surfaces.http.errors import ApiError, answer_shoal_error
from shoal.surfaces.http.options import WebOptions
from shoal.threads.access_tokens import AccessTokens
from shoal.threads.principals import HOME_TOKEN, OWNER, OWNER_ON_PAGE, Principal, bearer_of

logger = logging.getLogger(__name__)

COOKIE_SECONDS = 30 * 86_400
TICKET_SECONDS = 86_400
"""Minimum lifetime of a ticket in seconds. The maximum is twice as long. Tickets issued on the same day are identical,
so that browsers can cache files.
"""
KEY_HEADER = "x-shoal"
TICKET = "ticket"
"""Query parameter that contains a ticket, in URLs that the browser loads itself."""
FAILURES_MAX = 10
"""Number of wrong tokens within FAILURE_SECONDS after which an address must wait."""
FAILURE_SECONDS = 60.0
ADDRESSES_MAX = 4096
"""Maximum number of addresses whose wrong tokens are counted. The address with the oldest failure is dropped first."""
UNGUESSABLE_CHARS_MIN = 32
"""Minimum length of a home token that is considered unguessable. Requests with such a token are accepted even if their
address must wait.
"""

_HOST = lazy_re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, never bound here


class FailureLimit:
    """Counts wrong tokens per address, in a window that starts with the first wrong token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_seconds(self, address: str) -> float:
        since, count = self._failures.get(address, (0.0, 0))
        left = since + FAILURE_SECONDS - self._clock.monotonic()
        return max(left, 0.0) if count >= FAILURES_MAX else 0.0

    def add(self, address: str) -> None:
        now = self._clock.monotonic()
        since, count = self._failures.pop(address, (now, 0))
        self._failures[address] = (since, count + 1) if now < since + FAILURE_SECONDS else (now, 1)
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)


class Gate:
    """Checks the host, origin and credentials of a request. Raises ApiError 400, 401, 403 or 429.

    `is_file(path)` returns True if a ticket is valid for the path.
    """

    def __init__(self, options: WebOptions, clock: Clock, tokens: AccessTokens, is_file: Callable[[str], bool]) -> None:
        if not options.token:
            raise ValueError("The HTTP server needs a token.")
        self._token = options.token.encode()
        self._digest = hashlib.sha256(self._token).digest()
        self._clock = clock
        self._tokens = tokens
        self._is_file = is_file
        self._failures = FailureLimit(clock)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in options.allowed_origins)
        names = {urlsplit(origin).hostname or "" for origin in self._origins}
        self._hosts = frozenset(names | {options.host.lower()}) - _WILDCARDS
        self._any_address = options.host in _WILDCARDS
        try:
            self._proxies = tuple(ipaddress.ip_network(proxy, strict=False) for proxy in options.trusted_proxies)
        except ValueError as error:
            raise ConfigError(
                [f"web.trusted_proxies: {error}. Use addresses or networks, such as 10.0.0.0/8."]
            ) from error

    def is_encrypted(self, request: Request) -> bool:
        """Return True if the browser uses TLS, either to this server or to a trusted proxy in front of it."""
        if request.scope.get("scheme") == "https":
            return True
        try:
            address = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        is_proxy = address.is_loopback or any(
            address.version == proxy.version and address in proxy for proxy in self._proxies
        )
        return is_proxy and request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower() == "https"

    def check_host(self, request: Request) -> None:
        """Reject a Host that is neither a loopback address nor configured. Raises ApiError 400."""
        host = _HOST.fullmatch(request.headers.get("host", ""))
        name = "" if host is None else (host[1] or host[2]).lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            address = None
        is_loopback = name == "localhost" or (address is not None and address.is_loopback)
        if name in self._hosts or is_loopback or (self._any_address and address is not None):
            return
        message = (
            "This Host header is not allowed. Add its origin to web.allowed_origins, or use the URL that Shoal printed."
        )
        raise ApiError(400, "unknown_host", message)

    def foreign_origin(self, request: Request) -> str:
        """Return the caller's origin if it is an allowed foreign origin, or an empty string if it is this server's own.

        Raises ApiError 403 for any other origin.
        """
        origin = request.headers.get("origin", "").lower()
        if not origin or self._is_own(request, origin):
            return ""
        if origin in self._origins:
            return origin
        message = "This origin is not allowed to make calls from a browser. Add it to web.allowed_origins."
        raise ApiError(403, "foreign_origin", message)

    def _is_own(self, request: Request, origin: str) -> bool:
        scheme = "https" if self.is_encrypted(request) else "http"
        return origin == f"{scheme}://{request.headers.get('host', '').lower()}"

    async def principal(self, request: Request) -> Principal:
        """Return the caller and their permissions. Raises StoreError, and ApiError 401, 403 or 429."""
        header = request.headers.get("authorization", "")
        if header:
            scheme, _, given = header.partition(" ")
            if scheme.lower() != "bearer":
                raise _unauthorized("Send the token as Authorization: Bearer TOKEN.")
            return await self.bearer(request, given.strip())
        principal = await self.visitor(request)
        if principal is None:
            raise _unauthorized("Send Authorization: Bearer TOKEN, or open the page and sign in.")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise ApiError(
                403, "foreign_page", "The page's cookie is valid only for the page itself. Use a token instead."
            )
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            origin = request.headers.get("origin", "").lower()
            if not self._is_own(request, origin) and origin not in self._origins:
                raise ApiError(
                    403,
                    "no_origin",
                    (
                        "A change that uses the page's cookie must also send the page's Origin header. Use "
                        "a token instead."
                    ),
                )
        if not (
            self._shows(request.headers.get(KEY_HEADER, ""), self.page_key(principal))
            or self._has_ticket(request, principal)
        ):
            raise _unauthorized("The page's cookie is valid only with the page's key. Open the page and sign in again.")
        return principal

    async def bearer(self, request: Request, given: str) -> Principal:
        """Return the principal of a token. An address that sent too many wrong tokens must wait.

        Raises StoreError, and ApiError 401 for a wrong, revoked or expired token, 403 if the token's person has no
        access, and 429 if the address must wait.
        """
        token = await self._tokens.find(given)
        if token is not None:  # a long token that matches cannot be a guess
            if self._tokens.has_expired(token):
                raise _unauthorized(
                    f"The token {token.name!r} has expired. Create a new one with `shoal token create`."
                )
            return await self._admitted(token, by_cookie=False)
        address = request.client.host if request.client else ""
        seconds = self._failures.wait_seconds(address)
        after = str(int(seconds) + 1)
        message = f"Too many wrong tokens came from this address. Try again in {after} s."
        wait = ApiError(429, "too_many_failures", message, {"Retry-After": after})
        if seconds and len(self._token) < UNGUESSABLE_CHARS_MIN:
            raise wait
        if hmac.compare_digest(hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(), self._digest):
            return OWNER
        if seconds:
            raise wait
        self._failures.add(address)
        logger.warning("wrong token received", extra={"address": address})
        raise _unauthorized(
            "The token is wrong or was revoked. Use the one in the `token` file in Shoal's home directory, or create "
            "one with `shoal token create`."
        )

    async def _admitted(self, token: AccessToken, *, by_cookie: bool) -> Principal:
        token_row = await bearer_of(self._tokens, token)
        if token_row is None:
            where = token.person.partition(":")[0]
            message = (
                f"{token.person} no longer has access. Add them to platforms.{where}.allow, or pair them with "
                "`shoal pair CODE`."
            )
            raise ApiError(403, "forbidden", message)
        await self._tokens.note_use(token)
        return msgspec.structs.replace(token_row, by_cookie=by_cookie)

    def cookie_name(self, request: Request) -> str:
        """Return the cookie's name. It includes the port because browsers share cookies between a host's ports."""
        host = request.headers.get("host", "")
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host else ""
        prefix = "__Host-" if self.is_encrypted(request) else ""
        return f"{prefix}shoal_{port}" if port.isdecimal() and port.isascii() else f"{prefix}shoal"

    def make_cookie(self, principal: Principal) -> str:
        """Return a cookie value that is valid for COOKIE_SECONDS, but not longer than its token."""
        token, expires = principal.token, str(int(self._clock.now().timestamp()) + COOKIE_SECONDS)
        name = f".{token.name}" if token.name else ""
        return f"{expires}.{self._signature(expires, token)}{name}"

    async def visitor(self, request: Request) -> Principal | None:
        """Return the principal of the cookie. Return None if the cookie is missing or invalid, or if the cookie or its
        token has expired.

        Raises StoreError, and ApiError 403 if the person no longer has access.
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

    def page_key(self, principal: Principal) -> str:
        return self._hmac("page key", principal.token)

    def make_ticket(self, principal: Principal) -> str:
        expires = (int(self._clock.now().timestamp()) // TICKET_SECONDS + 2) * TICKET_SECONDS
        return f"{expires}.{self._hmac(f'page ticket {expires}', principal.token)}"

    def _has_ticket(self, request: Request, visitor: Principal) -> bool:
        expires, _, signature = request.query_params.get(TICKET, "").partition(".")
        if not (request.method in ("GET", "HEAD") and expires.isascii() and expires.isdecimal() and len(expires) < 16):
            return False
        is_good = self._shows(signature, self._hmac(f"page ticket {expires}", visitor.token))
        is_current = int(expires) > self._clock.now().timestamp()
        return is_good and is_current and self._is_file(request.scope["path"])

    def _shows(self, given: str, secret: str) -> bool:
        return given.isascii() and hmac.compare_digest(given, secret)

    def _signature(self, expires: str, token: AccessToken) -> str:
        return self._hmac(f"page cookie {expires}", token)

    def _hmac(self, purpose: str, token: AccessToken) -> str:
        covered = f"{purpose}{token.digest and f' {token.digest}'}"
        return hmac.new(self._token, covered.encode(), hashlib.sha256).hexdigest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})


_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; sandbox")
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID, Idempotency-Key, X-Shoal",
    "Access-Control-Max-Age": "600",
}
_UNCACHED = (b"cache-control", b"no-store")
PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that anyone may call, under any host name. Process monitors use them."""


class AccessMiddleware:
    """Middleware that checks the host, origin and credentials of every call, and sets the headers of every response.

    `is_open(path)` returns True if the path needs no credentials.
    """

    def __init__(self, app: ASGIApp, gate: Gate, clock: Clock, is_open: Callable[[str], bool]) -> None:
        self._app = app
        self._gate = gate
        self._clock = clock
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        path = request.scope["path"]
        shared = ""
        refused: Response | None = None
        try:
            if path not in PROBES:
                self._gate.check_host(request)
                shared = self._gate.foreign_origin(request)
                if not (self._is_open(path) or (shared and request.method == "OPTIONS")):
                    request.state.principal = await self._gate.principal(request)
                    if TICKET in request.query_params:  # the ticket is not a parameter of the call
                        rest = [(name, value) for name, value in request.query_params.multi_items() if name != TICKET]
                        scope["query_string"] = urlencode(rest).encode()
        except (ApiError, StoreError) as error:
            refused = await answer_shoal_error(request, error)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                present = {name for name, _ in headers}
                headers += [pair for pair in (*_HEADERS, _POLICY, _UNCACHED) if pair[0] not in present]
                headers.append((b"date", format_datetime(self._clock.now(), usegmt=True).encode("ascii")))
                if shared:
                    headers += [(b"access-control-allow-origin", shared.encode("latin-1")), (b"vary", b"Origin")]
                message["headers"] = headers
            await send(message)

        if refused is None and shared and request.method == "OPTIONS":
            refused = Response(None, 204, _PREFLIGHT)
        await (refused or self._app)(scope, receive, send_with_headers)
