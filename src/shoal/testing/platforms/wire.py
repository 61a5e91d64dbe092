"""A small HTTP/1.1 and WebSocket server for platform fakes. Handlers can delay responses and break connections."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union
from urllib.parse import parse_qsl

import msgspec

from shoal.testing.model.http import stop_accepting

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection


Json: TypeAlias = Union[str, int, float, bool, "list[Json]", "dict[str, Json]", None]
Given: TypeAlias = dict[str, Json]


class Called(msgspec.Struct):
    """A request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answered(NamedTuple):
    """A response to send. If `status` is None, the server drops the connection instead."""

    status: int | None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


Respond: TypeAlias = Callable[[Called], Awaitable[Answered]]
BREAK = Answered(None)


class Refused(Exception):
    """Raised by a fake to reject a call with the response `answer`."""

    def __init__(self, answer: Answered) -> None:
        super().__init__(answer.body.decode())
        self.answer = answer


def ok(content: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answered:
    return Answered(status, msgspec.json.encode(content), headers)


def query_of(called: Called) -> dict[str, str]:
    return dict(parse_qsl(called.path.partition("?")[2]))


class Part(NamedTuple):
    """A field of a multipart form. `filename` is empty for fields that are not files."""

    filename: str
    content: bytes


class LoopbackServer:
    """An HTTP server on a free loopback port. `respond` handles the requests.

    A request for which `mute` returns True takes effect, but its response waits until `unmuted` is set.
    """

    def __init__(self, respond: Respond) -> None:
        self.mute: Callable[[Called], bool] = lambda _: False
        self.unmuted = asyncio.Event()
        self._respond = respond
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self.address = ""

    async def start(self) -> str:
        """Start the server and return its address. After `stop`, it uses the same port again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=2**20)
        self._port = int(self._server.sockets[0].getsockname()[1])
        self.address = f"http://127.0.0.1:{self._port}"
        return self.address

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await stop_accepting(server.sockets)
            server.close()
            self.drop()
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await server.wait_closed()

    def drop(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (called := await _read(reader)) is not None:
                answer = await self._respond(called)
                if self.mute(called):
                    await self.unmuted.wait()
                if answer.status is None:
                    writer.transport.abort()
                    return
                typed = any(name == "content-type" for name, _ in answer.headers)
                kind = () if typed else (("content-type", "application/json"),)
                lines = [f"{name}: {value}" for name, value in (*kind, *answer.headers)]
                head = "\r\n".join(
                    (f"HTTP/1.1 {answer.status} Answer", *lines, f"content-length: {len(answer.body)}", "", "")
                )
                writer.write(head.encode("latin-1") + answer.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # asyncio would log a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Called | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    method, path, _ = first.split(" ", 2)
    if headers.get("transfer-encoding", "") == "chunked":
        content = b""
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            content += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return Called(method, path, headers, content)
    return Called(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def form_of(headers: Mapping[str, str], body: bytes) -> dict[str, Part]:
    head = f"content-type: {headers['content-type']}\r\n\r\n".encode("latin-1")
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    fields: dict[str, Part] = {}
    for part in message.iter_parts():  # pyright: ignore[reportAttributeAccessIssue]
        name = str(part.get_param("name", header="content-disposition"))
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        fields[name] = Part(part.get_filename() or "", content)
    return fields


class LoopbackSocket:
    """A WebSocket server on a free loopback port. Override `serve` to handle connections."""

    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self._server: Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}"

    async def start(self) -> None:
        from websockets.asyncio.server import serve

        self._server = await serve(self.serve, "127.0.0.1", self._port, compression=None, ping_interval=None)
        self._port = int(next(iter(self._server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await stop_accepting(server.sockets)
            self.drop()
            server.close()
            await server.wait_closed()

    def drop(self) -> None:
        for connection in self.connections:
            connection.transport.abort()
        self.connections.clear()

    async def serve(self, connection: "ServerConnection") -> None:
        """Handle one connection until it ends."""
        raise NotImplementedError
