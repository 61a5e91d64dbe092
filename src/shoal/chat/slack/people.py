"""Who people are in a workspace, remembered for a while so that not every message asks."""

from collections import OrderedDict

import msgspec

from shoal.chat.slack.api import SlackApi
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.messages import Author

PEOPLE_MAX = 2000
KNOWN_SECONDS = 3600.0


class _Profile(msgspec.Struct, frozen=True):
    display_name: str = ""
    real_name: str = ""


class _User(msgspec.Struct, frozen=True):
    name: str = ""
    real_name: str = ""
    is_bot: bool = False
    is_admin: bool = False
    is_owner: bool = False
    is_restricted: bool = False
    is_ultra_restricted: bool = False
    is_stranger: bool = False
    profile: _Profile = _Profile()


class _Found(msgspec.Struct, frozen=True):
    user: _User


class People:
    """The users of one workspace, at most PEOPLE_MAX of them remembered for KNOWN_SECONDS."""

    def __init__(self, api: SlackApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, Author]] = OrderedDict()

    async def author(self, user: str) -> Author:
        """The user with name and roles (`admin`, `owner`, `guest`, `external`); the bare id when Slack does not say."""
        now = self._clock.monotonic()
        until, author = self._known.get(user, (0.0, Author(user, trusted=False)))
        if now < until:
            return author
        try:
            found = (await self._api.call("users.info", _Found, {"user": user})).user
        except PlatformError:
            return author
        name = found.profile.display_name or found.profile.real_name or found.real_name or found.name
        author = Author(user, name, _roles(found), found.is_bot, trusted=False)
        self._known[user] = (now + KNOWN_SECONDS, author)
        self._known.move_to_end(user)
        while len(self._known) > PEOPLE_MAX:
            self._known.popitem(last=False)
        return author


def _roles(user: _User) -> tuple[str, ...]:
    having = {
        "admin": user.is_admin,
        "owner": user.is_owner,
        "guest": user.is_restricted or user.is_ultra_restricted,
        "external": user.is_stranger,
    }
    return tuple(role for role, has in having.items() if has)
