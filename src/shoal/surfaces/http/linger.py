"""Lets whoever still sends a body read the answer: what is left of the body is read and dropped before the end.

A connection that is closed while bytes arrive is reset, and the reset may overtake the answer: a client whose body is
too large, or whose token is wrong, would now and then see a broken connection instead of the reason (RFC 9112, 9.6).
The answer leaves at once in any case; only the connection stays open a little longer, and is then closed.
"""

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DROPPED_BYTES_MAX = 64 * 1024 * 1024
"""How much of a body is read after the answer."""
DROPPED_SECONDS_MAX = 30.0
"""How long a body is read after the answer."""


class Lingering:
    """Wraps an application. `idle_seconds`: how long the rest of a body may pause until it is given up."""

    def __init__(self, app: ASGIApp, idle_seconds: float) -> None:
        self._app = app
        self._idle_seconds = idle_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        is_read = False

        async def receive_body() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)  # also when the client is gone
            return message

        async def send_answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_read:
                if "expect" not in headers:  # which receiving would answer with 100 Continue
                    with anyio.move_on_after(0):  # a small body is there already
                        await receive_body()
                if not is_read:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            elif not is_read and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await self._drop(receive_body)
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, receive_body, send_answer)

    async def _drop(self, receive_body: Receive) -> None:
        dropped, more = 0, True
        with anyio.move_on_after(DROPPED_SECONDS_MAX):
            while more and dropped < DROPPED_BYTES_MAX:
                more = False
                with anyio.move_on_after(self._idle_seconds):
                    message = await receive_body()
                    dropped, more = dropped + len(message.get("body", b"")), message.get("more_body", False)
