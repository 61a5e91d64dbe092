"""Transports for API calls: over HTTP, or to an application in this process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.kernel.errors import InvalidInput, ShoalError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

Answer: TypeAlias = tuple[int, AsyncIterator[bytes]]
"""The status of a response, and its body in chunks."""

REQUEST_SECONDS = 30.0
PIECE_BYTES = 65_536
PIECES_MAX = 16
"""Maximum number of unread chunks of a response. When it is reached, the application waits for the reader."""


class Transport(Protocol):
    """Sends API calls to Shoal.

    place: where Shoal runs, as shown in messages.
    address: URL of the server, or empty if Shoal runs in this process.
    seconds: maximum time for a response, or None for no limit.
    is_remote: True if Shoal may restart while this process runs.
    """

    place: str
    address: str
    seconds: float | None
    is_remote: bool

    def open(self, method: str, path: str, accept: str, body: object) -> AbstractAsyncContextManager[Answer]:
        """Make one call, which ends when the context exits. Raises ShoalError if Shoal does not respond."""
        ...


class HttpTransport:
    """Calls a Shoal server on this machine over minimal HTTP/1.0, which is enough for Shoal's own server."""

    seconds: float | None = REQUEST_SECONDS
    is_remote = True

    def __init__(self, address: str, token: str) -> None:
        self.place = f"the Shoal server at {address}"
        self.address = address
        self._token = token

    @asynccontextmanager
    async def open(self, method: str, path: str, accept: str, body: object) -> AsyncGenerator[Answer]:
        content, target = content_of(body), urlsplit(self.address)
        head = [f"{method} {path} HTTP/1.0"]
        head += [f"{name}: {value}" for name, value in headers_of(target.netloc, self._token, accept, body, content)]
        with ExitStack() as opened:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    reader, writer = await asyncio.open_connection(target.hostname, target.port)
                    opened.callback(writer.close)
                    writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + content)
                    status = int((await reader.readline()).split()[1])
                    while (await reader.readline()).strip():
                        pass
            except (OSError, TimeoutError, ValueError, IndexError) as error:
                message = f"Shoal at {self.address} does not answer. Restart it, or stop it and try again."
                raise ShoalError(message) from error
            yield status, _pieces(reader)


async def _pieces(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while piece := await reader.read(PIECE_BYTES):
        yield piece


class AsgiTransport:
    """Calls an application in this process."""

    place = "this process"
    address = ""
    seconds: float | None = None
    is_remote = False

    def __init__(self, app: "ASGIApp", token: str) -> None:
        self._app = app
        self._token = token

    @asynccontextmanager
    async def open(self, method: str, path: str, accept: str, body: object) -> AsyncGenerator[Answer]:
        import anyio

        content, (path, _, query) = content_of(body), path.partition("?")
        headers = headers_of("localhost", self._token, accept, body, content)
        scope = {
            "type": "http",
            # with this version, Starlette does not wait for a disconnection
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "server": ("localhost", 80),
            "client": None,
            "root_path": "",
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        }
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        sending, pieces = anyio.create_memory_object_stream[bytes](PIECES_MAX)
        has_left, is_sent = asyncio.Event(), False

        async def receive() -> "Message":
            nonlocal is_sent
            if is_sent:
                await has_left.wait()
                return {"type": "http.disconnect"}
            is_sent = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: "Message") -> None:
            if message["type"] == "http.response.start":
                begun.set_result(message["status"])
            elif piece := message.get("body", b""):
                await sending.send(piece)

        async def answer() -> None:
            with sending:
                await self._app(scope, receive, send)

        async def read() -> AsyncGenerator[bytes]:
            async for piece in pieces:
                yield piece
            await task

        task = asyncio.create_task(answer())  # not a task group, because a generator may be closed inside one
        try:
            await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                await task
            yield await begun, read()
        finally:
            has_left.set()
            pieces.close()
            task.cancel()
            await asyncio.wait({task})


def content_of(body: object) -> bytes:
    """Encode the body of a call. Bytes stay unchanged, None is empty, and other values become JSON. Raises
    InvalidInput for text that is not valid Unicode.
    """
    try:
        return body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidInput("Shoal cannot store this text: it contains invalid characters.") from error


def headers_of(host: str, token: str, accept: str, body: object, content: bytes) -> list[tuple[str, str]]:
    return [
        ("Host", host),
        ("Authorization", f"Bearer {token}"),
        ("Accept", accept),
        ("Content-Type", f"application/{'octet-stream' if isinstance(body, bytes) else 'json'}"),
        ("Content-Length", str(len(content))),
    ]
