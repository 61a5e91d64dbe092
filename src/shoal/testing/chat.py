"""An in-memory chat platform that can fail like a real one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import datetime

import msgspec

from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import WHOLE_CHANNEL, ThreadId, channel_of, make_thread_id, thread_address
from shoal.kernel.messages import Attachment, Author, Prompt, Reaction, Receipt
from shoal.kernel.ports import InboxPort
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.permissions.access import AccessRules
from shoal.platforms.inbox import submit

OPEN = AccessRules(allow=("*",), trust_everybody=True)
LIMITS = ChatLimits(
    text_chars_max=2000,
    idempotent_posts=True,
    can_edit=True,
    can_upload=True,
    has_buttons=True,
    buttons_max=100,
    has_history=True,
    voice="ogg",
)


class Posted(msgspec.Struct):
    """A message on the platform. An edit changes `markdown` and `buttons` but not `post`."""

    id: str
    post: OutboundPost
    markdown: str
    buttons: tuple[Button, ...] = ()


class FakeChat:
    """An in-memory chat platform. Implements `ChatAdapter` and `ChannelHost`.

    Use `says`, `writes`, `asks` and `reacts` to act as a person. Use `posted`, `typed`, `texts` and `sees` to check the
    agent's output. Other attributes simulate failures and history, or record results:

    - `troubles`: errors that the next posts raise, one per post. If an error has `outcome_unknown` set, the platform
      accepts the post before it raises the error.
    - `shut`: errors that all posts to a thread or channel raise. Each key is a thread id, or the prefix of the thread
      ids in a channel.
    - `history_trouble`: an error that `history` raises.
    - `channel_trouble`: an error that `create_channel` and `has_channel` raise.
    - `past`: messages that `history` returns.
    - `channels`: channels that the agent created.
    - `gone`: ids of channels that no longer exist.
    - `told`: answers that `writes` received, such as the output of a command.

    If `limits.idempotent_posts` is set, posting a key again returns the id of the first message.
    """

    def __init__(
        self,
        platform: str = "fake",
        *,
        limits: ChatLimits = LIMITS,
        clock: Clock | None = None,
        on_post: Callable[[Posted], None] | None = None,
    ) -> None:
        self.platform = platform
        self.limits = limits
        self.posted: list[Posted] = []
        self.typed: list[tuple[ThreadId, str]] = []
        self.past: list[Prompt] = []
        self.troubles: deque[PlatformError] = deque()
        self.shut: dict[str, PlatformError] = {}
        self.history_trouble: PlatformError | None = None
        self.channel_trouble: PlatformError | None = None
        self.channels: dict[str, str] = {}
        self.gone: set[str] = set()
        self.told: list[str] = []
        self.inbox: InboxPort | None = None
        self._clock = clock or SystemClock()
        self._keys: dict[str, str] = {}
        self._made = 0
        self._on_post = on_post
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()

    async def run(self, inbox: InboxPort) -> None:
        self.inbox = inbox
        self._connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.inbox = None
            self._connected.clear()

    async def close(self) -> None: ...

    async def says(
        self,
        channel: str,
        thread: str,
        text: str,
        *,
        user: str = "ada",
        message_id: str = "",
        direct: bool = False,
        attachments: tuple[Attachment, ...] = (),
    ) -> Receipt:
        """Deliver a person's message to a thread. Set `direct` for a private chat.

        To simulate a duplicate delivery, call this again with the same `message_id`.
        """
        await self._connected.wait()
        assert self.inbox is not None
        key = message_id or self._clock.new_id()
        address = make_thread_id(self.platform, channel, thread)
        author, now = Author(user, user, trusted=False), self._clock.now()
        return await self.inbox.send(
            Prompt(address, key, text, author, now, message_id=key, direct=direct, attachments=attachments)
        )

    async def writes(
        self, channel: str, text: str, *, user: str = "ada", roles: tuple[str, ...] = (), answers: str = ""
    ) -> ThreadId:
        """Deliver a person's message to a channel and return the thread that the message belongs to.

        The message opens a new thread unless `answers` is the id of an agent's message. In that case, it is a reply
        and joins the thread of that message.
        """
        await self._connected.wait()
        assert self.inbox is not None
        key = self._clock.new_id()
        place = make_thread_id(self.platform, channel, key)
        thread_id = await self.inbox.thread_of(f"{place.rpartition(':')[0]}:", answers) if answers else None
        thread = thread_id or place
        prompt = Prompt(
            thread,
            key,
            text,
            Author(user, user, roles, trusted=False),
            self._clock.now(),
            reply_to=answers,
            message_id=key,
            joins=thread_id is not None,
        )
        receipt = await submit(prompt, self.inbox)
        if receipt:
            self.told.append(receipt)
        return thread

    async def asks(
        self,
        channel: str,
        thread: str,
        text: str,
        *,
        user: str = "ada",
        roles: tuple[str, ...] = (),
        direct: bool = False,
    ) -> str:
        """Send a chat command as a person and return the reply."""
        await self._connected.wait()
        assert self.inbox is not None
        key = self._clock.new_id()
        address = make_thread_id(self.platform, channel, thread)
        author, now = Author(user, user, roles, trusted=False), self._clock.now()
        prompt = Prompt(address, key, text, author, now, message_id=key, direct=direct)
        return await submit(prompt, self.inbox)

    async def reacts(self, message_id: str, emoji: str, *, user: str = "ada") -> None:
        """React to a message as a person. If the agent responds with a text, post it as a reply to that message."""
        await self._connected.wait()
        assert self.inbox is not None
        thread = next(made.post.thread for made in self.posted if made.id == message_id)
        answer = await self.inbox.react(Reaction(thread, emoji, Author(user, user, trusted=False), message_id))
        if answer:
            await self.post(OutboundPost(thread, f"{message_id}:{user}:{emoji}", answer, reply_to=message_id))

    async def create_channel(self, name: str, beside: str = "") -> str:
        if self.channel_trouble is not None:
            raise self.channel_trouble
        self.channels[name] = beside
        return name

    async def has_channel(self, channel: str) -> bool:
        if self.channel_trouble is not None:
            raise self.channel_trouble
        return channel not in self.gone

    async def post(self, post: OutboundPost) -> str:
        shut = self.shut.get(post.thread) or self.shut.get(channel_of(post.thread))
        if shut is not None:
            raise shut
        trouble = self.troubles.popleft() if self.troubles else None
        if trouble is not None and not trouble.outcome_unknown:
            raise trouble
        if len(post.markdown) > self.limits.text_chars_max:
            raise PlatformError(f"The message is longer than {self.limits.text_chars_max} characters.", permanent=True)
        if post.file is not None and not post.file.is_file():
            raise PlatformError(f"The file {post.file.name!r} does not exist.", permanent=True)
        if self.limits.idempotent_posts and post.key in self._keys:
            return self._keys[post.key]
        self._made += 1
        made = Posted(f"m{self._made}", post, post.markdown, post.buttons)
        self._keys[post.key] = made.id
        self.posted.append(made)
        self._tell()
        if self._on_post is not None:
            self._on_post(made)
        if trouble is not None:
            raise trouble
        return made.id

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        made = self._find(thread, message_id)
        made.markdown, made.buttons = markdown, buttons
        self._tell()

    async def delete(self, thread: ThreadId, message_id: str) -> None:
        self.posted.remove(self._find(thread, message_id))
        self._tell()

    def _find(self, thread: ThreadId, message_id: str) -> Posted:
        for made in self.posted:
            if made.id == message_id and made.post.thread == thread:
                return made
        raise PlatformError(f"Message {message_id} does not exist.", permanent=True)

    async def typing(self, thread: ThreadId, status: str) -> None:
        self.typed.append((thread, status))

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        thread = make_thread_id(self.platform, channel, key or self._clock.new_id())
        await self.post(OutboundPost(thread, f"open:{thread}", text, maybe_posted=maybe_posted))
        return thread

    def around(self, thread: ThreadId) -> ThreadId | None:
        whole = make_thread_id(self.platform, thread_address(thread).channel, WHOLE_CHANNEL)
        return whole if thread != whole else None

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        if self.history_trouble is not None:
            raise self.history_trouble
        prompts = [prompt for prompt in self.past if prompt.thread == thread and (after is None or prompt.at > after)]
        for prompt in prompts[-limit:]:
            yield prompt

    def texts(self, thread: ThreadId) -> list[str]:
        return [made.markdown for made in self.posted if made.post.thread == thread]

    async def sees(self, thread: ThreadId, part: str) -> Posted:
        """Wait until a message in the thread contains `part`, and return that message."""
        while True:
            for made in self.posted:
                if made.post.thread == thread and part in made.markdown:
                    return made
            self._changed.clear()
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
