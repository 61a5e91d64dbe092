"""The life of one account on a platform, the same for all of them: connect, back off, take messages in, answer."""

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
NOT_READY = HttpAnswer(503, b'{"error":"unavailable","message":"Not ready yet; send it again."}')
NOT_STORED = HttpAnswer(503, b'{"error":"unavailable","message":"It could not be stored; send it again."}')
TAKEN = HttpAnswer(200, b"{}")

BEFORE_MAX = 8
"""Messages of a channel that come along with a mention there."""
BEFORE_HOURS = 6.0
CHANGED_HOURS = 24.0
"""A message that is older starts no turn where somebody adds the agent's name to it."""
CONTEXT_SECONDS_MAX = 3.0
"""How long a platform is asked what a message refers to; what it has not told by then is left out."""
OVERHEARD_MAX = 1000
"""Channels and threads whose last messages are remembered, where the agent was not meant."""
ENTERED_MAX = 1000
CHANNELS_NAMED_MAX, CHANNEL_NAME_CHARS_MAX = 1000, 120
"""Groups whose names are held in memory, and the characters of a name that are stored."""
BEGUN_MAX = 1000
"""People whose last message is remembered that began a thread in a channel."""
NOTHING_READ = "I can read nothing in your message. Please write it as text."
MOVED = "This chat has a new id. Our conversations, schedules and rules go on here."
NOTHING_ASKED = "Yes? Mention me together with your question."
GREETING = "Hello! Mention me, or write to me directly, and I will answer. /help says what I can do."

FILES_MAX = 10
"""Files fetched per message; the agent is told the names of the others."""
UNKNOWN_MAX = 100
"""Kinds of events that are told of."""

EXPECTED = (PlatformError, ConfigError, StoreError)
"""What a connection may fail with; anything else is a mistake, of Shoal's or of the adapter's."""

IncomingFile: TypeAlias = tuple[Attachment, Callable[[], Awaitable[bytes]] | None]
"""A file that came with a message, and what fetches its content or raises PlatformError; None for one with a `url`,
which the turn fetches."""


