"""A loopback server for one test. It leaves no connection open."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from shoal.testing.model.http import stop_accepting

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """Run `serve` for each connection until the block ends, and yield the port. An error in `serve` fails the test.

    asyncio's own server leaves a connection open if its handler is cancelled before it starts, as happens at the end
    of a test.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the peer disconnected
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.create_task(talk(reader, writer))] = writer

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield int(listener.sockets[0].getsockname()[1])
    finally:
        await stop_accepting(listener.sockets)
        listener.close()
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        ends = await asyncio.gather(*connections, return_exceptions=True)
    assert not [end for end in ends if isinstance(end, Exception)], ends
