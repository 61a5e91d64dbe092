"""Code that adapters share: event intake, button actions, edits that arrive early, channel servers and files."""

import asyncio
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, ItemsView
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import anyio.abc
import msgspec

from shoal.kernel.agents import servers_scope
from shoal.kernel.clock import Clock, retry_delay, to_micros
from shoal.kernel.crash_log import CrashLog, SetAside
from shoal.kernel.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidId,
    InvalidInput,
    NotFound,
    PlatformError,
    StoreError,
    system_words,
)
from shoal.kernel.events import Scope
from shoal.kernel.home import Home
from shoal.kernel.ids import ApprovalId, CardId, ThreadId, channel_of, encode_part
from shoal.kernel.messages import Abort, Attachment, Author, Deletion, Edit, Prompt, Receipt, Retry
from shoal.kernel.ports import InboxPort, Settings
from shoal.kernel.posts import CHOOSING, ticked_numbers
from shoal.kernel.regular_files import regular_only

log = logging.getLogger(__name__)
V = TypeVar("V")

BUSY = "I am busy: too many messages are waiting. Try again in a moment, or write /stop all."
DECIDED = frozenset({"Allowed.", "Denied.", CHOOSING})
"""Results of `press` that need no separate reply, because the updated approval message shows them."""
PENDING_EDITS_MAX = 200
KNOWN_SERVERS_MAX = 10_000
NAME_BYTES_MAX = 120
PATIENCE_SECONDS = 0.5
"""Maximum number of seconds that a stream waits while an event is processed. After that, the event is stored and the
stream continues with other chats.
"""
SLOW_MAX = 16
"""Maximum number of chats with a slow event at the same time. Each event may load a file into memory."""
WAITING_MAX = 1000


class Recent(Generic[V]):
    """Mapping with at most `size` entries. Evicts the least recently used entry."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, V] = OrderedDict()

    def put(self, key: str, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def get(self, key: str) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def pop(self, key: str) -> V | None:
        return self._entries.pop(key, None)

    def items(self) -> ItemsView[str, V]:
        return self._entries.items()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def time_of(text: str, now: datetime) -> datetime:
    """Parse an ISO 8601 time with an offset. Returns `now` if the text is invalid."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else now
    except (ValueError, OverflowError):
        return now


# ---- messages and buttons ----


async def submit(prompt: Prompt, inbox: InboxPort) -> str:
    """Send a message to the inbox. Returns the reply to its author, which is often empty. Raises StoreError.

    The message's files are deleted unless a turn will use them, because only a turn taints files from untrusted people.
    """
    receipt = Receipt("dropped")
    try:
        receipt = await inbox.send(prompt)
        return receipt.answer or (BUSY if receipt.status == "busy" else "")
    finally:
        if prompt.attachments and receipt.status != "accepted":
            await asyncio.to_thread(remove_attachments, prompt)


async def press(value: str, thread: ThreadId, author: Author, inbox: InboxPort) -> str:
    """Run the action in a button's value. Returns the reply to the person. Raises StoreError.

    - `allow:ID` and `deny:ID` decide an approval. `thread:ID` approves it for the whole thread.
    - `always:ID` allows the call and creates a rule. `back:ID` removes that rule.
    - `all:CARD` and `none:CARD` allow or deny all calls of a card.
    - `pick:CARD:TICKS` changes the selected calls of a card.
    - `take:CARD:TICKS` allows the selected calls and denies the others.
    - `undo:CARD` restores the files that the card's turn changed.
    - `retry:TURN` and `retry:TURN:MODEL` retry a turn that is waiting for its model. `retry:TURN:stop` stops that turn.
    """
    verb, _, what = value.partition(":")
    try:
        match verb:
            case "allow" | "thread" | "deny" if what:
                asker = author.asker(thread, "untrusted")  # the access rules may grant a higher role
                scope: Scope = "thread" if verb == "thread" else "once"
                state = await inbox.decide(ApprovalId(what), verb != "deny", asker, scope)
                return "Denied." if state == "deny" else "Allowed."
            case "all" | "none" if what:
                return await inbox.decide_card(CardId(what), verb == "all", author.asker(thread, "untrusted"))
            case "always" if what:
                return await inbox.always(ApprovalId(what), author.asker(thread, "untrusted"))
            case "back" if what:
                return await inbox.take_back(ApprovalId(what), author.asker(thread, "untrusted"))
            case "undo" if what:
                return await inbox.undo_files(CardId(what), author.asker(thread, "untrusted"))
            case "pick" | "take" if what:
                card, _, mask = what.partition(":")
                asker, numbers = author.asker(thread, "untrusted"), ticked_numbers(mask)
                if verb == "pick":
                    return await inbox.choose(CardId(card), numbers, asker)
                return await inbox.decide_card(CardId(card), True, asker, numbers)
            case "retry" if what:
                turn, _, model = what.partition(":")
                stops = model == "stop"
                change = Abort(thread, author, turn=turn) if stops else Retry(thread, author, turn, model)
                receipt = await inbox.send(change)
                if not receipt.delivered:
                    return "That turn has ended."
                return "Stopping." if stops else "Trying again."
            case _:
                return "This button no longer works."
    except (NotFound, Conflict, Gone, Forbidden, InvalidInput) as error:
        return str(error)
    except ValueError:  # invalid ticks
        return "This button no longer works."


