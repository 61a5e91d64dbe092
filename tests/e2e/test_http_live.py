"""Live streams over a real connection: resuming without loss, parallel streams, slow readers, disconnects, shutdown."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
from tests.e2e.http_stand import TOKEN, Served, served

from shoal.kernel.events import AssistantSaid, StatusChanged, TextStreamed
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Prompt
from shoal.net.connections import default_tls
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve

THREAD = ThreadId("web:lobby:one")
EVENTS = f"/api/threads/{THREAD}/events"
TURN = ["turn_started", "user_message", "assistant_message", "turn_finished"]
LIVE = {"Accept": "text/event-stream"}


class Message(msgspec.Struct):
    """A server-sent event: its id, and the type in its JSON."""

    id: str
    type: str
    event: str = ""


class _Typed(msgspec.Struct):
    type: str = ""


class Tab:
    """An open live stream."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> Message:
        fields: dict[str, str] = {}
        async with asyncio.timeout(60):
            async for line in self._lines:
                if not line and "data" in fields:
                    kind = msgspec.json.decode(fields["data"], type=_Typed).type
                    return Message(fields.get("id", ""), kind, fields.get("event", ""))
                name, _, value = line.partition(": ")
                if name:
                    fields[name] = value
        raise EOFError

    async def take(self, count: int) -> list[Message]:
        return [await self.next() for _ in range(count)]

    async def turn(self) -> list[Message]:
        """Return a complete turn's events. A late reader may get the streamed text in one piece, or not at all."""
        messages = [await self.next()]
        while messages[-1].type != TURN[-1]:
            messages.append(await self.next())
        return [message for message in messages if message.id]

    async def numbers(self, count: int) -> list[int]:
        event_numbers: list[int] = []
        while len(event_numbers) < count:
            message = await self.next()
            event_numbers += [int(message.id)] if message.id else []
        return event_numbers


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


@asynccontextmanager
async def tab(shoal: Served, path: str = EVENTS, **headers: str) -> AsyncGenerator[Tab]:
    """Open a stream and wait until the server follows the thread."""
    sent = {**LIVE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with shoal.client.stream("GET", path, headers=sent) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield Tab(response)


async def say(shoal: Served, text: str = "hi") -> Prompt:
    await shoal.client.post(f"/api/threads/{THREAD}/messages", json={"text": text})
    prompt = shoal.orchestrator.received[-1]
    assert isinstance(prompt, Prompt)
    return prompt


async def test_a_turn_is_followed_as_it_happens(shoal: Served) -> None:
    prompt = await say(shoal)
    async with tab(shoal) as page:
        turn = await shoal.open(prompt)
        opened = await page.take(2)
        shoal.hub.show(THREAD, turn, StatusChanged("thinking"))
        shoal.hub.show(THREAD, turn, TextStreamed("he", 1))
        live = await page.take(2)
        await shoal.add(THREAD, turn, AssistantSaid("hello"))
        await shoal.finish(THREAD, turn, "hello")
        closed = await page.take(2)
    assert [(message.id, message.type) for message in (*opened, *live, *closed)] == [
        ("1", "turn_started"),
        ("2", "user_message"),
        ("", "status"),
        ("", "text_delta"),
        ("3", "assistant_message"),
        ("4", "turn_finished"),
    ]


@pytest.mark.parametrize("seen", range(5))
async def test_a_stream_is_resumed_after_the_last_event_seen(shoal: Served, seen: int) -> None:
    await shoal.answer(await say(shoal), "hi")
    async with tab(shoal, last_event_id=str(seen)) as page:
        await shoal.answer(await say(shoal), "again")
        assert await page.numbers(8 - seen) == list(range(seen + 1, 9))


async def test_the_last_event_id_overrides_the_query(shoal: Served) -> None:
    await shoal.answer(await say(shoal), "hi")
    async with tab(shoal, f"{EVENTS}?after=1") as page:
        assert (await page.next()).id == "2"
    async with tab(shoal, f"{EVENTS}?after=1", last_event_id="3") as page:
        assert (await page.next()).id == "4"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "²", "9" * 40])
