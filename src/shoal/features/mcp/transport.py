"""Connect to an MCP server, by URL or as a child process, and detect a lost connection.

A child process runs in its own folder with a minimal environment: PATH, HOME, USER, LOGNAME, SHELL, TERM and the
variables in its settings. On Linux, the kernel kills it when this process dies. The end of the child's standard error
is stored for the operator.
"""

import asyncio
import os
import shlex
import shutil
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio
from anyio.abc import ObjectReceiveStream

from shoal.features.mcp.settings import McpServerSettings
from shoal.kernel.errors import ShoalError
from shoal.kernel.ports import Command, Enclose, Mount
from shoal.kernel.secret import Secret

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared._stream_protocols import ReadStream
    from mcp.shared.message import SessionMessage

STDERR_CHARS_KEPT = 2000
HTTP_CONNECT_SECONDS = 10.0
MESSAGE_BYTES_MAX = 16_777_216
"""Maximum size of an HTTP message, enough for a few images."""


class McpServer(NamedTuple):
    """A configured server. `folder` is the working directory of its process."""

    name: str
    settings: McpServerSettings
    folder: Path = Path()


class WatchedStream(ObjectReceiveStream["SessionMessage | Exception"]):
    """Stream of messages from a server. Repairs malformed messages, and calls `on_end` when the stream ends."""

    def __init__(self, stream: "ReadStream[SessionMessage | Exception]", on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self._more: deque[SessionMessage | Exception] = deque()

    async def receive(self) -> "SessionMessage | Exception":
        while not self._more:
            try:
                item = await self._stream.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                self._on_end()
                raise
            self._more += _mended(item)
        return self._more.popleft()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _mended(item: "SessionMessage | Exception") -> "list[SessionMessage | Exception]":
    from mcp import types
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

    if not isinstance(item, ValidationError):
        return [item]
    from shoal.features.mcp.wire import mended

    errors = item.errors(include_url=False)
    of_whole = [
        error
        for error in errors
        if error["type"] in ("json_invalid", "missing", "model_type") and len(error["loc"]) < 3
    ]
    sent: object = of_whole[0]["input"] if of_whole else None
    messages_: list[SessionMessage | Exception] = []
    for message in mended(sent):
        with suppress(ValidationError):
            messages_.append(SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False)))
    return messages_ or [item]


NPM_WORDS_LEAST = 4
"""npm error lines with at most this many words, such as `npm error code E404`, do not contain the reason."""