# ---- events ----


class _Event(msgspec.Struct, eq=False):
    """An event of a chat. `key` identifies the stored copy. It is empty if the event is not stored."""

    lane: str
    content: str
    key: str = ""
    had_effect: bool = False
    error: PlatformError | StoreError | None = None
    is_over: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class Intake:
    """Processes the events of one account, in order within each chat.

    `take` processes an event and returns whether it had an effect. If it raises StoreError or PlatformError, the event
    is retried. A permanent or barred PlatformError, or any other error, drops the event.

    event                    processing
    ----------------------   ---------------------------------------------------------------------------------
    fast event               processed while the stream waits (after an error, the platform delivers it again)
    slow event               stored after PATIENCE_SECONDS, and the stream continues with other chats
    event after a slow one   stored, and processed after the slow event

    A stored event is retried until it succeeds, even after a restart, and then deleted. A slow chat does not delay
    other chats. The stream waits only if SLOW_MAX chats are slow or WAITING_MAX events wait.

    If the process crashes twice while processing the same event, the next start sets the event aside and notifies the
    owner.
    """

    def __init__(self, platform: str, store: Settings, clock: Clock, crash_file: Path | None = None) -> None:
        self._crash_log = CrashLog(crash_file)
        self._platform = platform
        self._scope = f"intake:{platform}"
        self._store = store
        self._clock = clock
        self._lanes: dict[str, deque[_Event]] = {}
        self._waiting = self._kept_at = 0
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()

    async def open(self, tasks: anyio.abc.TaskGroup, take: Callable[[str], Awaitable[bool]]) -> None:
        """Continue with the events that an earlier process stored, in order within each chat. Raises StoreError."""
        self._crash_log.open()
        await self._crash_log.share(self._store)
        left = await self._store.page(self._scope, limit=WAITING_MAX)
        self._tasks, self._take, self._lanes, self._waiting = tasks, take, {}, 0
        self._kept_at = max((int(key.partition(".")[0]) for key, _ in left), default=self._kept_at)
        for key, value in left:
            lane, content = msgspec.json.decode(value, type=tuple[str, str])
            self._queue(_Event(lane, content, key))

    async def put(self, lane: str, content: str) -> bool:
        """Process an event of a chat, or store it for later. Returns True if the event had an effect or was stored.
        Raises StoreError or PlatformError if the platform must deliver the event again.
        """
        event = _Event(lane, content)
        while self._waiting >= WAITING_MAX or (lane not in self._lanes and len(self._lanes) >= SLOW_MAX):
            self._room.clear()
            await self._room.wait()
        if lane in self._lanes:
            await self._keep(event)
            self._queue(event)
            return True
        self._queue(event)
        await self._clock.wait(event.is_over, PATIENCE_SECONDS)
        await self._keep(event)
        if event.error is not None:
            raise event.error
        return event.had_effect or bool(event.key)

    def _queue(self, event: _Event) -> None:
        self._waiting += 1
        if event.lane in self._lanes:
            self._lanes[event.lane].append(event)
        else:
            self._lanes[event.lane] = deque([event])
            self._tasks.start_soon(self._serve, event.lane)

    async def _serve(self, lane: str) -> None:
        waiting, failures = self._lanes[lane], 0
        extra = {"platform": self._platform, "channel": lane}
        try:
            while waiting:
                event = waiting[0]
                try:
                    try:
                        if self._crash_log.begin(_key(event)):
                            event.had_effect = await self._take(event.content)
                        else:
                            await self._set_aside(event)
                    finally:
                        self._crash_log.end(_key(event))
                    await self._forget(event)
                    await self._crash_log.forget_over()
                except (PlatformError, StoreError, InvalidId) as error:
                    refused = isinstance(error, PlatformError) and (error.permanent or error.barred)
                    if isinstance(error, InvalidId) or refused:
                        log.warning("event dropped: %s", error, extra=extra)
                        await self._forget(event)
                    elif event.key:
                        failures += 1
                        level = logging.WARNING if failures == 1 else logging.INFO
                        log.log(level, "retrying event: %s", error, extra=extra)
                        asked = error.retry_after_seconds if isinstance(error, PlatformError) else None
                        await self._clock.sleep(retry_delay(failures, asked))
                        continue
                    else:
                        event.error = error
                except Exception:  # a retry would fail again and stop the account
                    log.exception("event dropped because of a bug in Shoal", extra=extra)
                    await self._forget(event)
                waiting.popleft()
                failures = 0
                self._waiting -= 1
                event.is_over.set()
                self._room.set()
        finally:
            del self._lanes[lane]
            self._room.set()

    async def _set_aside(self, event: _Event) -> None:
        log.error(
            "event set aside after crashing the process twice",
            extra={"platform": self._platform, "channel": event.lane},
        )
        await self._crash_log.set_aside(SetAside(self._platform, event.lane, event.content), self._clock)

    async def _keep(self, event: _Event) -> None:
        async with self._writing:
            if not event.is_over.is_set():
                # Keys must increase even if the clock goes backward.
                self._kept_at = max(self._kept_at + 1, to_micros(self._clock.now()))
                event.key = f"{self._kept_at:020}"
                await self._store.put(self._scope, event.key, _kept(event))

    async def _forget(self, event: _Event) -> None:
        if event.key:
            async with self._writing:  # `_keep` may be storing the event
                await self._store.drop(self._scope, event.key, _kept(event))


