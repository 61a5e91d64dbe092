"""Chats that take no posts: their owner is told once, until they take posts again.

    the place            what becomes of a post
    ------------------   -----------------------------------------------------------------------------------------
    a thread is barred   posted to the chat around it, with a note
    the chat is closed   kept and tried again for a day; the owner is told once, with what waits
    the chat is gone     given up; the owner is told, with what it said

Which chats are barred is stored, so that a restart tells nobody again.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from shoal.kernel.errors import StoreError
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.ports import Settings
from shoal.kernel.records import OutboxRow

Tell: TypeAlias = Callable[[OutboxRow, str], Awaitable[None]]
"""Tells the owner of a post that its chat does not take, and why."""


class BarredChats:
    """The barred chats of one platform."""

    def __init__(self, platform: str, settings: Settings, tell: Tell) -> None:
        self._scope = scope_of(platform)
        self._settings = settings
        self._tell = tell
        self._known: set[str] = set()

    async def load(self) -> None:
        """Know what an earlier process was told. Raises StoreError."""
        self._known = {channel for channel, why in await self._settings.page(self._scope) if why}

    async def note(self, row: OutboxRow, why: str) -> None:
        """A chat does not take a post; the owner is told unless they know. Raises StoreError."""
        channel = channel_of(row.thread)
        if channel not in self._known:
            await self._settings.put(self._scope, channel, why)
            await self._tell(row, why)
            self._known.add(channel)

    async def works(self, thread: ThreadId) -> None:
        """A chat has taken a post."""
        channel = channel_of(thread)
        if channel in self._known:
            self._known.discard(channel)
            with suppress(StoreError):  # then the owner is not told of the next time
                await self._settings.put(self._scope, channel, "")


def scope_of(platform: str) -> str:
    """Where the barred chats of a platform are stored, with the reason; an empty reason is none."""
    return f"barred:{platform}"
