"""The ASGI application with all HTTP routes, and the server that runs it."""

import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.delivery.hub import Hub
from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError, ShoalError
from shoal.services import Services
from shoal.store.store import Store
from shoal.surfaces.http.auth import AccessMiddleware, Gate
from shoal.surfaces.http.endpoints import Callers
from shoal.surfaces.http.errors import answer_defect, answer_http_error, answer_shoal_error
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.streams import LiveStreams
from shoal.surfaces.http.table import LazyRoutes, is_file, is_open
from shoal.threads.access_tokens import AccessTokens

CONNECTIONS_MAX = 1000
"""Maximum number of concurrent connections and requests. Further ones receive a 503."""
KEEP_ALIVE_SECONDS = 30
CLOSE_SECONDS = 5
BACKLOG = 512

DROPPED_BYTES_MAX = 256 * 1024 * 1024
"""Maximum size of the unread part of a request body that is discarded after the response."""
DROPPED_SECONDS_MAX = 30.0
"""Maximum time for which the rest of a request body is read after the response."""


class WebApp:
    """The ASGI application with every route. It serves until its services close.

    `close()` ends the live streams. Call it before stopping a server, because the server waits for live streams to end.
    """

    def __init__(self, services: Services, options: WebOptions) -> None:
        store, clock, tokens = services[Store], services[Clock], services[AccessTokens]
        self.streams = LiveStreams(options, store.journal, services[Hub], clock)
        gate, callers = Gate(options, clock, tokens, is_file), Callers(store, tokens, clock)
        web = services.extended()
        for service in (options, self.streams, gate, callers):
            web.add(service)
        self.routes = LazyRoutes(web)
        handlers = {ShoalError: answer_shoal_error, HTTPException: answer_http_error}
        answering = ServerErrorMiddleware(ExceptionMiddleware(self.routes, handlers), answer_defect)
        self._served = BodyDrain(AccessMiddleware(answering, gate, clock, is_open), options.linger_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._served(scope, receive, send)

    def close(self) -> None:
        self.streams.close()


class BodyDrain:
    """Middleware that drops the rest of a body after an early response, which lets the client read the response.

    Closing a connection while bytes arrive resets it, and the reset may overtake the response. A client whose body
    is too large, or whose token is wrong, would sometimes see a broken connection instead of the reason (RFC 9112,
    9.6). The response is always sent immediately. Only the connection stays open a little longer. Draining stops
    when the body pauses for `idle_seconds`.
    """

    def __init__(self, app: ASGIApp, idle_seconds: float) -> None:
        self._app = app
        self._idle_seconds = idle_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        is_read = False

        async def receive_body() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)  # also true after the client disconnected
            return message

        async def send_answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_read:
                if "expect" not in headers:  # receiving would send 100 Continue
                    with anyio.move_on_after(0):  # a small body may have arrived already
                        await receive_body()
                if not is_read:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            elif not is_read and not message.get("more_body", False):
                await send({**message, "more_body": True})
                dropped, more = 0, True
                with anyio.move_on_after(DROPPED_SECONDS_MAX):
                    while more and dropped < DROPPED_BYTES_MAX:
                        more = False
                        with anyio.move_on_after(self._idle_seconds):
                            rest = await receive_body()
                            dropped, more = dropped + len(rest.get("body", b"")), rest.get("more_body", False)
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, receive_body, send_answer)


@asynccontextmanager
async def serve(services: Services, options: WebOptions) -> AsyncGenerator[str, None]:
    """Serve on `options.host` and `options.port` until the context exits. Port 0 selects any free port. Yields the
    address `http://HOST:PORT`.

    On exit, the server stops accepting connections, ends the live streams, and gives running requests CLOSE_SECONDS.
    Raises ConfigError if the address is not available.
    """
    import uvicorn  # calls in this process need no server

    web = WebApp(services, options)
    web.routes.bind_all()  # a missing service prevents the start
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
        port, host = int(listener.getsockname()[1]), options.host
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - shown, not bound
        yield f"http://[{host}]:{port}" if ":" in host and "[" not in host else f"http://{host}:{port}"
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
        raise ConfigError([f"web.host = {host!r} is not an address of this machine: {error.strerror}."]) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # accepted connections inherit this limit for peers that stop reading
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unread_seconds * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = (
            f"Cannot listen on {host}:{port}: {error.strerror}. Free the port, or choose another with web.port or "
            "--port."
        )
        raise ConfigError([reason]) from error
    return listener
