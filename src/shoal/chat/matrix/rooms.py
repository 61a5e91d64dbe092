"""What is known of the rooms: who is in them, whether they are encrypted, and which is somebody's own with the bot."""

from collections import OrderedDict

import msgspec

from shoal.chat.matrix.api import Body, MatrixApi, Refused, Value, path_of
from shoal.chat.matrix.inbound import Event, Place
from shoal.chat.matrix.sealing import Sealing
from shoal.domain.messages import Author

ROOMS_MAX = 500
"""Rooms whose members are remembered; the longest unused are asked for again."""
DIRECT_MEMBERS = 2
NAME_CHARS_MAX = 100


class _Member(msgspec.Struct, frozen=True):
    display_name: str | None = None


class _Joined(msgspec.Struct, frozen=True):
    joined: dict[str, _Member]


class _Encryption(msgspec.Struct, frozen=True):
    algorithm: str = ""


class _Made(msgspec.Struct, frozen=True):
    room_id: str


class Rooms:
    """The rooms of one account."""

    def __init__(self, api: MatrixApi, sealing: Sealing) -> None:
        self._api = api
        self.sealing = sealing
        self._members: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._encrypted: dict[str, bool] = {}

    def note(self, room: str, event: Event) -> None:
        """Something happened in a room that may change what is known of it."""
        if event.type == "m.room.member":
            self._members.pop(room, None)
        elif event.type == "m.room.encryption":
            self._encrypted[room] = True

    async def members(self, room: str) -> dict[str, str]:
        """Who is in a room, with the names they show there. Raises PlatformError."""
        known = self._members.get(room)
        if known is None:
            found = await self._api.call("GET", path_of("rooms", room, "joined_members"), _Joined)
            known = {user: member.display_name or "" for user, member in found.joined.items()}
            self._members[room] = known
            while len(self._members) > ROOMS_MAX:
                self._members.popitem(last=False)
        self._members.move_to_end(room)
        return known

    async def place(self, room: str) -> Place:
        """The room, and whether one person is alone in it with the bot. Raises PlatformError."""
        return Place(room, len(await self.members(room)) == DIRECT_MEMBERS)

    async def author(self, room: str, user: str) -> Author:
        """Somebody in a room. Raises PlatformError."""
        return Author(user, (await self.members(room)).get(user, ""), trusted=False)

    async def is_encrypted(self, room: str) -> bool:
        """Whether what is written there is encrypted. Raises PlatformError."""
        if room not in self._encrypted:
            try:
                path = path_of("rooms", room, "state", "m.room.encryption")
                self._encrypted[room] = bool((await self._api.call("GET", path, _Encryption)).algorithm)
            except Refused as error:
                if error.code != "M_NOT_FOUND":
                    raise
                self._encrypted[room] = False
        return self._encrypted[room]

    async def create(self, name: str, invited: tuple[str, ...], *, direct: bool = False) -> str:
        """Make a room and invite people to it; returns its id. Raises PlatformError."""
        people: list[Value] = list(invited)
        body: Body = {
            "preset": "trusted_private_chat" if direct else "private_chat",
            "is_direct": direct,
            "invite": people,
            **({"name": name[:NAME_CHARS_MAX]} if name else {}),
        }
        return (await self._api.call("POST", path_of("createRoom"), _Made, body)).room_id

    async def direct(self, user: str) -> str:
        """The room that somebody has alone with the bot; made when there is none. Raises PlatformError."""
        me = (await self._api.session()).user_id
        path = path_of("user", me, "account_data", "m.direct")
        try:
            known = await self._api.call("GET", path, dict[str, list[str]])
        except Refused as error:
            if error.code != "M_NOT_FOUND":
                raise
            known = {}
        for room in reversed(known.get(user, [])):
            if await self._is_alone_with(room, user):
                return room
        made = await self.create("", (user,), direct=True)
        mine: dict[str, Value] = {one: list[Value](rooms) for one, rooms in known.items()}
        mine[user] = [*known.get(user, []), made]
        await self._api.call("PUT", path, msgspec.Raw, mine)
        return made

    async def _is_alone_with(self, room: str, user: str) -> bool:
        try:
            found = await self.members(room)
        except Refused:
            return False
        return user in found and len(found) == DIRECT_MEMBERS
