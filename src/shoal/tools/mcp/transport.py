"""How to reach a server: a child process on its standard streams, or an address; and how to know that it is gone.

A child gets a minimal environment (PATH, HOME, USER, LOGNAME, SHELL, TERM and what its settings name), its own folder
as working directory, and dies with this process. Its standard error is read and its end kept, for the operator.
"""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import anyio
import msgspec

from shoal.domain.errors import ShoalError
from shoal.domain.ports import Command, Mount

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared._stream_protocols import ReadStream
    from mcp.shared.message import SessionMessage

STDERR_CHARS_KEPT = 2000
HTTP_CONNECT_SECONDS = 10.0


class McpServer(msgspec.Struct, frozen=True):
    """One server as configured: `command` and `args` to start it, or the `url` of one that runs.

    `env` and `headers` are asked for at each connection, since they may be secrets that expire. Empty `tools` are all;
    `folder` is its own. `timeout_seconds` bounds connecting and each call.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, Callable[[], str]] = {}
    url: str = ""
    headers: Mapping[str, Callable[[], str]] = {}
    tools: tuple[str, ...] = ()
    timeout_seconds: float = 60.0
    sandboxed: bool = False
    folder: Path = Path()

    @property
    def identity(self) -> str:
        """What the server is: a change of it ends approvals."""
        return self.url or shlex.join([self.command, *self.args])


Enclose: TypeAlias = Callable[[Command], AbstractAsyncContextManager[tuple[str, ...]]]
"""What a sandbox offers to hold a process for as long as it likes to run: the argument vector that runs the command
inside, while the block lasts. Raises SandboxError."""


class WatchedStream:
    """A stream of messages from a server that tells when it ends."""

    def __init__(self, stream: "ReadStream[SessionMessage | Exception]", on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    async def receive(self) -> "SessionMessage | Exception":
        """The next message."""
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "SessionMessage | Exception":
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)


class LastWords:
    """The end of what a child wrote to its standard error."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    async def read(self, pipe: int) -> None:
        """Read the pipe to its end, keeping little."""
        while True:
            await anyio.wait_readable(pipe)
            piece = os.read(pipe, 65_536)
            if not piece:
                return
            self._bytes += piece
            del self._bytes[:-STDERR_CHARS_KEPT]

    @property
    def last_line(self) -> str:
        """The last line that tells of an error, else the last that says something."""
        lines = [line.strip() for line in self._bytes.decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()]
        return (telling or lines or [""])[-1][:300]


@asynccontextmanager
async def opened(
    server: McpServer, enclose: Enclose | None, on_end: Callable[[], None], words: LastWords
) -> "AsyncGenerator[TransportStreams]":
    """The two streams to a server; `on_end` is called when it ends. Raises OSError, SandboxError, ConfigError."""
    async with AsyncExitStack() as stack:
        if server.url:
            read, write = await stack.enter_async_context(_over_http(server))
        else:
            read, write = await stack.enter_async_context(_as_child(server, enclose, words))
        yield WatchedStream(read, on_end), write


@asynccontextmanager
async def _over_http(server: McpServer) -> "AsyncGenerator[TransportStreams]":
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = await _revealed(server.headers)
    timeout = httpx2.Timeout(server.timeout_seconds, connect=HTTP_CONNECT_SECONDS)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as client,
        streamable_http_client(server.url, http_client=client) as streams,
    ):
        yield streams


@asynccontextmanager
async def _as_child(server: McpServer, enclose: Enclose | None, words: LastWords) -> "AsyncGenerator[TransportStreams]":
    from mcp.client.stdio import StdioServerParameters, stdio_client

    env = await _revealed(server.env)
    await asyncio.to_thread(server.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        argv = (server.command, *server.args)
        if enclose is not None:
            mounts = (Mount(server.folder, "/workspace", writable=True),)
            command = Command(f"exec {shlex.join(argv)}", server.folder, mounts, env=tuple(env.items()))
            argv, env = await stack.enter_async_context(enclose(command)), {}
        argv = _tied(argv)
        parameters = StdioServerParameters(command=argv[0], args=list(argv[1:]), env=env, cwd=server.folder)
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(words.read, reading)
        with os.fdopen(writing, "w") as errors:
            streams = await stack.enter_async_context(stdio_client(parameters, errlog=errors))
        try:
            yield streams
        finally:
            tasks.cancel_scope.cancel()


def _tied(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command, killed by the kernel when this process ends in whatever way."""
    tie = shutil.which("setpriv") if sys.platform == "linux" else None
    return (tie, "--pdeathsig", "KILL", "--", *argv) if tie else argv


async def _revealed(values: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """The values as they are now; a command may be asked for one, so this goes to a thread."""
    return await asyncio.to_thread(lambda: {name: value() for name, value in values.items()})


def failures() -> tuple[type[Exception], ...]:
    """What a broken server makes its client raise; its tasks' failures come as groups."""
    import httpx2

    found: list[type[Exception]] = [OSError, ValueError, RuntimeError, ShoalError, ImportError, ExceptionGroup]
    found += [anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, httpx2.HTTPError]
    if "mcp" in sys.modules:
        from mcp import MCPError

        found.append(MCPError)
    return tuple(found)