class LastWords:
    """Buffer for the end of a child's standard error."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    async def read(self, pipe: int) -> None:
        while True:
            await anyio.wait_readable(pipe)
            piece = os.read(pipe, 65_536)
            if not piece:
                return
            self._bytes += piece
            del self._bytes[:-STDERR_CHARS_KEPT]

    @property
    def last_line(self) -> str:
        """Most informative line: the server's last error, npm's reason, or the last line.

        Many servers are started by npm, which ends every failure with lines about its log file.
        """
        lines = [line.strip() for line in self._bytes.decode(errors="replace").splitlines() if line.strip()]
        own = [line for line in lines if not line.lower().startswith("npm ")]
        telling = [line for line in own if "error" in line.lower()]
        of_npm = [line for line in lines if line.lower().startswith(("npm error ", "npm err! "))]
        reasons = [line for line in of_npm if len(line.split()) > NPM_WORDS_LEAST and "complete log" not in line]
        return (telling[-1:] or reasons[:1] or own[-1:] or lines[-1:] or [""])[0][:300]


@asynccontextmanager
async def opened(
    server: McpServer, enclose: Enclose | None, on_end: Callable[[], None], words: LastWords
) -> "AsyncGenerator[TransportStreams]":
    """Open the read and write streams of a server. Calls `on_end` when the read stream ends.

    Raises OSError, SandboxError, ConfigError.
    """
    opening = _over_http(server.settings) if server.settings.url else _as_child(server, enclose, words)
    async with opening as (read, write):
        yield WatchedStream(read, on_end), write


@asynccontextmanager
async def _over_http(server: McpServerSettings) -> "AsyncGenerator[TransportStreams]":
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from shoal.features.mcp.wire import mended_event, mended_json

    class Mended(httpx2.AsyncByteStream):
        """Response body with repaired messages. Rejects compressed bodies and messages larger than
        MESSAGE_BYTES_MAX.
        """

        def __init__(self, response: httpx2.Response, is_events: bool) -> None:
            self._stream = cast("httpx2.AsyncByteStream", response.stream)
            self._is_packed = "content-encoding" in response.headers
            self._is_events = is_events

        async def __aiter__(self) -> AsyncIterator[bytes]:
            held = bytearray()
            async for piece in self._stream:
                held += piece
                if self._is_packed or len(held) > MESSAGE_BYTES_MAX:
                    why = (
                        "is compressed, which Shoal does not accept"
                        if self._is_packed
                        else (f"is larger than {MESSAGE_BYTES_MAX >> 20} MiB")
                    )
                    raise httpx2.StreamError(f"The response {why}.")
                if self._is_events and (end := piece.rfind(b"\n") + 1):
                    end += len(held) - len(piece)
                    for line in bytes(held[:end]).splitlines(keepends=True):
                        yield mended_event(line)
                    del held[:end]
            if held:
                yield bytes(held) if self._is_events else mended_json(bytes(held))

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def mend(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").lower()
        if kind.partition(";")[0].strip() in ("", "text/plain", "text/json", "application/octet-stream"):
            response.headers["content-type"] = "application/json"
        response.stream = Mended(response, kind.startswith("text/event-stream"))

    headers = {**await _revealed(server.headers), "Accept-Encoding": "identity"}
    timeout = httpx2.Timeout(server.timeout_seconds, connect=HTTP_CONNECT_SECONDS)
    hooks = {"response": [mend]}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False, event_hooks=hooks) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX) as streams,
    ):
        yield streams


@asynccontextmanager
async def _as_child(server: McpServer, enclose: Enclose | None, words: LastWords) -> "AsyncGenerator[TransportStreams]":
    from mcp.client.stdio import StdioServerParameters, stdio_client

    env = await _revealed(server.settings.env)
    await asyncio.to_thread(server.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    argv = (server.settings.command, *server.settings.args)
    inside: AbstractAsyncContextManager[tuple[str, ...]] = nullcontext(argv)
    if enclose is not None:
        mounts = (Mount(server.folder, "/workspace", writable=True),)
        inside = enclose(Command(f"exec {shlex.join(argv)}", server.folder, mounts, env=tuple(env.items())))
        env = {}
    async with inside as program:
        argv = program
        if sys.platform == "linux" and (
            setpriv := shutil.which("setpriv")
        ):  # the kernel kills the server when this process ends
            argv = (setpriv, "--pdeathsig", "KILL", "--", *program)
        parameters = StdioServerParameters(
            command=argv[0], args=list(argv[1:]), env=env, cwd=server.folder, encoding_error_handler="replace"
        )
        reading, writing = os.pipe()
        with os.fdopen(reading), os.fdopen(writing, "w") as errors:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(words.read, reading)
                async with stdio_client(parameters, errlog=errors) as streams:
                    errors.close()
                    try:
                        yield streams
                    finally:
                        tasks.cancel_scope.cancel()


async def _revealed(values: Mapping[str, Secret]) -> dict[str, str]:
    """Reveal the secrets in a thread, because a secret may be the output of a command."""
    return await asyncio.to_thread(lambda: {name: value.reveal() for name, value in values.items()})


def failures() -> tuple[type[Exception], ...]:
    import httpx2

    classes: list[type[Exception]] = [OSError, ValueError, RuntimeError, ShoalError, ImportError, ExceptionGroup]
    classes += [anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, httpx2.HTTPError]
    if "mcp" in sys.modules:
        from mcp import MCPError

        classes.append(MCPError)
    return tuple(classes)
