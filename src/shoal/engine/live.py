"""What happens in a thread, shown in every process: journal events and live text cross from workers by NOTIFY.

    what                 crosses as                         arrives as
    ------------------   --------------------------------   ---------------------------------------------------------
    journal events       thread and numbers                 read from the journal, where somebody watches the thread
    text being written   the text, joined over BATCH        the same live events, a little coarser
    a status, a running  the same                           the same
      call's output
    nothing, for a       -                                  watchers are told to read the journal again
      lost connection

Live text is only a preview: what does not fit into the bounds is dropped, the journal brings the whole.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import anyio
import msgspec
import psycopg

from shoal.domain.errors import StoreError
from shoal.domain.events import Event, LiveData, OutputShown, StatusChanged, TextStreamed
from shoal.domain.ids import CallId, ThreadId, TurnId
from shoal.domain.ports import LiveHub
from shoal.engine.cluster import Listener, Pool
from shoal.store.journal import Journal

log = logging.getLogger(__name__)

CHANNEL = "shoal_live"
BATCH_SECONDS = 0.05
PAYLOAD_BYTES_MAX = 7900
"""PostgreSQL takes less than 8000 bytes."""
TEXT_BYTES_MAX = 6000
"""The longest text of one item, as JSON; longer ones are cut in pieces."""
OUTGOING_MAX = 2000
INCOMING_MAX = 2000
EVENTS_READ_MAX = 1000


class Watched(LiveHub, Protocol):
    """The hub of this process."""

    def lose(self) -> None: ...


class _Journaled(msgspec.Struct, tag="e", array_like=True):
    thread: str
    first: int
    last: int


class _Text(msgspec.Struct, tag="t", array_like=True):
    thread: str
    turn: str
    step: int
    text: str
    offset: int = 0
    after: int = 0


class _Status(msgspec.Struct, tag="s", array_like=True):
    thread: str
    turn: str
    state: Literal["thinking", "tool", "waiting", "retrying", "idle", "queued"]
    text: str
    seconds: float = 0.0


class _Output(msgspec.Struct, tag="o", array_like=True):
    thread: str
    turn: str
    call_id: str
    text: str
    seconds: float


_Item: TypeAlias = _Journaled | _Text | _Status | _Output


class _Batch(msgspec.Struct, array_like=True):
    origin: str
    items: list[_Item]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Batch)


class LiveBridge:
    """Implements `domain.ports.LiveHub`: shows things in this process's hub and in those of all others.

    `origin` is unique among processes.
    """

    def __init__(self, hub: Watched, journal: Journal, pool: Pool, listener: Listener, origin: str) -> None:
        self._hub = hub
        self._journal = journal
        self._pool = pool
        self._origin = origin
        self._outgoing: deque[_Item] = deque()
        self._incoming: deque[_Item] = deque()
        self._stir = anyio.Event()
        listener.listen(CHANNEL, self._hear, hub.lose)

    def publish(self, events: Sequence[Event]) -> None:
        self._hub.publish(events)
        for event in events:
            last = self._outgoing[-1] if self._outgoing else None
            if isinstance(last, _Journaled) and last.thread == event.thread and last.last + 1 == event.seq:
                last.last = event.seq
            else:
                self._put(_Journaled(event.thread, event.seq, event.seq))

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        self._hub.show(thread, turn, data)
        match data:
            case TextStreamed(text=text, step=step, offset=offset, after=after):
                written = _Text(thread, turn, step, text, offset, after)
                for item in reversed(self._outgoing):
                    if isinstance(item, _Text) and (item.turn, item.step) == (turn, step):
                        if item.offset + len(item.text) != offset:
                            break
                        item.text += text
                        return
                    if item.thread == thread:
                        break
                self._put(written)
            case StatusChanged(state=state, text=text, seconds=seconds):
                self._put(_Status(thread, turn, state, text[:200], seconds))
            case OutputShown(call_id=call_id, text=text, seconds=seconds):
                self._put(_Output(thread, turn, call_id[:200], text, seconds))

    def watched(self, thread: ThreadId) -> bool:
        """Somebody may watch anywhere."""
        return True

    async def run(self) -> None:
        """Carry things to and fro until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_forever)
            while True:
                self._stir = anyio.Event()
                while self._incoming:
                    item = self._incoming.popleft()
                    thread = ThreadId(item.thread)
                    match item:
                        case _Text(turn=turn, step=step, text=text, offset=offset, after=after):
                            self._hub.show(thread, TurnId(turn), TextStreamed(text, step, offset, after))
                        case _Status(turn=turn, state=state, text=text, seconds=seconds):
                            self._hub.show(thread, TurnId(turn), StatusChanged(state, text, seconds))
                        case _Output(turn=turn, call_id=call_id, text=text, seconds=seconds):
                            self._hub.show(thread, TurnId(turn), OutputShown(CallId(call_id), text, seconds))
                        case _Journaled(first=first, last=last):
                            try:
                                events = await self._journal.events(thread, first - 1, EVENTS_READ_MAX, before=last + 1)
                                self._hub.publish(events)
                            except StoreError:  # watchers read the journal when the database is back
                                self._hub.lose()
                await self._stir.wait()

    # ---- out ----

    def _put(self, item: _Item) -> None:
        if len(self._outgoing) >= OUTGOING_MAX:
            self._outgoing = deque(one for one in self._outgoing if isinstance(one, _Journaled))
        if len(self._outgoing) < OUTGOING_MAX or isinstance(item, _Journaled):
            self._outgoing.append(item)

    async def _send_forever(self) -> None:
        while True:
            await anyio.sleep(BATCH_SECONDS)
            while self._outgoing:
                payload = self._next_payload()
                try:
                    async with self._pool.connection() as connection:
                        await connection.execute(b"select pg_notify(%s, %s)", [CHANNEL, payload])
                except psycopg.Error as error:  # others read the journal again when they are back
                    log.debug("live events were not sent", extra={"why": str(error)})

    def _next_payload(self) -> str:
        batch = _Batch(self._origin, [])
        size = len(_encoder.encode(batch))
        while self._outgoing:
            item = self._outgoing[0]
            if isinstance(item, _Text):
                text = item.text  # what is too long for one payload is put behind the item
                keep = min(len(text), TEXT_BYTES_MAX)
                while len(_encoder.encode(text[:keep])) > TEXT_BYTES_MAX:
                    keep //= 2
                if keep < len(text):
                    self._outgoing.popleft()
                    self._outgoing.appendleft(
                        msgspec.structs.replace(item, text=text[keep:], offset=item.offset + keep)
                    )
                    item.text = text[:keep]
                    self._outgoing.appendleft(item)
            length = len(_encoder.encode(item)) + 1
            if size + length > PAYLOAD_BYTES_MAX and batch.items:
                break
            size += length
            batch.items.append(self._outgoing.popleft())
        return _encoder.encode(batch).decode()

    # ---- in ----

    def _hear(self, payload: str) -> None:
        batch = _decoder.decode(payload)
        if batch.origin == self._origin:
            return
        if len(self._incoming) + len(batch.items) > INCOMING_MAX:
            self._incoming.clear()
            self._hub.lose()
            return
        self._incoming.extend(item for item in batch.items if self._hub.watched(ThreadId(item.thread)))
        self._stir.set()
