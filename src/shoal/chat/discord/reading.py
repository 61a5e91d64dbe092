"""Reading back: a channel's messages from the API, and those that came while nobody listened."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from shoal.chat.discord.api import DiscordApi, Refused
from shoal.chat.discord.inbound import Channel, Member, Message, holds_text
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

PAGE = 100
MISSED_A_CHANNEL_MAX = 500
"""How many messages of a channel are read that came while nobody listened; older ones are left."""
DIRECT_MAX = 200
"""Direct conversations that are remembered, since Discord lists bots none; the longest unused are forgotten."""

_direct = msgspec.json.Decoder(list[str])


async def read_messages(api: DiscordApi, channel: str, after: int, limit: int) -> list[Message]:
    """The newest messages of a channel with ids above `after`, at most `limit`, oldest first. Raises PlatformError."""
    found: list[Message] = []
    before = ""
    while len(found) < limit:
        size = min(PAGE, limit - len(found))
        query = {"limit": str(size), **({"before": before} if before else {})}
        page = await api.call("GET", f"/channels/{channel}/messages", list[Message], query=query)
        found += [message for message in page if int(message.id) > after]
        if len(page) < size or int(page[-1].id) <= after:
            break
        before = page[-1].id
    return found[::-1]


class Missed:
    """Finds what was written between two sessions, in every channel that has something newer than the mark."""

    def __init__(self, api: DiscordApi, store: Settings, scope: str) -> None:
        self._api = api
        self._store = store
        self._scope = scope

    async def in_channels(
        self, channels: Iterable[Channel], guild: str, mark: int, take: Callable[[Message], Awaitable[bool]]
    ) -> None:
        """Hand over what a server's channels have above `mark`. Raises PlatformError and StoreError."""
        for channel in channels:
            if holds_text(channel) and int(channel.last_message_id or 0) > mark:
                for message in await self._read(channel.id, mark):
                    await take(await self._whole(message, guild))

    async def in_direct(self, mark: int, take: Callable[[Message], Awaitable[bool]]) -> None:
        """The same for the direct conversations that are known."""
        for channel in await self._known():
            for message in await self._read(channel, mark):
                await take(message)

    async def know(self, channel: str) -> None:
        """Remember a direct conversation."""
        known = await self._known()
        if channel not in known:
            await self._store.put(self._scope, "direct", msgspec.json.encode([*known, channel][-DIRECT_MAX:]).decode())

    async def _known(self) -> Sequence[str]:
        kept = await self._store.get(self._scope, "direct")
        return _direct.decode(kept) if kept else []

    async def _read(self, channel: str, mark: int) -> list[Message]:
        try:
            return await read_messages(self._api, channel, mark, MISSED_A_CHANNEL_MAX)
        except Refused as error:
            log.info("a channel could not be read back", extra={"channel": channel, "why": str(error)})
            return []

    async def _whole(self, message: Message, guild: str) -> Message:
        """The message with its server and its author's roles, which only events have."""
        member: Member | None = None
        if message.author is not None and not message.author.bot and not message.webhook_id:
            try:
                member = await self._api.call("GET", f"/guilds/{guild}/members/{message.author.id}", Member)
            except Refused as error:
                log.info("a member could not be asked for", extra={"guild": guild, "why": str(error)})
        return msgspec.structs.replace(message, guild_id=guild, member=member)
