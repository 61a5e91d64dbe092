"""Notifications between the processes that share a database, and exclusive names.

Notifications: each process has one LISTEN connection, which reconnects automatically. Notifications are lost while
it is disconnected, so they are only hints. The content is in rows, and every listener also provides a function that
reads the rows after a reconnection.

Exclusive names: only one process at a time uses a bot's token, and another process takes over when that process
dies. Every process requests each name as a PostgreSQL advisory lock on its own connection. The server releases a
lock when the connection ends. To detect frozen processes and lost machines, the server ends a connection that is
silent for `stalled_seconds`. Healthy processes send a request every `beat_seconds`. After a frozen process resumes,
two processes may serve the same name for up to one beat. Messages that both receive are stored once.

Live events: a bridge shows the events of all processes in every process. Workers send them by NOTIFY.

    event                      notification                       effect in another process
    ------------------------   --------------------------------   ---------------------------------------------------
    journal events             the thread and the event numbers   reads the events if the thread has subscribers
    streamed text              the text of BATCH_SECONDS          shows the text in larger pieces
    status                     the status                         shows the status
    output of a running call   the output                         shows the output
    lost connection            none                               makes the subscribers read the journal again

Live text is only a preview. Text beyond the limits is dropped, because the journal contains all of it.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import anyio
import msgspec
import psycopg
from anyio.abc import TaskGroup
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool

from shoal.kernel.errors import StoreError
from shoal.kernel.events import Event, LiveData, OutputShown, StatusChanged, TextStreamed, ThinkingStreamed
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.ports import LiveHub
from shoal.store.journal import Journal

log = logging.getLogger(__name__)

Pool: TypeAlias = AsyncConnectionPool[AsyncConnection]

RECONNECT_SECONDS = 1.0
CHECK_SECONDS = 10.0
"""Seconds of silence after which the connection is checked."""


def why(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Listener:
    """Dispatches notifications of the database to subscribers. The app runs it while the process serves."""

    def __init__(self, address: str, *, reconnect_seconds: float = RECONNECT_SECONDS) -> None:
        self._address = address
        self._reconnect_seconds = reconnect_seconds
        self._subscribers: list[tuple[str, Callable[[str], None], Callable[[], None]]] = []
        self.is_connected = False

    def listen(self, channel: str, heard: Callable[[str], None], connected: Callable[[], None]) -> None:
        """Call `heard` with each payload, and `connected` whenever the connection is established.

        Call this before `run`. Neither function may block.
        """
        self._subscribers.append((channel, heard, connected))

    async def run(self) -> None:
        while True:
            try:
                async with await AsyncConnection.connect(self._address, autocommit=True) as connection:
                    await self._listen(connection)
            except psycopg.OperationalError as error:
                if self.is_connected:
                    log.warning("database notifications stopped, reconnecting", extra={"why": why(error)})
            finally:
                self.is_connected = False
            await anyio.sleep(self._reconnect_seconds)

    async def _listen(self, connection: AsyncConnection) -> None:
        for channel in {channel for channel, _, _ in self._subscribers}:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self.is_connected = True
        for _, _, connected in self._subscribers:
            connected()
        while True:
            async for notification in connection.notifies(timeout=CHECK_SECONDS):
                for channel, heard, _ in self._subscribers:
                    if channel == notification.channel:
                        heard(notification.payload)
            await connection.execute("select 1")


_LIMITS = b"""
select set_config('idle_session_timeout', %(silence)s, false), set_config('tcp_keepalives_idle', '5', false),
    set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '3', false)
"""
_ASK = b"select pg_try_advisory_lock(hashtextextended(%s, 1936224353))"


class Holder:
    """Claims the requested names that no other process holds, and runs their services."""

    def __init__(self, address: str, *, beat_seconds: float = 2.0, stalled_seconds: float = 10.0) -> None:
        self._address = address
        self._beat_seconds = beat_seconds
        self._stalled_seconds = stalled_seconds
        self._wanted: dict[str, Callable[[], Awaitable[None]]] = {}
        self._held: set[str] = set()
        self._is_away = False

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self._held)

    def want(self, name: str, serve: Callable[[], Awaitable[None]]) -> None:
        """Run `serve` while this process holds the name. `serve` is cancelled if the name is lost, and may run again
        later.

        Call this before `run`.
        """
        self._wanted[name] = serve

    async def run(self) -> None:
        """Claim and serve all available names until cancelled. Raises the exceptions of `serve`."""
        while self._wanted:
            try:
                async with await AsyncConnection.connect(self._address, autocommit=True) as connection:
                    self._is_away = False
                    await connection.execute(_LIMITS, {"silence": f"{round(self._stalled_seconds * 1000)}ms"})
                    async with anyio.create_task_group() as serving:
                        is_connected = True
                        while is_connected:
                            is_connected = await self._ask(connection, serving)
                            await anyio.sleep(self._beat_seconds if is_connected else 0)
                        serving.cancel_scope.cancel()  # the server has released all locks
            except psycopg.OperationalError as error:
                if not self._is_away:
                    log.warning("advisory locks released: database unavailable", extra={"why": why(error)})
                self._is_away = True
            await anyio.sleep(self._beat_seconds)

    async def _ask(self, connection: AsyncConnection, serving: TaskGroup) -> bool:
        """Request the names that this process does not hold.

        Return False if the connection is lost, because all names are then lost too.
        """
        try:
            await connection.execute(b"select 1")
            for name in self._wanted.keys() - self._held:
                row = await (await connection.execute(_ASK, [name])).fetchone()
                if row is not None and row[0]:
                    self._held.add(name)
                    serving.start_soon(self._serve, name)
        except psycopg.OperationalError as error:
            log.warning("lost the advisory locks", extra={"names": sorted(self._held), "why": why(error)})
            return False
        return True

    async def _serve(self, name: str) -> None:
        log.info("started serving", extra={"held": name})
        try:
            await self._wanted[name]()
            # keep the name after `serve` has ended; otherwise another process would restart it
            await anyio.sleep_forever()
        finally:
            self._held.discard(name)


# ---- live events ----

LIVE_CHANNEL = "shoal_live"
BATCH_SECONDS = 0.05
PAYLOAD_BYTES_MAX = 7900
"""Maximum size of a payload. PostgreSQL's limit is just below 8,000 bytes."""
TEXT_BYTES_MAX = 6000
"""Maximum size of a text as JSON in one item. Longer texts are split."""
OUTGOING_MAX = 2000
INCOMING_MAX = 2000
EVENTS_READ_MAX = 1000