class ChatAccount(Generic[S]):
    """Base of every adapter that connects to a platform, for an account with these settings.

    A subclass sets `limits` and defines `_connect`, `post`, `edit`, `open_thread` and `close`; `typing` and `history`
    where the platform has them; `_take_kept` where it delivers events in one stream, which go through `_intake`.
    `connected` is set once messages come in, `failed` once a connection has failed, which `failure` explains; `_inbox`
    is set while `run` accepts them. `inbound_url` is where the platform can call Shoal; empty where it cannot.
    """

    limits: ChatLimits
    whispers: ClassVar[bool] = False
    """Whether the platform can show the answer to a command to the person who gave it alone."""
    download_bytes_max: ClassVar[int] = 26_214_400
    """Larger files are named to the agent and not fetched."""

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
        self.tell_owner: Callable[[str], Awaitable[None]] = _tell_nobody
        """Tells the owner something in private; set by the app."""
        self._overheard: Recent[deque[tuple[Prompt, tuple[IncomingFile, ...]]]] = Recent(OVERHEARD_MAX)
        self._entered: Recent[bool] = Recent(ENTERED_MAX)
        """Threads where the agent was just named, and whether for the first time."""
        self._begun: Recent[Prompt] = Recent(BEGUN_MAX)
        self._names: Recent[str] = Recent(CHANNELS_NAMED_MAX)
        self._unknown: set[str] = set()
        self._failures = 0

    # ---- connection ----

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff. Whatever an account stumbles over, the others go on."""
        while True:
            unforeseen: Exception | None = None
            try:
                async with anyio.create_task_group() as self._tasks:
                    await self._keep_connected(inbox)
            except* StoreError:
                raise
            except* Exception as group:  # noqa: BLE001  whatever it is, it is waited for and logged below
                unforeseen = group.exceptions[0]
            finally:
                self._inbox = self._tasks = None
                self.connected.clear()
                await self.close()
            await self._wait_after(unforeseen or PlatformError("The connection ended."))

    async def _keep_connected(self, inbox: InboxPort) -> None:
        """Connect again at once when a connection ends by itself, and with backoff when it fails."""
        is_open = False
        while True:
            try:
                if self._tasks is not None and not is_open:
                    await self._moves.load()
                    await self._intake.open(self._tasks, lambda event: self._take_kept(event, inbox))
                    is_open = True
                await self._connect(inbox)
            except EXPECTED as error:
                await self._wait_after(error)

    async def _wait_after(self, error: Exception) -> None:
        """A repeated failure is logged as a warning once. A platform that says how long to wait is obeyed."""
        self._failures += 1
        asked = error.retry_after_seconds if isinstance(error, PlatformError) else None
        seconds = retry_delay(self._failures, asked)
        told = str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"
        level = logging.INFO if told == self.failure else logging.WARNING
        self.failure = told
        self.failed.set()
        extra = {"platform": self.platform, "again_in_seconds": round(seconds, 1)}
        log.log(level, "%s", told, extra=extra, exc_info=None if isinstance(error, EXPECTED) else error)
        await self._clock.sleep(seconds)

    async def _connect(self, inbox: InboxPort) -> None:
        """Hold one connection until it ends. Raises PlatformError, ConfigError or StoreError when it fails."""
        raise NotImplementedError

    async def _take_kept(self, event: str, inbox: InboxPort) -> bool:
        """Take in an event that `_intake` was given; returns whether anything came of it. Raises PlatformError and
        StoreError to be given it again, a permanent PlatformError to drop it."""
        raise NotImplementedError

    def _reset_backoff(self) -> None:
        """The connection works, so the next failure counts as the first."""
        self._failures, self.failure = 0, ""
        self.failed.clear()

    async def close(self) -> None:
        """Close connections; for callers that post without `run`."""
        raise NotImplementedError

    async def check(self) -> None:
        """See that the platform takes the credentials, where being connected does not say so. Raises PlatformError."""

    # ---- in ----

    async def _take_in(self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = ()) -> None:
        """Take a message in, and say what it is answered at once. Raises StoreError."""
        answer = await self._submit(prompt, inbox, files)
        if answer:
            await self._answer(prompt, answer)

    async def _submit(self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = ()) -> str:
        """Send a message with its files, which are fetched for people who may speak; returns what to tell its author.

        The inbox does the rest: it obeys commands, turns strangers away, and knows what came twice. Where the agent is
        named for the first time, what stood before comes along. Whoever sent nothing that can be read is told so. Where
        a message in a channel begins a thread, further lines of its author's belong there too. Raises StoreError.
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
        is_about = any(one.text and (is_named or one.kind == "forward") for one in prompt.refers_to)
        if not (coming or prompt.text or is_about):
            return NOTHING_ASKED if is_named else NOTHING_READ
        saved: list[Attachment] = []
        for number, (file, fetch) in enumerate(coming):
            refusal = ""
            if number >= FILES_MAX:
                refusal = f"Only {FILES_MAX} files of a message are fetched."
            elif file.size_bytes > self.download_bytes_max:
                refusal = f"It has {file.size_bytes} bytes; files over {self.download_bytes_max} are not fetched."
            if refusal:
                saved.append(msgspec.structs.replace(file, error=refusal))
            elif fetch is None:
                saved.append(file)
            else:
                saved.append(await save_attachment(self._home, self._clock, prompt.thread, file, fetch))
        changed = self._pending.apply(msgspec.structs.replace(prompt, attachments=tuple(saved)))
        return await submit(changed, inbox) if changed is not None else ""

    async def _is_unheard(self, prompt: Prompt, prefix: str, inbox: InboxPort) -> bool:
        """Whether a message that was changed so that it names the agent was not for it before, and is new enough to be
        answered. Raises StoreError."""
        is_new = self._clock.now() - prompt.at <= timedelta(hours=CHANGED_HOURS)
        return is_new and await inbox.thread_of(prefix, "", prompt.key) is None

    def _prefix(self, channel: str) -> str:
        """What the ids of a channel's threads begin with. Raises InvalidId."""
        return channel_of(make_thread_id(self.platform, self._moves.first_id(channel), "0"))

    async def _chat_moved(self, old: str, new: str) -> None:
        """Go on with a chat under its new id, and say so once, there and to the owner. Raises StoreError."""
        if not await self._moves.note(old, new):
            return
        first = self._moves.first_id(old)
        log.warning("a chat moved", extra={"platform": self.platform, "channel": old, "to": new})
        thread = make_thread_id(self.platform, first, WHOLE_CHANNEL)
        await self._say(thread, f"moved:{first}:{new}", MOVED)
        named = old in (*self._settings.channels, *self._settings.allow)
        change = f' In shoal.toml, write "{new}" for "{old}" under platforms.{self.platform}; both hold until then.'
        told = f"The {self.platform} chat {old} has the id {new} now. Conversations, schedules and rules go on there."
        await self.tell_owner(told + (change if named else ""))

    async def _channel_named(self, channel: str, name: str) -> None:
        """Remember what people call a group, so that it can be chosen by its name. Raises StoreError."""
        first, name = self._moves.first_id(channel), " ".join(name.split())[:CHANNEL_NAME_CHARS_MAX]
        if not name or self._names.get(first) == name:
            return
        self._names.put(first, name)
        scope = channel_names(self.platform)
        if await self._store.get(scope, first) != name:
            await self._store.put(scope, first, name)

    async def _learn_name(self, channel: str) -> None:
        """Ask once what a group is called, where messages do not say it. Raises StoreError."""
        first = self._moves.first_id(channel)
        if self._names.get(first) is not None:
            return
        name = ""
        try:
            name = await self._name_of(channel)
        except PlatformError as error:
            extra = {"platform": self.platform, "channel": channel, "why": str(error)}
            log.info("the name of a group could not be read", extra=extra)
        if name.strip():
            await self._channel_named(channel, name)
        else:
            self._names.put(first, "")

    async def _name_of(self, channel: str) -> str:
        """What people call a group; empty where it has no name. Raises PlatformError."""
        return ""

    async def _subscribe(self, thread: ThreadId) -> None:
        """From now on everything written in this thread is meant for the bot. Raises StoreError."""
        await self._store.put(f"subscribed:{self.platform}", thread, "1")

    async def _is_subscribed(self, thread: ThreadId) -> bool:
        return await self._store.get(f"subscribed:{self.platform}", thread) is not None

    async def _is_meant(
        self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = (), *, is_named: bool, opens: bool,
        follows: bool,
    ) -> bool:  # fmt: skip
        """Whether what somebody wrote in a group is for the agent, as it listens in that channel. Raises StoreError.

        `is_named`: it names the agent, or answers it. `opens`: where the agent is named there, it hears all that
        follows. `follows`: it is such a message. What is not for it is remembered until it is named there, with its
        files, which are fetched then.
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
        """Remember what was not for the agent until it is named there."""
        place = self._place_before(prompt)
        before, coming = self._overheard.get(place) or deque(maxlen=BEFORE_MAX), tuple(files)
        own = tuple(file for file, _ in coming if file.author is None)
        before.append((msgspec.structs.replace(prompt, attachments=own), coming))
        self._overheard.put(place, before)

    def _with_its_lines(self, prompt: Prompt, inbox: InboxPort) -> Prompt:
        """A message that would begin a thread, in the thread that its author began just before; others as they are."""
        if prompt.direct or not self._begins(prompt) or inbox.commands.parse(prompt.text) is not None:
            return prompt
        writer = f"{channel_of(prompt.thread)}{prompt.author.id}"
        before, pause = self._begun.get(writer), timedelta(seconds=inbox.pause_seconds)
        if before is not None and prompt.thread not in self._entered and timedelta(0) <= prompt.at - before.at < pause:
            prompt = msgspec.structs.replace(prompt, thread=before.thread)
        self._begun.put(writer, prompt)
        return prompt

    def _forget_overheard(self, prompt: Prompt, keys: set[str]) -> None:
        """Of what stands before this message, these were for the agent after all."""
        place = self._place_before(prompt)
        left = (one for one in self._overheard.get(place) or () if one[0].key not in keys)
        self._overheard.put(place, deque(left, BEFORE_MAX))

    def _begins(self, prompt: Prompt) -> bool:
        """Whether a message stands in its channel itself, where the thread of it begins."""
        return bool(prompt.message_id) and thread_address(prompt.thread).thread.endswith(prompt.message_id)

    def _place_before(self, prompt: Prompt) -> str:
        """Where the messages stand that come before this one."""
        return channel_of(prompt.thread) if self._begins(prompt) else prompt.thread

    async def _opening(self, thread: ThreadId) -> Prompt | None:
        """A thread's first message, where that is no part of its history and can be asked for. Raises PlatformError."""
        return None

    async def _context_of(self, prompt: Prompt) -> tuple[list[Reference], tuple[IncomingFile, ...]]:
        """What stands before a message that names the agent: the beginning of its thread, or, where it begins one, the
        channel's last messages, as they are by now, and their files. As far as the platform tells, or is asked and
        answers soon."""
        overheard = list(self._overheard.pop(self._place_before(prompt)) or ())
        if not self._begins(prompt):  # what began this thread stands among the channel's own messages
            around = self._overheard.get(channel_of(prompt.thread)) or ()
            overheard = [*(one for one in around if one[0].thread == prompt.thread), *overheard]
        files = {one.key: coming for one, coming in overheard}
        heard = [one for one, _ in overheard]
        opening: Prompt | None = None
        try:
            async with asyncio.timeout(CONTEXT_SECONDS_MAX):
                if not self._begins(prompt):
                    opening = await self._opening(prompt.thread)
                elif self.limits.has_history:
                    channel = make_thread_id(self.platform, thread_address(prompt.thread).channel, WHOLE_CHANNEL)
                    after = prompt.at - timedelta(hours=BEFORE_HOURS)
                    heard = [one async for one in self.history(channel, after, BEFORE_MAX + 1)]
        except (PlatformError, TimeoutError) as error:
            log.info("what stood before could not be read", extra={"platform": self.platform, "why": str(error)})
        answered = {prompt.key, prompt.message_id, *(one.message_id for one in prompt.refers_to)}
        if opening is not None and opening.message_id in answered:
            opening = None
        elif opening is not None:
            answered |= {opening.key, opening.message_id}
        heard = [one for one in heard if one.at <= prompt.at and not answered & {one.key, one.message_id}]
        before = [changed for one in heard if (changed := self._pending.apply(one)) is not None][-BEFORE_MAX:]
        told: list[Reference] = []
        coming: list[IncomingFile] = []
        for one in (opening, *before) if opening is not None else before:
            told += told_of(one, "opening" if one is opening else "before")
            there = files.get(one.key) or [(file, None) for file in one.attachments if file.url]
            coming += [(msgspec.structs.replace(file, author=file.author or one.author), get) for file, get in there]
        return told, tuple(coming)

    def _not_understood(self, kind: str) -> None:
        """Say once a kind that the platform sends something that Shoal does nothing with."""
        if kind in self._unknown or len(self._unknown) >= UNKNOWN_MAX:
            return
        self._unknown.add(kind)
        log.warning(
            "%s sends events of the kind %r, of which nothing comes here. Take the app's subscription to them away, or "
            "update Shoal if people wait for an answer to them.",
            self.platform, kind, extra={"platform": self.platform},
        )  # fmt: skip

    def _left_out(self, kind: str) -> None:
        """Log once a kind of event that is left out on purpose."""
        if kind not in self._unknown and len(self._unknown) < UNKNOWN_MAX:
            self._unknown.add(kind)
            log.info("left out on purpose", extra={"platform": self.platform, "kind": kind})

    def _decode(self, content: str | bytes | msgspec.Raw, kind: type[T], what: str) -> T | None:
        """What the platform sends, as far as its form is known; what is not counts as left out, and is told once a
        kind. None where nothing is left."""
        try:
            found, odd = decode_known(content, kind)
        except UNREADABLE:
            self._not_understood(f"{what} of an unknown form")
            return None
        for path in odd:
            self._not_understood(f"{what} with {path} of an unknown form")
        return found

    async def _greet(self, prompt: Prompt, inbox: InboxPort, text: str = GREETING) -> None:
        """Somebody has added the agent to a channel, or to their own conversations: it says who it is there, once. A
        stranger gets what strangers get. Raises StoreError."""
        if await inbox.admits(prompt) and await self._store.swap(f"greeted:{self.platform}", prompt.thread, None, "1"):
            await self._say(prompt.thread, f"greeting:{prompt.thread}", text)

    async def _take_reaction(self, reaction: Reaction, inbox: InboxPort) -> None:
        """Do what somebody's emoji says, and tell them where it did not count. Raises StoreError."""
        answer = await inbox.react(reaction)
        if answer:
            key = f"{reaction.message_id}:{reaction.author.id}:{reaction.emoji}"
            user = reaction.author.id if self.whispers else ""
            await self._say(reaction.thread, key, answer, reply_to=reaction.message_id, user=user)

    # ---- out ----

    async def _answer(self, prompt: Prompt, text: str) -> None:
        """Answer a command. A failure is only logged."""
        if self.whispers:
            await self._say(prompt.thread, prompt.key, text, user="" if prompt.direct else prompt.author.id)
        else:
            await self._say(prompt.thread, prompt.key, text, reply_to=prompt.message_id)

    async def _say(self, thread: ThreadId, key: str, text: str, *, reply_to: str = "", user: str = "") -> None:
        """Post a short text of our own, for `user` alone where one is given. A failure is only logged."""
        kind = "ephemeral" if user else "text"
        try:
            for number, piece in enumerate(cut(text, self.limits)):
                answered = "" if number else reply_to
                post = OutboundPost(thread, f"told:{key}:{number}", piece, kind, reply_to=answered, user=user)
                await self.post(post)
        except PlatformError as error:
            log.info("an answer to a command was lost", extra={"platform": self.platform, "why": str(error)})

    async def post(self, post: OutboundPost) -> str:
        """Post and return the message's id. Raises PlatformError."""
        raise NotImplementedError

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Change a posted message. Raises PlatformError."""
        raise NotImplementedError

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Show that the agent works; nothing on platforms without it."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Post to a channel and return the thread this opens. Raises PlatformError."""
        raise NotImplementedError

    def around(self, thread: ThreadId) -> ThreadId | None:
        """The chat around a thread, as where to post; None for what is a whole chat."""
        address = thread_address(thread)
        whole = make_thread_id(self.platform, address.channel, WHOLE_CHANNEL)
        return None if address.thread in (WHOLE_CHANNEL, UNOPENED) else whole

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Messages the platform has, oldest first; none where bots cannot read back. Raises PlatformError."""
        for prompt in tuple[Prompt, ...]():
            yield prompt


async def _tell_nobody(text: str) -> None:
    log.info("nobody to tell", extra={"text_chars": len(text)})


def told_of(prompt: Prompt, kind: Literal["opening", "before"]) -> list[Reference]:
    """What somebody wrote before, and what they passed on with it, which stays its author's."""
    author = Author("", prompt.tainted_by, trusted=False) if prompt.tainted_by else prompt.author
    files = (f"[file {file.name}]" for file in prompt.attachments if file.author is None)
    text = "\n".join(filter(None, (prompt.text, *files)))
    passed_on = [one for one in prompt.refers_to if one.kind == "forward"]
    return [*passed_on, *([Reference(kind, text, author, prompt.message_id)] if text else [])]


def cut(markdown: str, limits: ChatLimits) -> list[str]:
    """`markdown` in halves of halves that fit, split at line ends where possible; for long answers of our own."""
    if rendered_length(markdown, limits) <= limits.text_chars_max or len(markdown) < 2:
        return [markdown]
    half = len(markdown) // 2
    at = markdown.rfind("\n", 1, half + 1) + 1 or half
    return [*cut(markdown[:at], limits), *cut(markdown[at:], limits)]
