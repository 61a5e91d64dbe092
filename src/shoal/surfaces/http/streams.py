"""Live streams: a thread's journal followed by live events, without loss or repetition, as server-sent events.

A reader first subscribes to the hub and reads the journal. Then it reads the hub's events and skips those that it
has already read. Events have consecutive numbers, so the reader notices missing events. If events are missing, or if
the reader was too slow for the hub, it reads the journal again.
"""

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager
from datetime import datetime
from typing import Literal, TypeAlias

import anyio
import anyio.lowlevel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal.delivery.hub import Hub
from shoal.kernel.clock import Clock
from shoal.kernel.errors import StoreError
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Event,
    LiveEvent,
    OutputShown,
    TextStreamed,
    ThinkingStreamed,
    TurnFinished,
    TurnStarted,
    UserSaid,
    encode_event,
    encode_live,
)
from shoal.kernel.ids import ThreadId, TurnId
from shoal.store.journal import Journal
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.options import WebOptions

logger = logging.getLogger(__name__)

Beat: TypeAlias = Literal["beat"]
"""Item that represents an interval without events. It is sent as a keep-alive."""
Item: TypeAlias = Event | LiveEvent | Beat

Allowed: TypeAlias = Callable[[], Awaitable[bool]]
"""Function that returns whether the reader may still see the events."""
ALLOWED_SECONDS = 0.5
"""Seconds between calls of `Allowed`."""
REPLAY_EVENTS_MAX = 200
READ_AT_ONCE_MAX = 2
"""Maximum number of streams that read a page of a journal at the same time."""
FRAMES_BYTES_MAX = 4_194_304
"""Maximum total size of cached rendered events, which all streams of a thread share."""
OPENING = b"retry: 1000\n: shoal\n\n"
HEARTBEAT = b": still here\n\n"
LOST = b"event: lost\ndata: {}\n\n"


class LiveStreams:
    """The open streams. Limits their number, sends keep-alives, and ends the streams when the server stops."""

    def __init__(self, options: WebOptions, journal: Journal, hub: Hub, clock: Clock) -> None:
        self.journal = journal
        self.hub = hub
        self.clock = clock
        self.open = 0
        self.closing = False
        self.reading = anyio.Semaphore(READ_AT_ONCE_MAX)
        """Held while a page of a journal is read and decoded."""
        self.exporting = anyio.Semaphore(1)
        """Held while a page of an export is read and then rendered in a worker thread."""
        self._options = options
        self._frames: OrderedDict[tuple[ThreadId, int, datetime], bytes] = OrderedDict()
        self._frames_bytes = 0
        self._waiting: set[anyio.CancelScope] = set()

    def admit(self) -> AbstractContextManager[None]:
        """Count a stream as open until the context exits. Raises ApiError 503 at the limit or during shutdown."""
        most = self._options.streams_max
        if self.closing or self.open >= most:
            message = (
                f"The limit of {most} live streams has been reached, or Shoal is stopping. Close a stream, "
                "or try again in a moment."
            )
            raise ApiError(503, "too_many_streams", message, {"Retry-After": "5"})
        return self._counted()

    @contextmanager
    def _counted(self) -> Generator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def next(self, items: AsyncIterator[Event | LiveEvent]) -> Item | None:
        """Return the next item, `beat` after a quiet interval, or None if the stream must resubscribe or end."""
        if self.closing:
            return None
        with self._wait(self._options.heartbeat_seconds):
            return await anext(items, None)
        return None if self.closing else "beat"

    async def list_event(self, items: AsyncIterator[Event | LiveEvent], seconds: float) -> None:
        """Wait for an event that changes a list of threads or approvals. Also returns at a gap, after `seconds`,
        and when the server stops.
        """
        with self._wait(0 if self.closing else seconds):
            async for item in items:
                if isinstance(item, Event) and isinstance(item.data, LISTED):
                    return

    async def send(self, send: Send, chunk: bytes) -> bool:
        """Send a chunk. Return False if the client stops reading for too long, or if the server stops."""
        with self._wait(self._options.slow_reader_seconds):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await anyio.lowlevel.checkpoint()  # a client that reads everything at once must not block others
            return True
        return False

    async def beat(self, send: Send) -> None:
        while True:
            await anyio.sleep(self._options.heartbeat_seconds)
            if not await self.send(send, HEARTBEAT):
                return

    @contextmanager
    def _wait(self, seconds: float) -> Generator[None]:
        with anyio.move_on_after(seconds) as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

    def frame_of(self, event: Event) -> bytes:
        key = event.thread, event.seq, event.at
        frame = self._frames.get(key)
        if frame is None:
            frame = b"id: %d\ndata: %s\n\n" % (event.seq, encode_event(event))
            self._frames[key] = frame
            self._frames_bytes += len(frame)
            while self._frames_bytes > FRAMES_BYTES_MAX:
                self._frames_bytes -= len(self._frames.popitem(last=False)[1])
        return frame

    def close(self) -> None:
        self.closing = True
        for scope in tuple(self._waiting):
            scope.cancel()