def _key(event: _Event) -> str:
    """Return the event's key in the crash log. The key contains the content, which includes the platform's id, because
    the event's position may change after a restart.
    """
    return f"{event.lane} {event.content}"


def _kept(event: _Event) -> str:
    return msgspec.json.encode((event.lane, event.content)).decode()


# ---- edits before their message, and servers ----


class PendingEdits:
    """Edits and deletions that arrived before their message, on platforms that do not guarantee the order.

    Stores the newest change for each of the last PENDING_EDITS_MAX messages.
    """

    def __init__(self) -> None:
        self._changes: Recent[Edit | Deletion] = Recent(PENDING_EDITS_MAX)

    async def send(self, change: Edit | Deletion, inbox: InboxPort) -> None:
        """Send a change to the thread of its message, or store it until the message arrives. Raises StoreError.

        Only the channel in `change.thread` is used.
        """
        thread = await inbox.thread_of(channel_of(change.thread), "", change.key)
        if thread is None:
            self.keep(change)
        else:
            await inbox.send(msgspec.structs.replace(change, thread=thread))

    def keep(self, change: Edit | Deletion) -> None:
        """Store a change until its message arrives, unless a later change is already stored."""
        stored = self._changes.get(change.key)
        is_older = isinstance(stored, Deletion) or (
            isinstance(stored, Edit)
            and isinstance(change, Edit)
            and stored.at is not None
            and change.at is not None
            and change.at < stored.at
        )
        if not is_older:
            self._changes.put(change.key, change)

    def apply(self, prompt: Prompt) -> Prompt | None:
        """Apply the pending change to a message. If the message was deleted, delete its files and return None."""
        change = self._changes.get(prompt.key)
        if isinstance(change, Deletion):
            remove_attachments(prompt)
            return None
        if change is None or change.author.id != prompt.author.id:
            return prompt
        return msgspec.structs.replace(
            prompt, text=change.text, tainted_by=prompt.tainted_by or change.tainted_by, edited_at=change.at
        )


class ChannelServers:
    """Stores the server of each channel, such as a Discord guild or a team in Teams. `AgentStore.server_of` reads it,
    because thread ids do not contain the server.
    """

    def __init__(self, platform: str, store: Settings) -> None:
        self._scope = servers_scope(platform)
        self._store = store
        self._known: Recent[str] = Recent(KNOWN_SERVERS_MAX)

    async def note(self, channel: str, server: str) -> None:
        """Store a channel's server. Does nothing if `server` is empty. Raises StoreError."""
        if not server or self._known.get(channel) == server:
            return
        if await self._store.get(self._scope, channel) != server:
            await self._store.put(self._scope, channel, server)
        self._known.put(channel, server)


# ---- files ----


async def save_attachment(
    home: Home, clock: Clock, thread: ThreadId, file: Attachment, fetch: Callable[[], Awaitable[bytes]]
) -> Attachment:
    """Download a file into the thread's attachments. Returns the attachment with its path, or with an error."""
    try:
        body = await fetch()
        path = home.attachments(thread) / f"{clock.new_id()}-{short_name(file.name)}"

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                target.write(body)
                target.flush()
                os.fsync(target.fileno())  # the file must be durable before the message is acknowledged

        await asyncio.to_thread(write)
    except PlatformError as error:
        return msgspec.structs.replace(file, error=str(error))
    except OSError as error:
        return msgspec.structs.replace(file, error=f"not stored: {system_words(error)}")
    return msgspec.structs.replace(file, size_bytes=len(body), path=str(path))


def short_name(name: str) -> str:
    """Encode a file name and keep its last NAME_BYTES_MAX bytes."""
    return encode_part(name).encode()[-NAME_BYTES_MAX:].decode("utf-8", "ignore")


def remove_attachments(prompt: Prompt) -> None:
    for file in prompt.attachments:
        if file.path:
            with suppress(OSError):
                Path(file.path).unlink()


def read_file(path: Path, bytes_max: int) -> bytes:
    """Read a file to upload. Raises PlatformError, which is permanent if the file is missing or too large."""
    with open_file(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise PlatformError(f"{path.name!r} is larger than {bytes_max:,} bytes. Send a smaller file.", permanent=True)
    return content


@contextmanager
def open_file(path: Path) -> Generator[BinaryIO]:
    """Open a file to upload. Raises PlatformError if the file cannot be read. The error is permanent if the file is
    missing.
    """
    try:
        with open(path, "rb", opener=regular_only) as content:
            yield content
    except OSError as error:
        reason = f"Cannot read {path.name!r}: {error.strerror}."
        raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
