"""The life of one account on a platform, the same for all of them: connect, back off, take messages in, answer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import ClassVar, TypeAlias

import msgspec

from shoal.chat.inbox import PendingEdits, save_attachment, submit
from shoal.domain.clock import Clock, retry_delay
from shoal.domain.errors import ConfigError, PlatformError, StoreError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, channel_of, make_thread_id
from shoal.domain.messages import Attachment, Prompt
from shoal.domain.ports import InboxPort, Settings
from shoal.domain.posts import Button, ChatLimits, OutboundPost
from shoal.domain.webhooks import HttpAnswer

log = logging.getLogger(__name__)

UNAUTHORIZED = HttpAnswer(401, b'{"error":"unauthorized","message":"The signature or token is missing or wrong."}')
NOT_READY = HttpAnswer(503, b'{"error":"unavailable","message":"Not ready yet; send it again."}')
NOT_STORED = HttpAnswer(503, b'{"error":"unavailable","message":"It could not be stored; send it again."}')
TAKEN = HttpAnswer(200, b"{}")

FILES_MAX = 10
"""Files fetched per message; the agent is told the names of the others."""

IncomingFile: TypeAlias = tuple[Attachment, Callable[[], Awaitable[bytes]]]
"""A file that came with a message, and what fetches its content or raises PlatformError."""


class ChatAccount:
    """Base of every adapter that connects to a platform.

    A subclass sets `limits` and defines `_connect`, `post`, `edit`, `open_thread` and `close`; `typing` and `history`
    where the platform has them. `connected` is set once messages come in, `_inbox` while `run` accepts them.
    """

    limits: ChatLimits
    whispers: ClassVar[bool] = False
    """Whether the platform can show the answer to a command to the person who gave it alone."""
    download_bytes_max: ClassVar[int] = 26_214_400
    """Larger files are named to the agent and not fetched."""

    def __init__(self, platform: str, home: Home, store: Settings, clock: Clock, agent: str = "") -> None:
        self.platform = platform
        self.connected = asyncio.Event()
        self._home = home
        self._store = store
        self._clock = clock
        self._agent = agent
        self._inbox: InboxPort | None = None
        self._pending = PendingEdits()
        self._failures = 0
        self._last_warning = ""

    # ---- connection ----

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff."""
        try:
            await self._keep_connected(inbox)
        finally:
            self._inbox = None
            self.connected.clear()
            await self.close()

    async def _keep_connected(self, inbox: InboxPort) -> None:
        """Connect again at once when a connection ends by itself, and with backoff when it fails.

        A repeated failure is logged as a warning once. A platform that says how long to wait is obeyed.
        """
        while True:
            try:
                await self._connect(inbox)
            except (PlatformError, ConfigError, StoreError) as error:
                self._failures += 1
                asked = error.retry_after_seconds if isinstance(error, PlatformError) else None
                seconds = retry_delay(self._failures, asked)
                level = logging.INFO if str(error) == self._last_warning else logging.WARNING
                self._last_warning = str(error)
                log.log(level, "%s", error, extra={"platform": self.platform, "again_in_seconds": round(seconds, 1)})
                await self._clock.sleep(seconds)

    async def _connect(self, inbox: InboxPort) -> None:
        """Hold one connection until it ends. Raises PlatformError, ConfigError or StoreError when it fails."""
        raise NotImplementedError

    def _reset_backoff(self) -> None:
        """The connection works, so the next failure counts as the first."""
        self._failures, self._last_warning = 0, ""

    async def close(self) -> None:
        """Close connections; for callers that post without `run`."""
        raise NotImplementedError

    # ---- in ----

    async def _take_in(
        self, prompt: Prompt, inbox: InboxPort, files: Iterable[IncomingFile] = (), bot_name: str = ""
    ) -> None:
        """Fetch the files of a message that `inbox.admits`, then submit it or run its command, and answer.

        Nothing comes of a message without text and files. Raises StoreError.
        """
        saved: list[Attachment] = []
        for number, (file, fetch) in enumerate(files):
            refusal = ""
            if number >= FILES_MAX:
                refusal = f"Only {FILES_MAX} files of a message are fetched."
            elif file.size_bytes > self.download_bytes_max:
                refusal = f"It has {file.size_bytes} bytes; files over {self.download_bytes_max} are not fetched."
            if refusal:
                saved.append(msgspec.structs.replace(file, error=refusal))
            else:
                saved.append(await save_attachment(self._home, self._clock, prompt.thread, file, fetch))
        if not (saved or prompt.text):
            return
        changed = self._pending.apply(msgspec.structs.replace(prompt, attachments=tuple(saved)))
        answer = await submit(changed, bot_name, inbox) if changed is not None else ""
        if answer:
            await self._answer(prompt, answer)

    def _prefix(self, channel: str) -> str:
        """What the ids of a channel's threads begin with. Raises InvalidId."""
        return channel_of(make_thread_id(self.platform, channel, "0"))

    async def _subscribe(self, thread: ThreadId) -> None:
        """From now on everything written in this thread is meant for the bot. Raises StoreError."""
        await self._store.put(f"subscribed:{self.platform}", thread, "1")

    async def _is_subscribed(self, thread: ThreadId) -> bool:
        return await self._store.get(f"subscribed:{self.platform}", thread) is not None

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

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Messages the platform has, oldest first; none where bots cannot read back. Raises PlatformError."""
        for prompt in tuple[Prompt, ...]():
            yield prompt


def cut(markdown: str, limits: ChatLimits) -> list[str]:
    """`markdown` in halves of halves that fit, split at line ends where possible; for long answers of our own."""
    if limits.rendered_length(markdown) <= limits.text_chars_max or len(markdown) < 2:
        return [markdown]
    half = len(markdown) // 2
    at = markdown.rfind("\n", 1, half + 1) + 1 or half
    return [*cut(markdown[:at], limits), *cut(markdown[at:], limits)]
