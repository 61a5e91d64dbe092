"""What stands before every call: host, origin and credential are checked, and every answer gets its headers."""

from collections.abc import Callable
from email.utils import format_datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.domain.clock import Clock
from shoal.domain.errors import StoreError
from shoal.surfaces.http.auth import Gate
from shoal.surfaces.http.errors import ApiError, answer_shoal_error, error_response

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; sandbox")
_UNCACHED = (b"cache-control", b"no-store")
PROBES = frozenset({"/healthz", "/readyz"})
"""Open to everybody under any name, for whatever watches the process."""


class Guard:
    """Wraps the application. `is_open(path)` tells paths that need no credential."""

    def __init__(self, app: ASGIApp, gate: Gate, clock: Clock, is_open: Callable[[str], bool]) -> None:
        self._app = app
        self._gate = gate
        self._clock = clock
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP is turned away."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        path = request.scope["path"]
        shared = ""
        refused: Response | None = None
        try:
            shared = await self._check(request, path)
        except ApiError as error:
            refused = error_response(path, error.status, error.code, str(error), error.headers)
        except StoreError as error:
            refused = await answer_shoal_error(request, error)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._headers(list(message.get("headers", [])), shared)
            await send(message)

        if refused is None and shared and request.method == "OPTIONS":
            refused = _preflight()
        await (refused or self._app)(scope, receive, send_with_headers)

    async def _check(self, request: Request, path: str) -> str:
        if path in PROBES:
            return ""
        self._gate.check_host(request)
        shared = self._gate.foreign_origin(request)
        if self._is_open(path) or (shared and request.method == "OPTIONS"):
            return shared
        request.state.principal = await self._gate.principal(request)
        return shared

    def _headers(self, headers: list[tuple[bytes, bytes]], shared: str) -> list[tuple[bytes, bytes]]:
        present = {name for name, _ in headers}
        headers += [pair for pair in (*_HEADERS, _POLICY, _UNCACHED) if pair[0] not in present]
        headers.append((b"date", format_datetime(self._clock.now(), usegmt=True).encode("ascii")))
        if shared:
            headers += [(b"access-control-allow-origin", shared.encode("latin-1")), (b"vary", b"Origin")]
        return headers


def _preflight() -> Response:
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID, Idempotency-Key, X-Shoal",
        "Access-Control-Max-Age": "600",
    }
    return Response(None, 204, allowed)
