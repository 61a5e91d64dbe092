"""The page as a chat platform: what is said there is in the journal already, so that posting only hands files over."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from shoal.domain.clock import Clock, SystemClock
from shoal.domain.errors import PlatformError
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, encode_part, make_thread_id
from shoal.domain.messages import Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.posts import Button, ChatLimits, OutboundPost

TEXT_CHARS_MAX = 1_000_000
"""Pages and programs read whole answers; nothing is split."""

_FILE_NAME_BYTES_MAX = 120


class WebAdapter:
    """Serves a platform whose people read the journal: `web`, `openai`, `terminal`. Implements `ChatAdapter`."""

    limits = ChatLimits(
        text_chars_max=TEXT_CHARS_MAX,
        idempotent_posts=True,
        can_edit=True,
        can_upload=True,
        has_buttons=True,
        has_ephemeral=True,
    )

    def __init__(self, home: Home | None = None, clock: Clock | None = None, platform: str = "web") -> None:
        """Without a home, posts with files are refused."""
        self.platform = platform
        self._home = home
        self._clock = clock or SystemClock()

    async def run(self, inbox: InboxPort) -> None:
        """Nothing comes in by itself: the HTTP surface hands messages to the inbox. Waits until cancelled."""
        await asyncio.Event().wait()

    async def post(self, post: OutboundPost) -> str:
        """Answers the post's key. A file is copied to the attachments, where the page fetches it; again is harmless.

        Raises PlatformError when the file is gone or cannot be copied.
        """
        if post.file is not None:
            if self._home is None:
                raise PlatformError("There is no home directory to keep files in.", permanent=True)
            await asyncio.to_thread(_keep, self._home.attachments(post.thread), post.key, post.file)
        return post.key

    async def edit(self, thread: ThreadId, message_id: str, markdown: str, buttons: tuple[Button, ...] = ()) -> None:
        """Nothing to do: what changed is in the journal."""

    async def typing(self, thread: ThreadId, status: str) -> None:
        """Nothing to do: the live stream shows it."""

    async def open_thread(self, channel: str, text: str, key: str = "", *, maybe_posted: bool = False) -> ThreadId:
        """A new thread of the channel; its first message is what the caller sends to it."""
        return make_thread_id(self.platform, channel, self._clock.new_id())

    async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
        """Nothing: there is no history beside the journal."""
        for prompt in ():
            yield prompt


def _keep(folder: Path, key: str, file: Path) -> None:
    name = encode_part(file.name).encode()[-_FILE_NAME_BYTES_MAX:].decode("utf-8", "ignore")
    kept = folder / f"{encode_part(key)}-{name}"
    part = folder / f".{encode_part(key)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        part.replace(kept)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        reason = f"The file {file.name!r} could not be handed over: {error.strerror}."
        raise PlatformError(reason, permanent=isinstance(error, FileNotFoundError)) from error
