"""The ASGI application over a running Shoal, and serving it on a socket."""

import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shoal.domain.errors import ConfigError, ShoalError
from shoal.surfaces.console import PREFIX
from shoal.surfaces.http import (
    compat,
    compat_chat,
    compat_responses,
    routes_access,
    routes_agents,
    routes_artifacts,
    routes_backups,
    routes_control,
    routes_files,
    routes_health,
    routes_hooks,
    routes_mcp,
    routes_platforms,
    routes_processes,
    routes_snapshots,
    routes_threads,
    routes_tokens,
)
from shoal.surfaces.http.auth import Gate
from shoal.surfaces.http.core import Core, Web, WebOptions
from shoal.surfaces.http.endpoints import NOBODY, Endpoint, routes
from shoal.surfaces.http.errors import ApiError, answer_api_error, answer_defect, answer_http_error, answer_shoal_error
from shoal.surfaces.http.guard import Guard
from shoal.surfaces.http.linger import Lingering
from shoal.surfaces.http.metrics import Counters
from shoal.surfaces.http.openapi import make_document
from shoal.surfaces.http.page import Page, favicon, index, is_open, static_file
from shoal.surfaces.http.streams import Streams

CONNECTIONS_MAX = 1000
"""Connections and requests at work at once; more are answered 503."""
KEEP_ALIVE_SECONDS = 30
CLOSE_SECONDS = 5
"""How long requests at work may take to end when the server stops."""
BACKLOG = 512

API: tuple[Endpoint, ...] = (
    *routes_health.ENDPOINTS,
    *routes_platforms.ENDPOINTS,
    *routes_hooks.ENDPOINTS,
    *routes_threads.ENDPOINTS,
    *routes_artifacts.ENDPOINTS,
    *routes_files.ENDPOINTS,
    *routes_snapshots.ENDPOINTS,
    *routes_control.ENDPOINTS,
    *routes_processes.ENDPOINTS,
    *routes_access.ENDPOINTS,
    *routes_tokens.ENDPOINTS,
    *routes_backups.ENDPOINTS,
    *routes_mcp.ENDPOINTS,
    *routes_agents.ENDPOINTS,
    *compat.ENDPOINTS,
    *compat_chat.ENDPOINTS,
    *compat_responses.ENDPOINTS,
)
PAGE: tuple[Endpoint, ...] = tuple(
    Endpoint(method="GET", path=path, handler=handler, scopes=NOBODY, summary="", answer=compat.NOTHING, is_open=True)
    for path, handler in (("/", index), ("/favicon.ico", favicon), (f"{PREFIX}/{{path:path}}", static_file))
)


class WebApp:
    """The ASGI application. `close()` ends its live streams, which a server waits for before it stops."""

    def __init__(self, core: Core, options: WebOptions) -> None:
        gate = Gate(options, core.clock, core.tokens)
        streams = Streams(
            streams_max=options.streams_max,
            heartbeat_seconds=options.heartbeat_seconds,
            slow_reader_seconds=options.slow_reader_seconds,
        )
        counters = Counters()
        self.web = Web(core, options, gate=gate, streams=streams, counters=counters, page=Page(), describe=_described)
        core.hub.tap(counters.count)
        guarded = Guard(_application(routes(self.web, (*API, *PAGE))), gate, core.clock, _is_open)
        self._served = Lingering(guarded, options.linger_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._served(scope, receive, send)

    def close(self) -> None:
        """End every live stream and take no new ones."""
        self.web.streams.close()


def make_web(core: Core, options: WebOptions) -> WebApp:
    """The application with every route; it serves as long as `core` is open."""
    return WebApp(core, options)


@cache
def _described() -> bytes:
    return make_document(API, version("shoal"))


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith((routes_platforms.PREFIX, routes_hooks.PREFIX)) or is_open(path)


_OPEN = frozenset(endpoint.path for endpoint in API if endpoint.is_open)


def _application(found: list[Route]) -> Starlette:
    application = Starlette(
        routes=found,
        exception_handlers={
            ApiError: answer_api_error,
            ShoalError: answer_shoal_error,
            HTTPException: answer_http_error,
            Exception: answer_defect,
        },
    )
    application.router.redirect_slashes = False
    return application


@asynccontextmanager
async def serve(core: Core, options: WebOptions) -> AsyncGenerator[str, None]:
    """Serve on `options.host` and `options.port` (0: any free one) while inside; yields the address `http://HOST:PORT`.

    Leaving stops taking connections, ends the live streams, and gives requests at work CLOSE_SECONDS. Raises
    ConfigError when the address cannot be had.
    """
    web = make_web(core, options)
    listener = _listen(options.host, options.port, options.slow_reader_seconds)
    config = uvicorn.Config(
        web,
        lifespan="off",
        ws="none",
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        yield _address(listener, options.host)
    finally:
        web.close()
        await server.shutdown(sockets=[listener])


def _listen(host: str, port: int, unread_seconds: float) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError([f"web.host = {host!r} is no address of this machine: {error.strerror}."]) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # ends connections, which inherit it, whose peers take nothing for so long
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unread_seconds * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = f"Cannot listen on {host}:{port}: {error.strerror}. Stop what uses it, or set web.port or --port."
        raise ConfigError([reason]) from error
    return listener


def _address(listener: socket.socket, host: str) -> str:
    port = int(listener.getsockname()[1])
    shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - shown, not bound
    return f"http://[{shown}]:{port}" if ":" in shown and "[" not in shown else f"http://{shown}:{port}"
