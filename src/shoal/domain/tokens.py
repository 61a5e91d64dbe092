"""Access tokens: what each may do, whose it is, and until when.

    scope      may
    --------   -----------------------------------------------------------------------------------------------
    chat       talk in its person's own threads, read and steer those, and nothing else
    read       read everything but tokens; change nothing
    approve    the same, and decide approvals as its person, who has to be one who may
    admin      everything that the owner's own token may

A token with an agent is confined to that agent's threads besides.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Literal, Protocol, TypeAlias, get_args

import msgspec

from shoal.domain.errors import InvalidInput

TokenScope: TypeAlias = Literal["chat", "read", "approve", "admin"]
SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Names of tokens, and of people that only a token lets in (web:NAME)."""

_SPAN = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class AccessToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token as it is stored. `digest` is the SHA-256 (hex) of what its bearer shows, `person` PLATFORM:USER,
    `used_on` the day (UTC) of its last use."""

    name: str
    digest: str
    scope: TokenScope
    person: str
    created_by: str
    created_at: datetime
    agent: str = ""
    expires_at: datetime | None = None
    used_on: str = ""


class Tokens(Protocol):
    """The access tokens, at most TOKENS_MAX."""

    async def add(self, token: AccessToken, via: str = "") -> None:
        """Store one, which the audit log tells. `via` is the token that its maker came with.

        Raises Conflict when the name is taken or there are TOKENS_MAX.
        """
        ...

    async def by_digest(self, digest: str) -> AccessToken | None:
        """The one with this digest, or None."""
        ...

    async def by_name(self, name: str) -> AccessToken | None:
        """The one of this name, or None."""
        ...

    async def all(self) -> list[AccessToken]:
        """All of them by name, the expired ones too."""
        ...

    async def note_use(self, token: AccessToken, day: str) -> None:
        """Note the day on which it was used last."""
        ...

    async def revoke(self, name: str, by: str, via: str = "") -> bool:
        """Delete it, which the audit log tells; False when there is none. `via` is the token that `by` came with."""
        ...


TOKENS_MAX = 1000


def parse_expiry(text: str, now: datetime) -> datetime:
    """When a token expires: a span from now (`30m`, `12h`, `90d`, `4w`), a day (its beginning, UTC), or a time with its
    offset. Raises InvalidInput for anything else, and for what is past."""
    span = _SPAN.fullmatch(text)
    try:
        if span is not None:
            found = now + timedelta(**{_UNITS[span[2]]: int(span[1])})
        elif re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            found = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        else:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                raise ValueError("no offset")
        found = found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{text[:40]!r} is no time to expire at: write 90d, 12h, 2027-01-31 or 2027-01-31T09:00:00Z."
        ) from error
    if found <= now:
        raise InvalidInput(f"{text[:40]!r} is past: a token has to expire later than now.")
    return found