async def test_an_invalid_last_event_id_is_rejected(shoal: Served, value: str) -> None:
    headers = {b"Accept": b"text/event-stream", b"Last-Event-ID": value.encode()}
    answer = await shoal.client.get(EVENTS, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_input")


async def test_a_head_request_opens_no_stream(shoal: Served) -> None:
    answer = await shoal.client.head(EVENTS, headers=LIVE)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


async def test_two_tabs_receive_the_same_messages(shoal: Served) -> None:
    prompt = await say(shoal)
    async with tab(shoal) as one, tab(shoal) as two:
        await shoal.answer(prompt, "a", "b")
        seen, same = await one.turn(), await two.turn()
    assert ([message.type for message in seen], seen) == (TURN, same)


async def test_all_threads_are_followed_in_one_stream(shoal: Served) -> None:
    prompt = await say(shoal)
    async with tab(shoal, "/api/events") as console:
        async with tab(shoal) as page:
            await page.response.aclose()
        await shoal.answer(prompt, "text")
        seen = await console.take(4)
    assert [message.type for message in seen] == TURN
    assert not any(message.id for message in seen)


async def test_the_stream_of_all_threads_requires_the_stream_type(shoal: Served) -> None:
    answer = await shoal.client.get("/api/events")
    assert (answer.status_code, answer.json()["error"]) == (406, "not_acceptable")


async def changed(response: httpx2.Response) -> AsyncIterator[list[str]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield msgspec.json.decode(line.removeprefix("data: "), type=dict[str, list[str]])["changed"]


async def test_the_change_stream_names_changed_lists(shoal: Served) -> None:
    async with asyncio.timeout(60), shoal.client.stream("GET", "/api/changes", headers=LIVE) as response:
        lists = changed(response)
        assert await anext(lists) == ["threads", "approvals"]
        prompt = await say(shoal)
        await shoal.open(prompt)
        assert await anext(lists) == ["threads"]
        # no journal event reports a new title
        await shoal.client.patch(f"/api/threads/{THREAD}", json={"title": "Tea"})
        assert await anext(lists) == ["threads"]


async def test_the_stream_of_changes_requires_the_stream_type(shoal: Served) -> None:
    answer = await shoal.client.get("/api/changes")
    assert (answer.status_code, answer.json()["error"]) == (406, "not_acceptable")


async def test_a_slow_reader_eventually_gets_everything(shoal: Served) -> None:
    turn = await shoal.open(await say(shoal))
    async with tab(shoal) as slow:
        first = await slow.take(2)
        text = "x" * 20_000
        for _ in range(15):  # far more than the connection and the hub can buffer
            await shoal.add(THREAD, turn, *(AssistantSaid(text) for _ in range(100)))
        await shoal.finish(THREAD, turn, "done")
        seen = [int(message.id) for message in (*first, *await slow.take(1501))]
    assert seen == list(range(1, 1504))


async def test_a_reader_that_never_reads_is_disconnected(tmp_path: Path) -> None:
    options = WebOptions(token=TOKEN, port=0, slow_reader_seconds=0.05)
    async with served(tmp_path, options) as stand:
        turn = await stand.open(await say(stand))
        _, writer = await asyncio.open_connection("127.0.0.1", stand.port, limit=1024)
        head = f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        while not stand.hub.watched(THREAD):
            await stand.store.journal.thread(THREAD)
        for _ in range(12):
            await stand.add(THREAD, turn, *(AssistantSaid("x" * 50_000) for _ in range(20)))
        async with asyncio.timeout(60):
            while stand.hub.watched(THREAD):
                await stand.store.journal.thread(THREAD)
        writer.close()


async def test_a_disconnected_client_is_no_longer_served(shoal: Served) -> None:
    await say(shoal)
    async with tab(shoal) as page:
        while not shoal.hub.watched(THREAD):
            await shoal.store.journal.thread(THREAD)
        await page.response.aclose()
    async with asyncio.timeout(60):
        while shoal.hub.watched(THREAD):
            await shoal.store.journal.thread(THREAD)


async def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        stand = Served(tmp_path, tasks)
        stack.push_async_callback(stand.store.close)
        headers = {**LIVE, "Authorization": f"Bearer {TOKEN}"}
        client = await stack.enter_async_context(httpx2.AsyncClient(verify=default_tls(), headers=headers))
        async with serve(stand.services, WebOptions(token=TOKEN, port=0)) as address:
            response = await stack.enter_async_context(client.stream("GET", address + EVENTS))
        with pytest.raises(EOFError):
            await Tab(response).next()
        with pytest.raises(httpx2.ConnectError):
            await client.get(address + "/healthz")


async def test_the_number_of_streams_is_limited(tmp_path: Path) -> None:
    async with served(tmp_path, WebOptions(token=TOKEN, port=0, streams_max=1)) as stand:
        async with tab(stand):
            refused = await stand.client.get(EVENTS, headers=LIVE)
            assert refused.status_code == 503
        async with asyncio.timeout(60):
            while (await stand.client.get(EVENTS)).status_code != 200:
                pass
        while not await _opens(stand):
            pass


async def _opens(stand: Served) -> bool:
    async with stand.client.stream("GET", EVENTS, headers=LIVE) as response:
        return response.status_code == 200


async def test_a_quiet_stream_is_kept_alive(tmp_path: Path) -> None:
    options = WebOptions(token=TOKEN, port=0, heartbeat_seconds=0.01)
    async with served(tmp_path, options) as stand, stand.client.stream("GET", EVENTS, headers=LIVE) as response:
        lines = response.aiter_lines()
        frames = [await anext(lines) for _ in range(7)]
    assert frames[0].startswith("retry: ")
    assert [line for line in frames if line.startswith(": still")] == [": still here"] * 2
