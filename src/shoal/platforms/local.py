"""Built-in platforms without a chat service: the web page, the API and the terminal."""

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
"""Maximum length of a post, in characters. The limit is high because pages and programs read complete answers."""
TERMINAL = "terminal"
KEYS_MAX = 1024
"""Maximum number of cached post keys. A post whose key is cached is not shown again."""

Show: TypeAlias = Callable[[OutboundPost], None]


class _LocalAdapter:
    """Base class of the web and terminal adapters. Incoming messages bypass these adapters."""

    platform: str

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()

    async def run(self, inbox: InboxPort) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Do nothing, because the live stream shows the status."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """Return the id of a new thread in the channel. The caller must send the first message."""
        return make_thread_id(self.platform, channel, self._clock.new_id())

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Yield nothing, because the journal contains all messages."""
        for prompt in tuple[Prompt, ...]():
            yield prompt


class WebAdapter(_LocalAdapter):
    """Implements `ChatAdapter` for platforms whose users read the journal: `web` and `openai`."""

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
        """Create the adapter. Without a home directory, posts with files raise PlatformError."""
        super().__init__(clock)
        self.platform = platform
        self._home = home

    async def post(self, post: OutboundPost) -> str:
        """Copy the post's file to the thread's attachments and return the post's key. Repeating this is safe.

        Voice recordings are not copied. Raises PlatformError if the file is missing or cannot be copied.
        """
        if post.file is not None and post.kind != "voice":
            if self._home is None:
                raise PlatformError("Shoal has no home directory, so it cannot store files.", permanent=True)
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
                    reason = f"Copying {file.name!r} failed: {error.strerror}."
                    raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error

            await asyncio.to_thread(copy)
        return post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Do nothing, because the journal contains the change."""


class TerminalAdapter(_LocalAdapter):
    """Implements `ChatAdapter` for the terminal of this process. Posts appear in the thread's viewer (`shoal chat` or
    `shoal ask`).

    A thread without a viewer also accepts posts, because `shoal chat` shows the journal when it starts.
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
        """Show a thread's posts while the block runs. If several viewers are attached, only the latest one receives
        posts.
        """
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
        """Show a post once per key."""
        if post.key not in self._keys:
            self._keys.put(post.key, None)
            show = self._shown.get(post.thread)
            if show is not None:
                show(post)
        return post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Print the edited text as a new post, because printed text cannot be changed."""
        show = self._shown.get(thread)
        if show is not None:
            show(OutboundPost(thread, message_id, markdown, buttons=buttons))
