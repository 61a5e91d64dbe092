"""Chats whose id has changed, such as a Telegram group that became a supergroup or an upgraded Matrix room.

    use of the chat                                        id
    ----------------------------------------------------   ----------------------------------------------------
    threads, bindings, schedules, approvals, memory,       the first id, permanently, because journals and
    files, the last active channel                         audit chains depend on it
    calls to the platform                                  the newest id
    `channels` and `allow` in shoal.toml                   any id of the chat

Each change is stored with one small atomic write. A platform may report changes more than once and in any order.
"""

import msgspec

from shoal.kernel.ports import Settings

MOVED_MAX = 10_000
"""Maximum number of chats with a changed id that are loaded per account."""
TRIES_MAX = 10


def moved_scope(platform: str) -> str:
    """Return the settings scope that stores a platform's id changes. The key is a chat's first id. The value lists its
    later ids in order.
    """
    return f"moved:{platform}"


async def ids_of(settings: Settings, platform: str, channel: str) -> tuple[str, ...]:
    """Return all ids of a chat. `channel` is its first id. Raises StoreError."""
    stored = await settings.get(moved_scope(platform), channel)
    return (channel, *_decoded(stored))


class MovedChats:
    """Maps between the first and the newest ids of an account's chats."""

    def __init__(self, platform: str, settings: Settings) -> None:
        self._scope = moved_scope(platform)
        self._settings = settings
        self._first: dict[str, str] = {}
        self._newest: dict[str, str] = {}

    async def load(self) -> None:
        """Load the stored id changes. Raises StoreError."""
        for first, stored in await self._settings.page(self._scope, limit=MOVED_MAX):
            self._learn(first, _decoded(stored))

    def first_id(self, channel: str) -> str:
        """Return the id under which Shoal stores the chat."""
        return self._first.get(channel, channel)

    def newest_id(self, channel: str) -> str:
        """Return the id to use in calls to the platform."""
        return self._newest.get(self.first_id(channel), channel)

    async def note(self, old: str, new: str) -> bool:
        """Store an id change. Return False if it was already known, or if too many concurrent writes interfered. Raises
        StoreError.
        """
        first = self.first_id(old)
        for _ in range(TRIES_MAX):
            stored = await self._settings.get(self._scope, first)
            later = _decoded(stored)
            if new == first or new in later:
                self._learn(first, later)
                return False
            if await self._settings.swap(self._scope, first, stored, msgspec.json.encode([*later, new]).decode()):
                self._learn(first, (*later, new))
                return True
        return False

    def _learn(self, first: str, later: tuple[str, ...]) -> None:
        for move in later:
            self._first[move] = first
            self._newest[first] = move


def _decoded(stored: str | None) -> tuple[str, ...]:
    return msgspec.json.decode(stored, type=tuple[str, ...]) if stored else ()
