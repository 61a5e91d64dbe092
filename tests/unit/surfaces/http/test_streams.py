"""A live stream matches the journal: each event once and in order, for any interleaving of reads and publishes."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from shoal.delivery.hub import BACKLOG_MAX, Hub
from shoal.kernel.clock import SystemClock, iso
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Event,
    LiveEvent,
    StatusChanged,
    TextStreamed,
    ThinkingStreamed,
    TurnFinished,
)
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.records import ThreadInfo
from shoal.store.journal import Journal as StoreJournal
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.streams import (
    FRAMES_BYTES_MAX,
    HEARTBEAT,
    EventStream,
    LiveStreams,
    all_frames,
    thread_frames,
    thread_items,
)
from shoal.testing import ManualClock

THREAD = ThreadId("web:lobby:one")
TURN = TurnId("t1")
AT = SystemClock().now()


class Journal:
    """An in-memory journal. `delays` contains the numbers of event loop iterations before and after each read."""

    def __init__(self, hub: Hub, delays: Sequence[tuple[int, int]]) -> None:
        self.events_so_far: list[Event] = []
        self.hub = hub
        self.delays = list(delays)

    def grow(self, count: int, *, published: bool = True) -> None:
        """Append events. If `published`, send them to the hub, as the writer does after they are durable."""
        first = len(self.events_so_far) + 1
        fresh = [Event(first + number, THREAD, TURN, AT, Cleared()) for number in range(count)]
        self.events_so_far += fresh
        if published:
            self.hub.publish(fresh)

    async def events(self, thread: ThreadId, after: int = 0, limit: int = 10_000) -> list[Event]:
        """Return the events as of some moment between the call and its return."""
        before, behind = self.delays.pop(0) if self.delays else (1, 1)
        await let_others_run(before)
        found = self.events_so_far[after : after + limit]
        await let_others_run(behind)
        return found

    async def thread(self, thread: ThreadId) -> ThreadInfo:
        return ThreadInfo(thread, "main", len(self.events_so_far), AT, AT)


class Stand:
    """The parts of the core that `thread_items` uses."""

    def __init__(self, delays: Sequence[tuple[int, int]] = ()) -> None:
        self.hub = Hub()
        self.journal = Journal(self.hub, delays)
        self.clock = ManualClock(AT)
        self.streams = self.live(WebOptions(token="t", streams_max=4, heartbeat_seconds=60, slow_reader_seconds=60))

    def live(self, options: WebOptions) -> LiveStreams:
        return LiveStreams(options, cast("StoreJournal", self.journal), self.hub, self.clock)

    async def read(self, after: int, count: int) -> list[int]:
        found: list[int] = []
        async with asyncio.timeout(60), aclosing(thread_items(self.streams, THREAD, after)) as items:
            while len(found) < count:
                item = await anext(items)
                assert isinstance(item, Event)
                found.append(item.seq)
        return found


async def let_others_run(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


growth = st.one_of(st.integers(0, 3), st.sampled_from([199, 200, 201, BACKLOG_MAX, BACKLOG_MAX + 1]))
delay = st.integers(0, 8)


@given(
    begin=st.integers(0, 450),
    cut=st.integers(0, 450),
    reads=st.lists(st.tuples(delay, delay), max_size=6),
    writes=st.lists(st.tuples(delay, growth), max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_no_event_is_lost_or_repeated_between_replay_and_live(
    begin: int, cut: int, reads: list[tuple[int, int]], writes: list[tuple[int, int]]
) -> None:
    async def run() -> None:
        stand = Stand(reads)
        stand.journal.grow(begin)
        after = min(cut, begin)
        total = begin + sum(count for _, count in writes)
        found, _ = await asyncio.gather(stand.read(after, total - after), write(stand, writes))
        assert found == list(range(after + 1, total + 1))

    asyncio.run(run())


async def write(stand: Stand, writes: Sequence[tuple[int, int]]) -> None:
    for wait, count in writes:
        await let_others_run(wait)
        stand.journal.grow(count)


@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_resumed_stream_continues_where_it_was_cut(cuts: list[int]) -> None:
    async def run() -> None:
        stand = Stand()
        stand.journal.grow(sum(cuts))
        seen: list[int] = []
        for count in cuts:
            seen += await stand.read(seen[-1] if seen else 0, count)
        assert seen == list(range(1, sum(cuts) + 1))

    asyncio.run(run())


async def test_an_event_that_the_hub_missed_is_read_from_the_journal() -> None:
    stand = Stand()
    reading = asyncio.gather(stand.read(0, 4))
    await let_others_run()
    assert stand.hub.watched(THREAD)
    stand.journal.grow(1)
    stand.journal.grow(2, published=False)
    stand.journal.grow(1)
    assert await reading == [[1, 2, 3, 4]]


async def test_a_number_beyond_the_end_of_the_journal_starts_from_the_beginning() -> None:
    stand = Stand()
    stand.journal.grow(3)
    assert await stand.read(10, 3) == [1, 2, 3]


async def test_live_text_of_a_finished_turn_is_not_shown() -> None:
    stand = Stand()
    stand.journal.events_so_far.append(Event(1, THREAD, TURN, AT, TurnFinished("done")))
    async with aclosing(thread_items(stand.streams, THREAD, 0)) as items:
        first = await anext(items)
        stand.hub.show(THREAD, TURN, TextStreamed("late"))
        stand.hub.show(THREAD, TurnId("t2"), TextStreamed("new"))
        second = await anext(items)
    assert isinstance(first, Event)
    assert isinstance(second, LiveEvent)
    assert second.data == TextStreamed("new")


async def test_live_text_of_a_shown_message_is_not_repeated() -> None:
    stand = Stand()
    stand.journal.grow(1)
    stand.journal.events_so_far.append(Event(2, THREAD, TURN, AT, AssistantSaid("said")))
    async with aclosing(thread_items(stand.streams, THREAD, 0)) as items:
        for _ in range(2):
            await anext(items)
        stand.hub.show(THREAD, TURN, ThinkingStreamed("thought", 1, after=1))
        stand.hub.show(THREAD, TURN, TextStreamed("said", 1, after=1))
        stand.hub.show(THREAD, TURN, TextStreamed("more", 2, after=2))
        piece = await anext(items)
    assert isinstance(piece, LiveEvent)
    assert piece.data == TextStreamed("more", 2, after=2)


async def test_only_event_frames_are_numbered() -> None:
    stand = Stand()
    stand.journal.grow(1)
    async with aclosing(thread_frames(stand.streams, THREAD, 0)) as frames:
        opening, event = await anext(frames), await anext(frames)
        stand.hub.show(THREAD, TURN, StatusChanged("thinking"))
        status = await anext(frames)
    assert opening.startswith(b"retry: ")
    assert event.startswith(b'id: 1\ndata: {"seq":1,')
    assert status.startswith(
        b'data: {"seq":0,"thread":"web:lobby:one","turn":"t1","type":"status","at":"%s",' % iso(AT).encode()
    )


async def test_a_quiet_stream_sends_keepalives() -> None:
    stand = Stand()
    stand.streams = stand.live(WebOptions(token="t", streams_max=1, heartbeat_seconds=0.001, slow_reader_seconds=60))
    async with aclosing(thread_items(stand.streams, THREAD, 0)) as items:
        assert [await anext(items) for _ in range(3)] == ["beat"] * 3
        stand.journal.grow(1)
        item = await anext(items)
        assert isinstance(item, Event)
        assert item.seq == 1


async def test_a_slow_stream_sends_keepalives_without_being_disturbed() -> None:
    streams = Stand().live(WebOptions(token="t", streams_max=1, heartbeat_seconds=0.001, slow_reader_seconds=60))
    answered, left, sent = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def pieces() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        await answered.wait()
        yield b"data: 2\n\n"

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if sent.count(HEARTBEAT) == 2:
            answered.set()

    stream = EventStream(pieces(), streams, streams.admit(), allowed=None, beats=True)
    async with asyncio.timeout(60):
        await stream({"type": "http"}, receive, send)
    assert [one for one in sent if one != HEARTBEAT] == [b"", b"data: 1\n\n", b"data: 2\n\n", b""]
    assert streams.open == 0


async def test_closing_ends_waiting_streams() -> None:
    stand = Stand()
    reading = asyncio.gather(*(_all(stand) for _ in range(3)))
    await let_others_run()
    assert stand.hub.watched(THREAD)
    stand.streams.close()
    assert await reading == [0, 0, 0]
    assert not stand.hub.watched(THREAD)


async def _all(stand: Stand) -> int:
    return len([item async for item in thread_items(stand.streams, THREAD, 0)])


async def test_the_stream_of_all_threads_has_no_text_and_reports_gaps() -> None:
    stand = Stand()
    async with aclosing(all_frames(stand.streams)) as frames:
        await anext(frames)
        reading = asyncio.gather(anext(frames))
        await asyncio.sleep(0)
        stand.hub.show(THREAD, TURN, TextStreamed("a"))
        stand.journal.grow(1)
        (first,) = await reading
        stand.journal.grow(BACKLOG_MAX + 1)
        assert await anext(frames) == b"event: lost\ndata: {}\n\n"
        reading = asyncio.gather(anext(frames))
        await asyncio.sleep(0)
        stand.journal.grow(1)
        (after,) = await reading
    assert first.startswith(b'data: {"seq":1,')
    assert after.startswith(b'data: {"seq":%d,' % (BACKLOG_MAX + 3))


def test_an_event_is_encoded_once_for_all_readers_and_the_cache_is_bounded() -> None:
    streams = Stand().streams
    events = [Event(number, THREAD, TURN, AT, AssistantSaid("word " * 20_000)) for number in range(1, 200)]
    first = streams.frame_of(events[0])
    assert streams.frame_of(Event(1, THREAD, TURN, AT, AssistantSaid("another"))) is first
    kept = [frame for event in events if streams.frame_of(event) is (frame := streams.frame_of(event))]
    assert sum(map(len, kept)) > FRAMES_BYTES_MAX
    assert streams.frame_of(events[0]) is not first


async def test_a_fast_reader_does_not_block_others() -> None:
    stand = Stand()
    stand.journal.grow(400)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def send(_: object) -> None: ...

    counting = asyncio.create_task(count())
    async with aclosing(thread_frames(stand.streams, THREAD, 0)) as frames:
        for _ in range(400):
            await stand.streams.send(send, await anext(frames))
    counting.cancel()
    assert turns >= 400
