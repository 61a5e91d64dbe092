"""Chats that refuse posts. The owner is notified once for each chat.

    refused by           effect on a post
    ------------------   -----------------------------------------------------------------------------------------
    the thread           posted to the enclosing chat, with a note
    the chat, for now    retried for a day; the owner gets one notice with the waiting text
    the chat, for good   given up; the owner gets a notice with the text

Barred chats are stored, so a restart sends no second notice.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from shoal.kernel.errors import StoreError
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.ports import Settings
from shoal.kernel.records import OutboxRow

SendNotice: TypeAlias = Callable[[OutboxRow, str], Awaitable[None]]
"""Notifies the owner of a refused post and the reason for its refusal."""


class BarredChats:
    """The chats of one platform that refuse posts."""

    def __init__(self, platform: str, settings: Settings, notify: SendNotice) -> None:
        self._scope = scope_of(platform)
        self._settings = settings
        self._notify = notify
        self._known: set[str] = set()

    async def load(self) -> None:
        """Load the chats barred by an earlier process. Raises StoreError."""
        self._known = {channel for channel, why in await self._settings.page(self._scope) if why}

    async def note(self, row: OutboxRow, why: str) -> None:
        """Record that a chat refused a post, and notify the owner the first time. Raises StoreError."""
        channel = channel_of(row.thread)
        if channel not in self._known:
            await self._settings.put(self._scope, channel, why)
            await self._notify(row, why)
            self._known.add(channel)

    async def works(self, thread: ThreadId) -> None:
        """Record that a chat accepted a post."""
        channel = channel_of(thread)
        if channel in self._known:
            self._known.discard(channel)
            with suppress(StoreError):  # if this fails, the owner is not notified the next time
                await self._settings.put(self._scope, channel, "")


def scope_of(platform: str) -> str:
    """Return the settings scope of a platform's barred chats.

    The value is the reason. An empty reason means that the chat is not barred.
    """
    return f"barred:{platform}"
