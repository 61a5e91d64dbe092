"""Making channels, and looking whether one is there."""

import msgspec

from shoal.chat.slack.api import Refusal, SlackApi
from shoal.chat.slack.outbound import CHANNEL_NAME_CHARS_MAX, channel_name
from shoal.domain.errors import PlatformError

INVITED_MAX = 50
"""People of a private channel who are invited to one made beside it."""
NAMES_MAX = 9
"""Names tried when the first is taken: name, name-2, …"""


class _Room(msgspec.Struct, frozen=True):
    id: str = ""
    is_private: bool = False
    is_archived: bool = False
    is_member: bool = False
    is_im: bool = False
    is_mpim: bool = False


class _Found(msgspec.Struct, frozen=True):
    channel: _Room


class _Members(msgspec.Struct, frozen=True):
    members: tuple[str, ...] = ()


class _Done(msgspec.Struct, frozen=True):
    pass


class Rooms:
    """The channels of one workspace."""

    def __init__(self, api: SlackApi) -> None:
        self._api = api

    async def make(self, name: str, beside: str, me: str) -> str:
        """Make a channel; beside a private one or a conversation it is private, with the same people. Returns its id.

        Raises PlatformError.
        """
        private = bool(beside) and (await self._info(beside)).is_private
        people = await self._people(beside, me) if private else ()
        made = await self._create(channel_name(name), private)
        if people:
            await self._api.call("conversations.invite", _Done, {"channel": made, "users": ",".join(people)})
        return made

    async def has(self, channel: str) -> bool:
        """Whether the channel is there and the bot may write to it. Raises PlatformError when that is not known."""
        try:
            found = await self._info(channel)
        except Refusal as refusal:
            if refusal.code == "channel_not_found":
                return False
            raise
        return not found.is_archived and (found.is_member or found.is_im or found.is_mpim)

    async def direct(self, user: str) -> str:
        """The direct conversation with a person. Raises PlatformError."""
        return (await self._api.call("conversations.open", _Found, {"users": user})).channel.id

    async def _create(self, name: str, private: bool) -> str:
        for number in range(1, NAMES_MAX + 1):
            ending = f"-{number}" if number > 1 else ""
            tried = name[: CHANNEL_NAME_CHARS_MAX - len(ending)] + ending
            try:
                found = await self._api.call("conversations.create", _Found, {"name": tried, "is_private": private})
            except Refusal as refusal:
                if refusal.code != "name_taken":
                    raise
            else:
                return found.channel.id
        raise PlatformError(f"Channels of the name {name!r} are there already. Choose another name.", permanent=True)

    async def _info(self, channel: str) -> _Room:
        found = (await self._api.call("conversations.info", _Found, {"channel": channel})).channel
        return msgspec.structs.replace(found, is_private=found.is_private or found.is_im or found.is_mpim)

    async def _people(self, channel: str, me: str) -> tuple[str, ...]:
        given = {"channel": channel, "limit": INVITED_MAX + 2}
        people = (await self._api.call("conversations.members", _Members, given)).members
        if len(people) > INVITED_MAX + 1:
            reason = f"The private channel has more than {INVITED_MAX} people to invite. Make the channel yourself."
            raise PlatformError(reason, permanent=True)
        return tuple(person for person in people if person != me)
