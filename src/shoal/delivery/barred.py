"""Chats that refuse posts. The owner is notified once for each chat.

    refused by               effect on a post
    ----------------------   -----------------------------------------------------------------------------------------
    the thread               It is posted to the enclosing chat, with a note.
    the chat, temporarily    It is retried for a day. The owner gets one notice with the waiting text.
    the chat, permanently    It is abandoned. The owner gets a notice with the text.

Barred chats are stored, so a restart does not send a second notice.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from shoal.kernel.errors import StoreError
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.ports import Settings
from shoal.kernel.records import OutboxRow

SendNotice: TypeAlias = Callable[[OutboxRow, str], Awaitable[None]]
"""Notifies the owner that a post was refused, and why."""


class BarredChats:
    """The chats of one platform that refuse posts."""

    def __init__(self, platform: str, settings: Settings, notify: SendNotice) -> None:
        self._scope = scope_of(platform)
        self._settings = settings
        self._notify = notify
        self._known: set[str] = set()

    async def load(self) -> None:
        """Load the chats that were barred before a restart. Raises StoreError."""
        self._known = {channel for channel, why in await self._settings.page(self._scope) if why}

    async def note(self, row: OutboxRow, why: str) -> None:
        """Record that a chat refused a post, and notify the owner the first time. Raises StoreError."""
        channel = channel_of(row.thread)
        if channel not in self._known:
            await self._settings.put(self._scope, channel, why)
            await self._notify(row, why)
            self._known.add(channel)

    async def works(self, thread: ThreadId) -> None:
        """Record that a chat accepts posts again."""
        channel = channel_of(thread)
        if channel in self._known:
            self._known.discard(channel)
            with suppress(StoreError):  # if this fails, the owner is not notified of the next refusal
                await self._settings.put(self._scope, channel, "")


def scope_of(platform: str) -> str:
    """Return the settings scope that stores a platform's barred chats.

    A chat's value is the reason. An empty value means that the chat is no longer barred.
    """
    return f"barred:{platform}"
