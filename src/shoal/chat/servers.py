"""Which server each channel belongs to, where a platform has servers: a guild of Discord's, a team of Teams'.

Noted for whoever asks later (`domain.registry.Registry.server_of`), since a thread's id does not tell.
"""

from collections import OrderedDict

from shoal.domain.registry import servers_scope
from shoal.domain.store import Settings

KNOWN_MAX = 10_000
"""Channels that are not looked up again."""


class Servers:
    """Those of one account's channels."""

    def __init__(self, platform: str, store: Settings) -> None:
        self._scope = servers_scope(platform)
        self._store = store
        self._known: OrderedDict[str, str] = OrderedDict()

    async def note(self, channel: str, server: str) -> None:
        """A channel belongs to a server; an empty one tells nothing. Raises StoreError."""
        if not server or self._known.get(channel) == server:
            return
        if await self._store.get(self._scope, channel) != server:
            await self._store.put(self._scope, channel, server)
        self._known[channel] = server
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
