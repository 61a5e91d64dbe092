"""A client that reads a thread over an application's API receives each event once and in order, even if it falls
behind.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.connections import listening
from tests.e2e.http_stand import TOKEN, Stand

from shoal.delivery.hub import BACKLOG_MAX
from shoal.kernel.errors import InvalidInput, NotFound, ShoalError
from shoal.kernel.events import Cleared, Event, StatusChanged
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt
from shoal.surfaces.cli.client import Client
from shoal.surfaces.cli.thread_client import ThreadClient
from shoal.surfaces.cli.transports import AsgiTransport, HttpTransport
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import WebApp

THREAD = ThreadId("terminal:local:main")


class Parts(Stand):
    """A stand with one thread and the application that serves its journal."""

    web: WebApp
    client: Client


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncGenerator[Parts]:
    async with asyncio.TaskGroup() as tasks:
        stand = Parts(tmp_path / "home", tasks)
        await stand.store.inbox.accept(Prompt(THREAD, "k", "hello", Author("me", trusted=True), stand.clock.now()), 5)
        stand.web = WebApp(stand.services, WebOptions(token=TOKEN))
        stand.client = Client(AsgiTransport(stand.web, TOKEN))
        yield stand
        stand.web.close()
    await stand.store.close()


async def happen(parts: Parts, count: int, *, shown: bool = True) -> None:
    events = await parts.store.journal.append(THREAD, [Cleared() for _ in range(count)])
    if shown:
        parts.hub.publish(events)


async def test_each_event_arrives_once_in_order(parts: Parts) -> None:
    await happen(parts, 3, shown=False)
    thread, seen = ThreadClient(parts.client, THREAD), list[int]()
    async with asyncio.timeout(60), aclosing(thread.watch(1)) as items:
        async for item in items:
            if isinstance(item, Event):
                seen.append(item.seq)
            match seen:
                case [2, 3]:
                    await happen(parts, 1)
                case [2, 3, 4]:
                    await happen(parts, 2, shown=False)  # as if another process appended them
                    await happen(parts, 1)
                case [2, 3, 4, 5, 6, 7]:
                    await happen(parts, BACKLOG_MAX + 5)  # more than the server buffers for a slow reader
                case _ if len(seen) == BACKLOG_MAX + 11:
                    break
                case _:
                    pass
    assert seen == list(range(2, BACKLOG_MAX + 13))


async def test_live_events_arrive_until_the_application_ends(parts: Parts) -> None:
    await happen(parts, 1, shown=False)
    seen: list[str] = []
    async with asyncio.timeout(60):
        async for item in ThreadClient(parts.client, THREAD).watch(0):
            seen.append(type(item.data).__name__)
            if isinstance(item, Event):
                parts.hub.show(THREAD, TurnId("t"), StatusChanged("thinking"))
            else:
                parts.web.close()
    assert seen == ["Cleared", "StatusChanged"]


async def test_an_in_process_application_fails_like_a_server(parts: Parts) -> None:
    with pytest.raises(NotFound, match="No agent named"):
        await parts.client.call("GET", "/api/agents/nobody")
    with pytest.raises(InvalidInput, match="No agent named"):
        await ThreadClient(parts.client, THREAD).send("hi", "nobody")


async def test_a_server_with_invalid_answers_is_named_and_disconnected() -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"rubbish\r\n")
        await reader.read()
        left.set()

    async with listening(serve) as port, asyncio.timeout(60):
        with pytest.raises(ShoalError) as caught:
            await Client(HttpTransport(f"http://127.0.0.1:{port}", "token")).call("GET", "/api/agents")
        await left.wait()
    assert "does not answer" in str(caught.value), "the traceback still references the connection"