LISTED = UserSaid | TurnStarted | TurnFinished | ApprovalRequested | ApprovalSettled
"""Events that immediately change the lists of threads and approvals."""

LONG = TextStreamed | ThinkingStreamed | OutputShown
"""Live events that are sent only in the stream of their own thread."""


async def thread_items(streams: LiveStreams, thread: ThreadId, after: int) -> AsyncGenerator[Item, None]:
    """Yield the thread's events with numbers above `after`, then live events, until the server stops.

    If `after` is beyond the end of the journal, it belongs to another journal, and all events are sent.
    """
    info = await streams.journal.thread(thread)
    seq, finished, said_at = after if info is not None and after <= info.last_seq else 0, TurnId(""), 0
    while not streams.closing:
        with streams.hub.subscribe(thread) as subscription:
            while True:
                async with streams.reading:
                    events = await streams.journal.events(thread, seq, REPLAY_EVENTS_MAX)
                    await anyio.lowlevel.checkpoint()  # let other tasks run first
                for event in events:
                    seq, finished = event.seq, event.turn if isinstance(event.data, TurnFinished) else finished
                    said_at = seq if isinstance(event.data, AssistantSaid) else said_at
                    yield event
                if len(events) < REPLAY_EVENTS_MAX:
                    break
            items = aiter(subscription)
            while (item := await streams.next(items)) is not None:
                if isinstance(item, Event):
                    if item.seq > seq + 1:  # events are missing: read them from the journal
                        break
                    if item.seq <= seq:
                        continue
                    seq, finished = item.seq, item.turn if isinstance(item.data, TurnFinished) else finished
                    said_at = seq if isinstance(item.data, AssistantSaid) else said_at
                elif (
                    isinstance(item, LiveEvent) and item.turn and item.turn == finished
                ):  # the live event's turn is over
                    continue
                elif (
                    isinstance(item, LiveEvent)
                    and isinstance(item.data, TextStreamed | ThinkingStreamed)
                    and item.data.after < said_at
                ):
                    continue  # the complete message was already sent
                yield item


async def thread_frames(streams: LiveStreams, thread: ThreadId, after: int) -> AsyncGenerator[bytes, None]:
    """Yield `thread_items` as server-sent events. The `id` is the number of the event. Live events have no `id`."""
    yield OPENING
    async with aclosing(thread_items(streams, thread, after)) as items:
        async for item in items:
            yield streams.frame_of(item) if isinstance(item, Event) else frame(item, streams.clock)


async def all_frames(streams: LiveStreams) -> AsyncGenerator[bytes, None]:
    """Yield new events of every thread, except live events with text or output. `event: lost` reports a gap."""
    yield OPENING
    while not streams.closing:
        with streams.hub.subscribe(None) as subscription:
            items = aiter(subscription)
            while (item := await streams.next(items)) is not None:
                if not (isinstance(item, LiveEvent) and isinstance(item.data, LONG)):
                    yield frame(item, streams.clock)
        if not streams.closing:
            yield LOST


def frame(item: Item, clock: Clock) -> bytes:
    """Return an item in its wire format, without the number of the event."""
    match item:
        case Event():
            return b"data: %s\n\n" % encode_event(item)
        case LiveEvent():
            return b"data: %s\n\n" % encode_live(item, clock.now())
        case _:
            return HEARTBEAT


class EventStream(Response):
    """A streamed response. It ends when its chunks end, the client disconnects or stops reading, the server stops, or
    `allowed` returns False.

    With `beats`, it sends keep-alives between chunks. Other streams include keep-alives in their chunks.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        streams: LiveStreams,
        admitted: AbstractContextManager[None],
        headers: Mapping[str, str] | None = None,
        *,
        allowed: Allowed | None,
        beats: bool = False,
    ) -> None:
        super().__init__(None, 200, {**(headers or {}), "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        self._chunks = chunks
        self._admitted = admitted
        self._streams = streams
        self._allowed = allowed
        self._beats = beats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._admitted:
            async with anyio.create_task_group() as group, aclosing(self._chunks):
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                sent = True
                async with anyio.create_task_group() as sending:
                    sending.start_soon(cancel_when_refused, self._allowed, sending.cancel_scope)
                    if self._beats:
                        sending.start_soon(self._streams.beat, send)
                    async for chunk in self._chunks:
                        sent = await self._streams.send(send, chunk)
                        if not sent:
                            logger.info("live stream ended: client stopped reading")
                            break
                    sending.cancel_scope.cancel()
                if sent:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                group.cancel_scope.cancel()


async def cancel_when_refused(allowed: Allowed | None, scope: anyio.CancelScope) -> None:
    """Cancel a stream soon after the caller's token is revoked or expires, or if the database is unreadable."""
    while allowed is not None:
        await anyio.sleep(ALLOWED_SECONDS)
        try:
            if await allowed():
                continue
        except StoreError as error:
            logger.warning("live stream ended: token check failed", extra={"why": str(error)})
        scope.cancel()
        return


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