class Watched(LiveHub, Protocol):
    """The part of this process's hub that the bridge uses."""

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
    is_thought: bool = False


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
    """Implements `LiveHub` for the hubs of all processes. `origin` must be different in each process."""

    def __init__(self, hub: Watched, journal: Journal, pool: Pool, listener: Listener, origin: str) -> None:
        self._hub = hub
        self._journal = journal
        self._pool = pool
        self._origin = origin
        self._outgoing: deque[_Item] = deque()
        self._incoming: deque[_Item] = deque()
        self._stir = anyio.Event()
        listener.listen(LIVE_CHANNEL, self.receive, hub.lose)

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
            case TextStreamed() | ThinkingStreamed():
                text, step, offset = data.text, data.step, data.offset
                is_thought = isinstance(data, ThinkingStreamed)
                written = _Text(thread, turn, step, text, offset, data.after, is_thought)
                for item in reversed(self._outgoing):
                    if isinstance(item, _Text) and (item.turn, item.step, item.is_thought) == (turn, step, is_thought):
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
        """Return True, because another process may have subscribers."""
        return True

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_forever)
            while True:
                self._stir = anyio.Event()
                while self._incoming:
                    item = self._incoming.popleft()
                    thread = ThreadId(item.thread)
                    match item:
                        case _Text(turn=turn, step=step, text=text, offset=offset, after=after):
                            thought = ThinkingStreamed(text, step, offset, after) if item.is_thought else None
                            written = thought or TextStreamed(text, step, offset, after)
                            self._hub.show(thread, TurnId(turn), written)
                        case _Status(turn=turn, state=state, text=text, seconds=seconds):
                            self._hub.show(thread, TurnId(turn), StatusChanged(state, text, seconds))
                        case _Output(turn=turn, call_id=call_id, text=text, seconds=seconds):
                            self._hub.show(thread, TurnId(turn), OutputShown(CallId(call_id), text, seconds))
                        case _Journaled(first=first, last=last):
                            try:
                                events = await self._journal.events(thread, first - 1, EVENTS_READ_MAX, before=last + 1)
                                self._hub.publish(events)
                            except StoreError:  # subscribers can read the journal when the database is back
                                self._hub.lose()
                await self._stir.wait()

    # ---- sending ----

    def _put(self, item: _Item) -> None:
        if len(self._outgoing) >= OUTGOING_MAX:
            self._outgoing = deque(item for item in self._outgoing if isinstance(item, _Journaled))
        if len(self._outgoing) < OUTGOING_MAX or isinstance(item, _Journaled):
            self._outgoing.append(item)

    async def _send_forever(self) -> None:
        while True:
            await anyio.sleep(BATCH_SECONDS)
            while payload := self.next_payload():
                try:
                    async with self._pool.connection() as connection:
                        await connection.execute(b"select pg_notify(%s, %s)", [LIVE_CHANNEL, payload])
                except psycopg.Error as error:  # other processes read the journal again after they reconnect
                    log.debug("sending live events failed", extra={"why": str(error)})

    def next_payload(self) -> str:
        """Encode as many waiting items as fit into one notification. Return an empty string if no item is waiting."""
        if not self._outgoing:
            return ""
        batch = _Batch(self._origin, [])
        size = len(_encoder.encode(batch))
        while self._outgoing:
            item = self._outgoing[0]
            if isinstance(item, _Text):
                text = item.text  # split a text that is too long; the rest is sent next
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

    # ---- receiving ----

    def receive(self, payload: str) -> None:
        batch = _decoder.decode(payload)
        if batch.origin == self._origin:
            return
        if len(self._incoming) + len(batch.items) > INCOMING_MAX:
            self._incoming.clear()
            self._hub.lose()
            return
        self._incoming.extend(item for item in batch.items if self._hub.watched(ThreadId(item.thread)))
        self._stir.set()
