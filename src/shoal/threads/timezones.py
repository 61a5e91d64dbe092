"""Store the time zones that people have chosen in a chat or on the page."""

import asyncio

from shoal.kernel.agents import AgentSpec
from shoal.kernel.clock import Clock
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import Settings
from shoal.kernel.zones import zone_named
from shoal.permissions.access import People

SCOPE = "timezone"
"""Settings scope that stores the time zones that people choose. The key is the person's first identity, PLATFORM:USER.
"""
READ_AGAIN_SECONDS = 30.0
"""Maximum age of the cached time zones. Changes made by other processes take effect within this time."""
PAGE_ROWS = 1000


class TimeZones:
    """Resolves a person's time zone: their own choice, then their zone in [access.people], then the agent's zone."""

    def __init__(self, settings: Settings, people: People, clock: Clock) -> None:
        self._settings = settings
        self._people = people
        self._clock = clock
        self._chosen: dict[str, str] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def of(self, asker: Asker, agent: AgentSpec) -> str:
        return await self.chosen(asker) or agent.timezone

    async def chosen(self, asker: Asker) -> str:
        """Return the zone that the person chose or that [access.people] sets, or an empty string. Raises StoreError."""
        if not asker.user:
            return ""
        await self._read()
        identity = self._identity(asker)
        return self._chosen.get(identity) or self._people.find(identity).timezone

    async def choose(self, asker: Asker, timezone: str) -> str:
        """Set a person's zone and return its name. An empty name removes their choice.

        Raises InvalidInput for an unknown zone, and StoreError.
        """
        name = zone_named(timezone).key if timezone else ""
        await self._settings.put(SCOPE, self._identity(asker), name)
        self._read_at = None
        return name

    def _identity(self, asker: Asker) -> str:
        return self._people.identities(asker)[0]

    async def _read(self) -> None:
        async with self._reading:
            now = self._clock.monotonic()
            if self._read_at is not None and now - self._read_at < READ_AGAIN_SECONDS:
                return
            zones, after = dict[str, str](), ""
            while page := await self._settings.page(SCOPE, after, PAGE_ROWS):
                zones.update(page)
                after = page[-1][0]
            self._chosen, self._read_at = zones, now
