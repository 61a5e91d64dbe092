"""Pairing: strangers who wait with a code, and the people that were let in with one; a list a platform.

Each list is one value of the store's settings and every change of it a compare-and-swap, so that no process loses what
another has written. Of a code only a digest is kept.
"""

import logging
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import Conflict, InvalidInput, NotFound, StoreCorrupt, StoreError
from shoal.domain.messages import Author
from shoal.domain.records import AuditEntry
from shoal.domain.store import Store
from shoal.permissions.access import CODE_LENGTH, code_digest, is_code, make_code

log = logging.getLogger(__name__)

CODE_STANDS_SECONDS = 3600.0
WAITING_MAX = 20
"""Strangers of one platform that wait at once; more get no code until one is let in or a code has expired."""
PAIRED_MAX = 1000
"""People of one platform that can be let in by code; whoever has more names a role in the platform's `allow`."""
SWAPS_MAX = 50
"""Tries to change a list that others change too."""
NAME_CHARS_MAX = 100
SCOPE = "access"
CHAIN = "access"
"""The audit chain of who was let in and shut out."""


class Waiting(msgspec.Struct, frozen=True):
    """A stranger who has a code until `expires_at`."""

    user: str
    name: str
    digest: str
    expires_at: datetime


class Paired(msgspec.Struct, frozen=True):
    """Somebody who was let in: when, and by whom."""

    user: str
    name: str = ""
    by: str = ""
    at: datetime | None = None


class Roster(msgspec.Struct, frozen=True):
    """The people of a platform."""

    paired: tuple[Paired, ...] = ()
    waiting: tuple[Waiting, ...] = ()


_rosters = msgspec.json.Decoder(Roster)


class Pairing:
    """The lists of all platforms, over any number of processes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def people(self, platform: str) -> tuple[str, ...]:
        """The user ids that were paired; nobody when that cannot be read."""
        try:
            return tuple(one.user for one in (await self.roster(platform)).paired)
        except StoreError:
            log.exception("who is paired cannot be read; access is closed", extra={"platform": platform})
            return ()

    async def roster(self, platform: str) -> Roster:
        """Who is paired, and who waits with a code that still stands. Raises StoreError."""
        return (await self._read(platform))[1]

    async def ask(self, platform: str, author: Author) -> str:
        """A new code for a stranger; empty when they have one that stands, or WAITING_MAX wait. Raises StoreError."""
        code = make_code(secrets.token_bytes(16))
        until = self._clock.now() + timedelta(seconds=CODE_STANDS_SECONDS)
        request = Waiting(author.id, author.name[:NAME_CHARS_MAX], code_digest(code), until)
        for _ in range(SWAPS_MAX):
            raw, found = await self._read(platform)
            if len(found.waiting) >= WAITING_MAX or any(one.user == author.id for one in found.waiting):
                return ""
            if await self._swap(platform, raw, msgspec.structs.replace(found, waiting=(*found.waiting, request))):
                return code
        return ""

    async def confirm(self, code: str, platforms: Sequence[str], by: str) -> tuple[str, str]:
        """Let whoever got this code in, once; returns platform and user.

        Raises InvalidInput for what cannot be a code, NotFound for a wrong or expired one, Conflict when PAIRED_MAX
        people are in or others change the list all the time, StoreError.
        """
        if sum(char.isalnum() for char in code) != CODE_LENGTH:
            raise InvalidInput(f"A pairing code has {CODE_LENGTH} letters and digits; copy it from the person's chat.")
        for platform in platforms:
            user = await self._confirm(code, platform, by)
            if user:
                return platform, user
        raise NotFound("There is no such pairing code, or it has expired. Ask the person to write once more.")

    async def remove(self, platform: str, user: str, by: str) -> None:
        """Shut somebody out who was let in by code. Raises NotFound, Conflict, StoreError."""
        for _ in range(SWAPS_MAX):
            raw, found = await self._read(platform)
            left = tuple(one for one in found.paired if one.user != user)
            if len(left) == len(found.paired):
                raise NotFound(f"{platform}:{user} was not let in by a code; `shoal pair list` shows who was.")
            if await self._swap(platform, raw, msgspec.structs.replace(found, paired=left)):
                await self._note("unpair", platform, user, by)
                return
        raise _contended()

    async def _confirm(self, code: str, platform: str, by: str) -> str:
        for _ in range(SWAPS_MAX):
            raw, found = await self._read(platform)
            request = next((one for one in found.waiting if is_code(code, one.digest)), None)
            if request is None:
                return ""
            others = tuple(one for one in found.paired if one.user != request.user)
            if len(others) >= PAIRED_MAX:
                raise Conflict(f"{PAIRED_MAX} people are let in by code already. Name a role in `allow` instead.")
            paired = Paired(request.user, request.name, by, self._clock.now())
            waiting = tuple(one for one in found.waiting if one.user != request.user)
            if await self._swap(platform, raw, Roster((*others, paired), waiting)):
                await self._note("pair", platform, request.user, by)
                return request.user
        raise _contended()

    async def _read(self, platform: str) -> tuple[str | None, Roster]:
        """The value as it is stored, and what it says now."""
        raw = await self._store.settings.get(SCOPE, f"people:{platform}")
        try:
            found = _rosters.decode(raw) if raw else Roster()
        except msgspec.DecodeError as error:
            raise StoreCorrupt(f"The list of people let in on {platform} is damaged: {error}.") from error
        now = self._clock.now()
        return raw, Roster(found.paired, tuple(one for one in found.waiting if one.expires_at > now))

    async def _swap(self, platform: str, raw: str | None, roster: Roster) -> bool:
        value = msgspec.json.encode(roster).decode()
        return await self._store.settings.swap(SCOPE, f"people:{platform}", raw, value)

    async def _note(self, what: str, platform: str, user: str, by: str) -> None:
        entry = AuditEntry("access", f"{what} {platform}:{user}", "allow" if what == "pair" else "deny", user=by)
        await self._store.audit.record(CHAIN, [entry])


def _contended() -> Conflict:
    return Conflict("Others change the list of people all the time. Try again.")
