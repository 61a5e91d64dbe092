"""Who answers where, and with what: the channels' bindings and what was chosen for channels, servers and accounts.

Both are read from the database again when they are SECONDS old, or were changed here; so that another machine's change
counts a moment later, and a message costs no query for them.
"""

import logging
from collections.abc import Mapping

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.registry import Binding, Registry

log = logging.getLogger(__name__)

SECONDS = 2.0


class Choices(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was chosen for a place; an empty value is no choice."""

    model: str = ""
    profile: str = ""


NO_CHOICES = Choices()
_choices = msgspec.json.Decoder(Choices)


class Places:
    """The bindings and choices of all places. `accounts` has the agent of each account that names one."""

    def __init__(self, registry: Registry, clock: Clock, accounts: Mapping[str, str]) -> None:
        self._registry = registry
        self._clock = clock
        self._accounts = dict(accounts)
        self._bound: dict[str, str] = {}
        self._chosen: dict[str, Choices] = {}
        self._read_at: float | None = None
        self._changes = 0

    async def agent_for(self, thread: ThreadId, asked: str) -> str:
        """Who is meant by a message for `asked`: that agent, unless it is merely its account's; then the one that the
        channel is bound to, else the account's; empty where the default one answers. Raises StoreError."""
        account = self._accounts.get(thread_address(thread).platform, "")
        if asked and asked != account:
            return asked
        await self._fresh()
        return self._bound.get(place_of(thread)) or account

    async def chosen(self, thread: ThreadId) -> tuple[Choices, Choices]:
        """What was chosen for the thread's server, else for its account, and for its channel. Raises StoreError."""
        await self._fresh()
        platform = thread_address(thread).platform
        wide = self._chosen.get(platform, NO_CHOICES)
        if any(place.startswith(f"{platform}@") for place in self._chosen):
            server = self._chosen.get(await self.widest(thread), NO_CHOICES)
            wide = Choices(server.model or wide.model, server.profile or wide.profile)
        return wide, self._chosen.get(place_of(thread), NO_CHOICES)

    async def chosen_for(self, place: str) -> Choices:
        """What was chosen for just this place. Raises StoreError."""
        await self._fresh()
        return self._chosen.get(place, NO_CHOICES)

    async def widest(self, thread: ThreadId) -> str:
        """The place around a thread's channel: PLATFORM@SERVER where it is in one, else PLATFORM. Raises StoreError."""
        address = thread_address(thread)
        server = await self._registry.server_of(address.platform, address.channel)
        return f"{address.platform}@{server}" if server else address.platform

    async def choose(self, place: str, choices: Choices) -> None:
        """Set what was chosen for PLATFORM, PLATFORM@SERVER or PLATFORM:CHANNEL. Raises StoreError."""
        await self._registry.choose(place, "" if choices == NO_CHOICES else msgspec.json.encode(choices).decode())
        self.changed()

    async def bind(self, binding: Binding) -> None:
        """Bind a channel. Raises StoreError."""
        await self._registry.bind(binding)
        self.changed()

    async def unbind(self, thread: ThreadId) -> bool:
        """Take the binding of the thread's channel away; False when there is none. Raises StoreError."""
        address = thread_address(thread)
        found = await self._registry.unbind(address.platform, address.channel)
        self.changed()
        return found

    def changed(self) -> None:
        """Read them again at the next question."""
        self._read_at = None
        self._changes += 1

    async def _fresh(self) -> None:
        now, changes = self._clock.monotonic(), self._changes
        if self._read_at is not None and now - self._read_at < SECONDS:
            return
        bound = {one.place: one.agent for one in await self._registry.bindings()}
        chosen = {place: _decoded(place, value) for place, value in (await self._registry.choices()).items()}
        self._bound, self._chosen = bound, chosen
        self._read_at = now if changes == self._changes else None


def _decoded(place: str, value: str) -> Choices:
    try:
        return _choices.decode(value)
    except msgspec.DecodeError:
        log.warning("what was chosen for a place cannot be read and does not count", extra={"place": place})
        return NO_CHOICES


def place_of(thread: ThreadId) -> str:
    """PLATFORM:CHANNEL of a thread."""
    address = thread_address(thread)
    return f"{address.platform}:{address.channel}"
