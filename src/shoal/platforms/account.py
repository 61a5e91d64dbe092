"""Base class for platform accounts: connection, backoff, incoming messages and replies."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

import anyio
import anyio.abc
import msgspec

from shoal.kernel.clock import Clock, retry_delay
from shoal.kernel.errors import ConfigError, PlatformError, StoreError
from shoal.kernel.home import Home
from shoal.kernel.ids import (
    UNOPENED,
    WHOLE_CHANNEL,
    ThreadId,
    channel_of,
    encode_part,
    make_thread_id,
    thread_address,
)
from shoal.kernel.messages import Attachment, Author, Prompt, Reaction, Reference
from shoal.kernel.moved import MovedChats
from shoal.kernel.ports import InboxPort, Settings, channel_names
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.kernel.settings_platforms import AccountSettings
from shoal.kernel.untrusted import UNREADABLE, decode_known
from shoal.kernel.webhooks import HttpAnswer
from shoal.markdown.render import rendered_length
from shoal.platforms.inbox import Intake, PendingEdits, Recent, save_attachment, submit

log = logging.getLogger(__name__)
S = TypeVar("S", bound=AccountSettings)
T = TypeVar("T")

UNAUTHORIZED = HttpAnswer(401, b'{"error":"unauthorized","message":"The signature or token is missing or wrong."}')
NOT_READY = HttpAnswer(503, b'{"error":"unavailable","message":"Shoal is not ready yet. Send it again."}')
NOT_STORED = HttpAnswer(503, b'{"error":"unavailable","message":"The event was not stored. Send it again."}')
TAKEN = HttpAnswer(200, b"{}")

BEFORE_MAX = 8
"""Maximum number of earlier channel messages that are included with a mention."""
BEFORE_HOURS = 6.0
CHANGED_HOURS = 24.0
"""Maximum age of a message that can start a turn through an edit, for example one that adds a mention."""
CONTEXT_SECONDS_MAX = 3.0
"""Timeout for reading earlier messages as context for a mention. If it expires, only cached messages are included."""
OVERHEARD_MAX = 1000
"""Maximum number of channels and threads for which Shoal caches messages that are not addressed to the agent."""
ENTERED_MAX = 1000
CHANNELS_NAMED_MAX, CHANNEL_NAME_CHARS_MAX = 1000, 120
BEGUN_MAX = 1000
"""Maximum number of people whose last thread-opening message is cached."""
NOTHING_READ = "I cannot read your message. Please write it as text."
MOVED = "This chat has a new id. Our conversations, schedules and rules continue here."
NOTHING_ASKED = "Yes? Please put your question in the same message as the mention."
GREETING = "Hello! Mention me, or write to me directly, and I will answer. /help shows what I can do."

FILES_MAX = 10
"""Maximum number of files downloaded per message. The agent sees only the names of the others."""
UNKNOWN_MAX = 100

EXPECTED = (PlatformError, ConfigError, StoreError)
"""Errors that a connection may raise in normal operation. Any other error is a bug in Shoal or the adapter."""

IncomingFile: TypeAlias = tuple[Attachment, Callable[[], Awaitable[bytes]] | None]
"""A file in a message, and a function that downloads it. The function raises PlatformError. The function is None if the
attachment has a `url`, because the turn downloads such a file.
"""


class ChatAccount(Generic[S]):
    """Base class of every adapter that connects to a platform.

    A subclass sets `limits` and implements `_connect`, `post`, `edit`, `open_thread` and `close`. It also implements:
    - `typing` and `history`, if the platform supports them.
    - `_process_event`, if the platform delivers events in one stream. The subclass passes these events to `_intake`.

    Attributes:
    - `connected`: set while messages can arrive.
    - `failed`: set after a connection failed. `failure` contains the reason.
    - `_inbox`: set while `run` accepts messages.
    - `_inbound_url`: the URL that the platform calls, or empty.
    """

    limits: ChatLimits
    whispers: ClassVar[bool] = False
    """True if a reply in a channel can be visible to only one person."""
    download_bytes_max: ClassVar[int] = 26_214_400
    """Maximum size of downloaded files. The agent sees only the names of larger files."""

    def __init__(
        self, platform: str, settings: S, home: Home, store: Settings, clock: Clock, inbound_url: str = ""
    ) -> None:
        self.platform = platform
        self.connected = asyncio.Event()
        self.failed = asyncio.Event()
        self.failure = ""
        self._settings = settings
        self._home = home
        self._store = store
        self._clock = clock
        self._inbound_url = inbound_url
        self._inbox: InboxPort | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._intake = Intake(platform, store, clock, home.root / "begun" / encode_part(platform))
        self._pending = PendingEdits()
        self._moves = MovedChats(platform, store)
        self.notify_owner: Callable[[str], Awaitable[None]] = _log_unsent_notice
        """Function that sends the owner a private notice. Set by the app."""
        self._overheard: Recent[deque[tuple[Prompt, tuple[IncomingFile, ...]]]] = Recent(OVERHEARD_MAX)
        self._entered: Recent[bool] = Recent(ENTERED_MAX)
        """Threads with a mention that is being processed. The value is True for the first mention in the thread."""
        self._begun: Recent[Prompt] = Recent(BEGUN_MAX)
        self._names: Recent[str] = Recent(CHANNELS_NAMED_MAX)
        self._unknown: set[str] = set()
        self._failures = 0

    # ---- connection ----

    async def run(self, inbox: InboxPort) -> None:
        """Receive messages until cancelled. After a failure, reconnect with backoff.

        When it is cancelled, the connections stay open for posts that are under way, and the caller must call `close`.
        Raises StoreError only from background tasks. All other errors are logged and do not affect other accounts.
        """
        while True:
            unforeseen: Exception | None = None
            try:
                async with anyio.create_task_group() as self._tasks:
                    await self._keep_connected(inbox)
            except* StoreError:
                raise
            except* Exception as group:  # noqa: BLE001  every error is logged below, followed by a pause
                unforeseen = group.exceptions[0]
            finally:
                self._inbox = self._tasks = None
                self.connected.clear()
            await self.close()
            await self._wait_after(unforeseen or PlatformError("The connection ended."))

    async def _keep_connected(self, inbox: InboxPort) -> None:
        is_open = False
        while True:
            try:
                if self._tasks is not None and not is_open:
                    await self._moves.load()
                    await self._intake.open(self._tasks, lambda event: self._process_event(event, inbox))
                    is_open = True
                await self._connect(inbox)
            except EXPECTED as error:
                await self._wait_after(error)

    async def _wait_after(self, error: Exception) -> None:
        """Wait at least as long as the platform requested. If a failure repeats, only the first one is logged as a
        warning.
        """
        self._failures += 1
        asked = error.retry_after_seconds if isinstance(error, PlatformError) else None
        seconds = retry_delay(self._failures, asked)
        reason = str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"
        level = logging.INFO if reason == self.failure else logging.WARNING
        self.failure = reason
        self.failed.set()
        extra = {"platform": self.platform, "again_in_seconds": round(seconds, 1)}
        log.log(level, "%s", reason, extra=extra, exc_info=None if isinstance(error, EXPECTED) else error)
        await self._clock.sleep(seconds)

    async def _connect(self, inbox: InboxPort) -> None:
        """Connect and receive messages until the connection ends. Raises PlatformError, ConfigError or StoreError if it
        fails.
        """
        raise NotImplementedError

    async def _process_event(self, event: str, inbox: InboxPort) -> bool:
        """Process an event from `_intake`. Returns whether the event had an effect.

        To receive the event again, raise StoreError or a temporary PlatformError. A permanent PlatformError drops the
        event.
        """
        raise NotImplementedError

    def _reset_backoff(self) -> None:
        self._failures, self.failure = 0, ""
        self.failed.clear()

    async def close(self) -> None:
        """Close the connections. Called before `run` reconnects, and after `run` and the last post have ended."""
        raise NotImplementedError

    async def check(self) -> None:
        """Verify the credentials. Raises PlatformError. Override this if connecting does not verify them."""

    # ---- receiving ----

    async def _take_in(self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = ()) -> None:
        """Send a message to the inbox and post the immediate reply. Raises StoreError."""
        answer = await self._submit(prompt, inbox, files)
        if answer:
            await self._answer(prompt, answer)

    async def _submit(self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = ()) -> str:
        """Send a message and its files to the inbox. Returns the immediate reply to the author, or an empty string.

        Files are downloaded only if the author has access. The first mention in a thread includes earlier messages as
        context.
        """
        coming, prompt = tuple(files), self._with_its_lines(prompt, inbox)
        named = None if prompt.direct else self._entered.pop(prompt.thread)
        is_entered = named and inbox.commands.parse(prompt.text) is None
        is_plain = prompt.text and not (coming or is_entered)
        if not is_plain and not await inbox.admits(prompt):
            return ""
        if is_entered:
            refers_to, further = await self._context_of(prompt)
            prompt = msgspec.structs.replace(prompt, refers_to=(*refers_to, *prompt.refers_to))
            coming += further
        is_named = named is not None and not prompt.joins
        is_about = any(reference.text and (is_named or reference.kind == "forward") for reference in prompt.refers_to)
        if not (coming or prompt.text or is_about):
            return NOTHING_ASKED if is_named else NOTHING_READ
        saved: list[Attachment] = []
        for number, (file, fetch) in enumerate(coming):
            refusal = ""
            if number >= FILES_MAX:
                refusal = f"Shoal downloads at most {FILES_MAX} files per message."
            elif file.size_bytes > self.download_bytes_max:
                refusal = (
                    f"The file has {file.size_bytes} bytes. Shoal downloads at most {self.download_bytes_max} bytes."
                )
            if refusal:
                saved.append(msgspec.structs.replace(file, error=refusal))
            elif fetch is None:
                saved.append(file)
            else:
                saved.append(await save_attachment(self._home, self._clock, prompt.thread, file, fetch))
        changed = self._pending.apply(msgspec.structs.replace(prompt, attachments=tuple(saved)))
        return await submit(changed, inbox) if changed is not None else ""

    async def _is_unheard(self, prompt: Prompt, prefix: str, inbox: InboxPort) -> bool:
        """Return True if the agent has not received the edited message and it is at most CHANGED_HOURS old."""
        is_new = self._clock.now() - prompt.at <= timedelta(hours=CHANGED_HOURS)
        return is_new and await inbox.thread_of(prefix, "", prompt.key) is None

    def _prefix(self, channel: str) -> str:
        """Return the prefix of all thread ids in a channel. Raises InvalidId."""
        return channel_of(make_thread_id(self.platform, self._moves.first_id(channel), "0"))

    async def _chat_moved(self, old: str, new: str) -> None:
        """Record a chat's new id, then notify the chat and the owner."""
        if not await self._moves.note(old, new):
            return
        first = self._moves.first_id(old)
        log.warning("chat migrated", extra={"platform": self.platform, "channel": old, "to": new})
        thread = make_thread_id(self.platform, first, WHOLE_CHANNEL)
        await self._say(thread, f"moved:{first}:{new}", MOVED)
        named = old in (*self._settings.channels, *self._settings.allow)
        change = (
            f' In shoal.toml, replace "{old}" with "{new}" under platforms.{self.platform}. Until then, both ids work.'
        )
        message = (
            f"The id of the {self.platform} chat {old} has changed to {new}. Its conversations, schedules and rules "
            "continue."
        )
        await self.notify_owner(message + (change if named else ""))

    async def _channel_named(self, channel: str, name: str) -> None:
        """Store a group's name, which lets people select the group by name. Raises StoreError."""
        first, name = self._moves.first_id(channel), " ".join(name.split())[:CHANNEL_NAME_CHARS_MAX]
        if not name or self._names.get(first) == name:
            return
        self._names.put(first, name)
        scope = channel_names(self.platform)
        if await self._store.get(scope, first) != name:
            await self._store.put(scope, first, name)

    async def _learn_name(self, channel: str) -> None:
        """Request a group's name once, for platforms that do not include it in messages."""
        first = self._moves.first_id(channel)
        if self._names.get(first) is not None:
            return
        name = ""
        try:
            name = await self._name_of(channel)
        except PlatformError as error:
            extra = {"platform": self.platform, "channel": channel, "why": str(error)}
            log.info("group name lookup failed", extra=extra)
        if name.strip():
            await self._channel_named(channel, name)
        else:
            self._names.put(first, "")

    async def _name_of(self, channel: str) -> str:
        """Return a group's name, or an empty string. Override this if the platform's messages do not include the
        name.
        """
        return ""

    async def _subscribe(self, thread: ThreadId) -> None:
        """Treat all later messages in this thread as addressed to the agent. Raises StoreError."""
        await self._store.put(f"subscribed:{self.platform}", thread, "1")

    async def _is_subscribed(self, thread: ThreadId) -> bool:
        return await self._store.get(f"subscribed:{self.platform}", thread) is not None

    async def _is_for_agent(
        self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = (), *, is_named: bool, opens: bool,
        follows: bool,
    ) -> bool:  # fmt: skip
        """Return True if a group message is addressed to the agent. Otherwise, cache it as context for the next
        mention.

        - `is_named`: the message mentions the agent or replies to it.
        - `opens`: after a mention in this thread, later messages are addressed to the agent.
        - `follows`: the message follows such a mention.

        The `listen` setting decides whether `opens` and `follows` take effect.
        """
        thread = prompt.thread
        listen = await inbox.listens(thread)
        if is_named:
            self._entered.put(thread, not follows)
        if is_named and opens and listen != "named":
            await self._subscribe(thread)
        if is_named or listen == "all" or (follows and listen == "threads"):
            return True
        self._overhear(prompt, files)
        return False

    def _overhear(self, prompt: Prompt, files: Iterable[IncomingFile]) -> None:
        """Cache a message that is not addressed to the agent, as context for the next mention."""
        place = self._overheard_key(prompt)
        before, coming = self._overheard.get(place) or deque(maxlen=BEFORE_MAX), tuple(files)
        own = tuple(file for file, _ in coming if file.author is None)
        before.append((msgspec.structs.replace(prompt, attachments=own), coming))
        self._overheard.put(place, before)

    def _with_its_lines(self, prompt: Prompt, inbox: InboxPort) -> Prompt:
        """If the author opened a thread a moment ago, continue that thread instead of opening another one."""
        if prompt.direct or not self._begins(prompt) or inbox.commands.parse(prompt.text) is not None:
            return prompt
        writer = f"{channel_of(prompt.thread)}{prompt.author.id}"
        before, pause = self._begun.get(writer), timedelta(seconds=inbox.pause_seconds)
        if before is not None and prompt.thread not in self._entered and timedelta(0) <= prompt.at - before.at < pause:
            prompt = msgspec.structs.replace(prompt, thread=before.thread)
        self._begun.put(writer, prompt)
        return prompt

    def _forget_overheard(self, prompt: Prompt, keys: set[str]) -> None:
        """Remove messages from the cache because they were addressed to the agent."""
        place = self._overheard_key(prompt)
        left = (item for item in self._overheard.get(place) or () if item[0].key not in keys)
        self._overheard.put(place, deque(left, BEFORE_MAX))

    def _begins(self, prompt: Prompt) -> bool:
        """Return True if the message opens its thread. The thread's id then ends with the message's id."""
        return bool(prompt.message_id) and thread_address(prompt.thread).thread.endswith(prompt.message_id)

    def _overheard_key(self, prompt: Prompt) -> str:
        """Return the cache key: the channel if the message opens a thread, otherwise the thread."""
        return channel_of(prompt.thread) if self._begins(prompt) else prompt.thread

    async def _opening(self, thread: ThreadId) -> Prompt | None:
        """Return a thread's first message. Returns None if it is unavailable or if `history` already includes it."""
        return None

    async def _context_of(self, prompt: Prompt) -> tuple[list[Reference], tuple[IncomingFile, ...]]:
        """Return earlier messages and their files as context for a mention.

        If the mention opens a thread, the context is the channel's latest messages. Otherwise, it is the thread's first
        message and the cached messages. If reading takes longer than CONTEXT_SECONDS_MAX, only cached messages are
        included.
        """
        overheard = list(self._overheard.pop(self._overheard_key(prompt)) or ())
        if not self._begins(prompt):  # the message that opened this thread is cached under the channel
            around = self._overheard.get(channel_of(prompt.thread)) or ()
            overheard = [*(item for item in around if item[0].thread == prompt.thread), *overheard]
        files = {message.key: coming for message, coming in overheard}
        heard = [message for message, _ in overheard]
        opening: Prompt | None = None
        try:
            async with asyncio.timeout(CONTEXT_SECONDS_MAX):
                if not self._begins(prompt):
                    opening = await self._opening(prompt.thread)
                elif self.limits.has_history:
                    channel = make_thread_id(self.platform, thread_address(prompt.thread).channel, WHOLE_CHANNEL)
                    after = prompt.at - timedelta(hours=BEFORE_HOURS)
                    heard = [message async for message in self.history(channel, after, BEFORE_MAX + 1)]
        except (PlatformError, TimeoutError) as error:
            log.info("reading earlier messages failed", extra={"platform": self.platform, "why": str(error)})
        answered = {prompt.key, prompt.message_id, *(reference.message_id for reference in prompt.refers_to)}
        if opening is not None and opening.message_id in answered:
            opening = None
        elif opening is not None:
            answered |= {opening.key, opening.message_id}
        heard = [
            message for message in heard if message.at <= prompt.at and not answered & {message.key, message.message_id}
        ]
        before = [changed for message in heard if (changed := self._pending.apply(message)) is not None][-BEFORE_MAX:]
        references: list[Reference] = []
        coming: list[IncomingFile] = []
        for message in (opening, *before) if opening is not None else before:
            references += as_references(message, "opening" if message is opening else "before")
            there = files.get(message.key) or [(file, None) for file in message.attachments if file.url]
            coming += [
                (msgspec.structs.replace(file, author=file.author or message.author), get) for file, get in there
            ]
        return references, tuple(coming)

    def _not_understood(self, kind: str) -> None:
        """Log an unsupported event type, once per type."""
        if kind in self._unknown or len(self._unknown) >= UNKNOWN_MAX:
            return
        self._unknown.add(kind)
        log.warning(
            "unsupported event type from %s: %r; remove the app's subscription, or update Shoal if people expect "
            "an answer",
            self.platform, kind, extra={"platform": self.platform},
        )  # fmt: skip

    def _left_out(self, kind: str) -> None:
        """Log an ignored event type, once per type."""
        if kind not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add(kind)
            log.info("ignored event", extra={"platform": self.platform, "kind": kind})

    def _decode(self, content: str | bytes | msgspec.Raw, kind: type[T], what: str) -> T | None:
        """Decode a platform's data. Fields in an unknown format are skipped. Returns None if the data cannot be
        decoded.
        """
        try:
            decoded, odd = decode_known(content, kind)
        except UNREADABLE:
            self._not_understood(f"{what} in an unknown format")
            return None
        for path in odd:
            self._not_understood(f"{what} with {path} in an unknown format")
        return decoded

    async def _greet(self, prompt: Prompt, inbox: InboxPort, text: str = GREETING) -> None:
        """Introduce the agent once in each chat, if the person who added it has access."""
        if await inbox.admits(prompt) and await self._store.swap(f"greeted:{self.platform}", prompt.thread, None, "1"):
            await self._say(prompt.thread, f"greeting:{prompt.thread}", text)

    async def _take_reaction(self, reaction: Reaction, inbox: InboxPort) -> None:
        """Send a reaction to the inbox and post the reply, which may explain why the reaction had no effect. Raises
        StoreError.
        """
        answer = await inbox.react(reaction)
        if answer:
            key = f"{reaction.message_id}:{reaction.author.id}:{reaction.emoji}"
            user = reaction.author.id if self.whispers else ""
            await self._say(reaction.thread, key, answer, reply_to=reaction.message_id, user=user)

    # ---- sending ----

    async def _answer(self, prompt: Prompt, text: str) -> None:
        """Reply to a command. Failures are logged, not raised."""
        if self.whispers:
            await self._say(prompt.thread, prompt.key, text, user="" if prompt.direct else prompt.author.id)
        else:
            await self._say(prompt.thread, prompt.key, text, reply_to=prompt.message_id)

    async def _say(self, thread: ThreadId, key: str, text: str, *, reply_to: str = "", user: str = "") -> None:
        """Post a short system text. If `user` is set, only that person sees it. Failures are logged, not raised."""
        kind = "ephemeral" if user else "text"
        try:
            for number, piece in enumerate(cut(text, self.limits)):
                answered = "" if number else reply_to
                post = OutboundPost(thread, f"told:{key}:{number}", piece, kind, reply_to=answered, user=user)
                await self.post(post)
        except PlatformError as error:
            log.info("sending command reply failed", extra={"platform": self.platform, "why": str(error)})

    async def post(self, post: OutboundPost) -> str:
        """Post a message and return its id. Raises PlatformError."""
        raise NotImplementedError

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Edit a posted message. Raises PlatformError."""
        raise NotImplementedError

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show a typing indicator. Does nothing by default."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Start a thread in a channel with this text and return its id. Raises PlatformError."""
        raise NotImplementedError

    def around(self, thread: ThreadId) -> ThreadId | None:
        """Return the id of the chat that contains a thread. Returns None if the thread covers the complete chat."""
        address = thread_address(thread)
        whole = make_thread_id(self.platform, address.channel, WHOLE_CHANNEL)
        return None if address.thread in (WHOLE_CHANNEL, UNOPENED) else whole

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Yield the messages that the platform stores, oldest first. Yields nothing if bots cannot read them. Raises
        PlatformError.
        """
        for prompt in tuple[Prompt, ...]():
            yield prompt


async def _log_unsent_notice(text: str) -> None:
    log.info("owner notice dropped", extra={"text_chars": len(text)})


def as_references(prompt: Prompt, kind: Literal["opening", "before"]) -> list[Reference]:
    """Convert an earlier message to references. Messages that it forwards keep their original authors."""
    author = Author("", prompt.tainted_by, trusted=False) if prompt.tainted_by else prompt.author
    files = (f"[file {file.name}]" for file in prompt.attachments if file.author is None)
    text = "\n".join(filter(None, (prompt.text, *files)))
    passed_on = [reference for reference in prompt.refers_to if reference.kind == "forward"]
    return [*passed_on, *([Reference(kind, text, author, prompt.message_id)] if text else [])]


def cut(markdown: str, limits: ChatLimits) -> list[str]:
    """Split a long system text into parts that fit the limits, at line breaks if possible."""
    if rendered_length(markdown, limits) <= limits.text_chars_max or len(markdown) < 2:
        return [markdown]
    half = len(markdown) // 2
    at = markdown.rfind("\n", 1, half + 1) + 1 or half
    return [*cut(markdown[:at], limits), *cut(markdown[at:], limits)]
