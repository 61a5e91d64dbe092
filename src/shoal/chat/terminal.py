"""The terminal as a chat platform: posts go to whoever shows the thread, `shoal chat` or `shoal ask`.

A thread that nobody shows takes its posts all the same: the journal has them, and `shoal chat` shows it when it opens.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeAlias

from shoal.domain.clock import Clock, SystemClock
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost

PLATFORM = "terminal"
KEYS_KEPT_MAX = 1024
"""How many posts are remembered so that one that is sent again is shown once."""

Show: TypeAlias = Callable[[OutboundPost], None]


class TerminalAdapter:
    """Implements `ChatAdapter` for the terminal of this process."""

    platform = PLATFORM
    limits = ChatLimits(
        text_chars_max=10_000_000,
        idempotent_posts=True,
        can_upload=True,
        can_stream=True,
        has_buttons=True,
        has_ephemeral=True,
    )

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._shown: dict[ThreadId, Show] = {}
        self._keys: OrderedDict[str, None] = OrderedDict()

    @contextmanager
    def attach(self, thread: ThreadId, show: Show) -> Generator[None]:
        """Have the posts of a thread shown while the block runs; the latest to attach gets them."""
        before = self._shown.get(thread)
        self._shown[thread] = show
        try:
            yield
        finally:
            if before is None:
                del self._shown[thread]
            else:
                self._shown[thread] = before

    async def run(self, inbox: InboxPort) -> None:
        """Nothing arrives by itself: what a person types is sent by the command that reads it."""
        await asyncio.Event().wait()

    async def post(self, post: OutboundPost) -> str:
        """Show a post, once for each key. Never fails."""
        if post.key not in self._keys:
            self._keys[post.key] = None
            if len(self._keys) > KEYS_KEPT_MAX:
                self._keys.popitem(last=False)
            show = self._shown.get(post.thread)
            if show is not None:
                show(post)
        return post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """What was printed stays; the change is shown as one more line."""
        show = self._shown.get(thread)
        if show is not None:
            show(OutboundPost(thread, message_id, markdown, buttons=buttons))

    async def typing(self, thread: ThreadId, status: str) -> None:
        """The command that shows the thread sees its status live."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """A fresh thread of the channel."""
        return make_thread_id(PLATFORM, channel, self._clock.new_id())

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """The terminal remembers nothing beside the journal."""
        for prompt in tuple[Prompt, ...]():
            yield prompt
