"""Shoal's own places as chat platforms: the page and the API, where people read the journal, and the terminal."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeAlias

from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.errors import PlatformError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, encode_part, make_thread_id
from shoal.kernel.messages import Prompt
from shoal.kernel.ports import InboxPort
from shoal.kernel.posts import Button, ChatLimits, OutboundPost
from shoal.platforms.inbox import Recent, short_name

TEXT_CHARS_MAX = 1_000_000
"""Pages and programs read whole answers; nothing is split."""
TERMINAL = "terminal"
KEYS_MAX = 1024
"""How many posts are remembered so that one that is sent again is shown once."""

Show: TypeAlias = Callable[[OutboundPost], None]


class _LocalAdapter:
    """What the page and the terminal share: messages are handed to the inbox by others, and the journal has them."""

    platform: str

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()

    async def run(self, inbox: InboxPort) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Nothing to do: the live stream shows it."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """A new thread of the channel; its first message is what the caller sends to it."""
        return make_thread_id(self.platform, channel, self._clock.new_id())

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Nothing: there is no history besides the journal."""
        for prompt in tuple[Prompt, ...]():
            yield prompt


class WebAdapter(_LocalAdapter):
    """Serves a platform whose people read the journal: `web`, `openai`. Implements `ChatAdapter`."""

    limits = ChatLimits(
        text_chars_max=TEXT_CHARS_MAX,
        idempotent_posts=True,
        can_edit=True,
        can_upload=True,
        has_buttons=True,
        buttons_max=100,
        opens_threads=True,
        voice="mp3",
    )

    def __init__(self, home: Home | None = None, clock: Clock | None = None, platform: str = "web") -> None:
        """Without a home, posts with files are refused."""
        super().__init__(clock)
        self.platform = platform
        self._home = home

    async def post(self, post: OutboundPost) -> str:
        """Returns the post's key. A file is copied to the attachments, where the page fetches it; again is harmless. A
        recording is fetched where it is. Raises PlatformError when the file is gone or cannot be copied."""
        if post.file is not None and post.kind != "voice":
            if self._home is None:
                raise PlatformError("There is no home directory to keep files in.", permanent=True)
            folder, file = self._home.attachments(post.thread), post.file

            def copy() -> None:
                part = folder / f".{encode_part(post.key)}.part"
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
                    with os.fdopen(handle, "rb") as source, part.open("wb") as target:
                        shutil.copyfileobj(source, target)
                    part.replace(folder / f"{encode_part(post.key)}-{short_name(file.name)}")
                except OSError as error:
                    with contextlib.suppress(OSError):
                        part.unlink(missing_ok=True)
                    reason = f"The file {file.name!r} could not be handed over: {error.strerror}."
                    raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error

            await asyncio.to_thread(copy)
        return post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Nothing to do: what changed is in the journal."""


class TerminalAdapter(_LocalAdapter):
    """The terminal of this process: posts go to whatever shows the thread, `shoal chat` or `shoal ask`.

    A thread that nobody shows takes its posts all the same: `shoal chat` shows its journal when it opens. Implements
    `ChatAdapter`.
    """

    platform = TERMINAL
    limits = ChatLimits(
        text_chars_max=10_000_000,
        idempotent_posts=True,
        can_upload=True,
        can_stream=True,
        has_buttons=True,
        buttons_max=100,
    )

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._shown: dict[ThreadId, Show] = {}
        self._keys: Recent[None] = Recent(KEYS_MAX)

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

    async def post(self, post: OutboundPost) -> str:
        """Show a post, once for each key. Never fails."""
        if post.key not in self._keys:
            self._keys.put(post.key, None)
            show = self._shown.get(post.thread)
            if show is not None:
                show(post)
        return post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """What was printed stays; the change is shown as one more line."""
        show = self._shown.get(thread)
        if show is not None:
            show(OutboundPost(thread, message_id, markdown, buttons=buttons))
