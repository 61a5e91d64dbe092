"""Pairing: admit unknown people with a code.

The list of each platform is one value in the store's settings. Each change is a compare-and-swap, so processes do
not overwrite each other. Only a digest of each code is stored.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound, StoreCorrupt, StoreError
from shoal.kernel.messages import (
    Author,
)
from shoal.kernel.records import AuditEntry
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.permissions.access import (
    CODE_LENGTH,
    code_digest,
    is_code,
    make_code,
)
from shoal.store.store import Store

log = logging.getLogger(__name__)

CODE_STANDS_SECONDS = 3600.0
WAITING_MAX = 20
"""Maximum number of unknown people per platform who can have a code at the same time.

Other people receive a code after one of these codes expires or is used.
"""
PAIRED_MAX = 1000
"""Maximum number of people per platform who have access through a code. To admit more people, add a role to the
platform's `allow`.
"""
SWAPS_MAX = 50
NAME_CHARS_MAX = 100
SCOPE = "access"
CHAIN = "access"


class PairingRequest(msgspec.Struct, frozen=True):
    """An unknown person's request. Its code is valid until `expires_at`."""

    user: str
    name: str
    digest: str
    expires_at: datetime


class PairedPerson(msgspec.Struct, frozen=True):
    user: str
    name: str = ""
    by: str = ""
    at: datetime | None = None


class PairingList(msgspec.Struct, frozen=True):
    paired: tuple[PairedPerson, ...] = ()
    waiting: tuple[PairingRequest, ...] = ()


_rosters = msgspec.json.Decoder(PairingList)


def _nobody_looks() -> None:
    """Do nothing. The default for `removed`."""


class Pairing(msgspec.Struct, frozen=True, eq=False):
    """The pairing lists of all platforms, shared by all processes. `removed` is called after a person is removed."""

    store: Store
    clock: Clock
    removed: Callable[[], None] = _nobody_looks

    async def people(self, platform: str) -> tuple[str, ...]:
        """Return the user ids of paired people, or none if the list is unreadable."""
        try:
            return tuple(person.user for person in (await self.roster(platform)).paired)
        except StoreError:
            log.exception("reading paired people failed, access closed", extra={"platform": platform})
            return ()

    async def roster(self, platform: str) -> PairingList:
        """Return the paired people, and the people who are waiting with a valid code. Raises StoreError."""
        return (await self._read(platform))[1]

    async def ask(self, platform: str, author: Author) -> str:
        """Create a code for an unknown person.

        Returns an empty string if they already have a valid code or WAITING_MAX people are waiting. Raises StoreError.
        """
        code = make_code(secrets.token_bytes(16))
        until = self.clock.now() + timedelta(seconds=CODE_STANDS_SECONDS)
        request = PairingRequest(author.id, author.name[:NAME_CHARS_MAX], code_digest(code), until)

        def wait(roster: PairingList) -> PairingList | None:
            if len(roster.waiting) >= WAITING_MAX or any(request.user == author.id for request in roster.waiting):
                return None
            return PairingList(roster.paired, (*roster.waiting, request))

        try:
            return code if await self._change(platform, wait) else ""
        except Conflict:
            return ""

    async def confirm(self, code: str, platforms: Sequence[str], by: str) -> tuple[str, str]:
        """Admit the person who received this code, which works only once. Return their platform and user id.

        Raises InvalidInput for a malformed code, NotFound for a wrong or expired code, Conflict if PAIRED_MAX people
        are admitted or other changes keep interfering, and StoreError.
        """
        if sum(char.isalnum() for char in code) != CODE_LENGTH:
            raise InvalidInput(f"A pairing code has {CODE_LENGTH} letters and digits. Copy it from the person's chat.")
        user = ""

        def let_in(roster: PairingList) -> PairingList | None:
            nonlocal user
            request = next(
                (request_waiting for request_waiting in roster.waiting if is_code(code, request_waiting.digest)), None
            )
            if request is None:
                return None
            user = request.user
            others = tuple(person_paired for person_paired in roster.paired if person_paired.user != user)
            if len(others) >= PAIRED_MAX:
                raise Conflict(f"{PAIRED_MAX} people are already paired. Add a role to `allow` instead.")
            person = PairedPerson(user, request.name, by, self.clock.now())
            return PairingList((*others, person), tuple(request for request in roster.waiting if request.user != user))

        for platform in platforms:
            if await self._change(platform, let_in):
                await self._note("pair", platform, user, by)
                return platform, user
        raise NotFound("This pairing code does not exist or has expired. Ask the person to write again.")

    async def remove(self, platform: str, user: str, by: str) -> None:
        """Remove a person who was admitted with a code. Raises NotFound, Conflict and StoreError."""

        def without_person(roster: PairingList) -> PairingList | None:
            left = tuple(person for person in roster.paired if person.user != user)
            return PairingList(left, roster.waiting) if len(left) < len(roster.paired) else None

        if not await self._change(platform, without_person):
            raise NotFound(f"{platform}:{user} is not paired. `shoal pair list` shows all paired people.")
        await self._note("unpair", platform, user, by)
        self.removed()

    async def _change(self, platform: str, change: Callable[[PairingList], PairingList | None]) -> bool:
        for _ in range(SWAPS_MAX):
            raw, roster = await self._read(platform)
            changed = change(roster)
            if changed is None:
                return False
            value = msgspec.json.encode(changed).decode()
            if await self.store.settings.swap(SCOPE, f"people:{platform}", raw, value):
                return True
        raise Conflict("The list of paired people keeps changing. Try again.")

    async def _read(self, platform: str) -> tuple[str | None, PairingList]:
        raw = await self.store.settings.get(SCOPE, f"people:{platform}")
        try:
            roster = _rosters.decode(raw) if raw else PairingList()
        except UNREADABLE as error:
            raise StoreCorrupt(
                f"The list of paired people on {platform} is damaged: {refusal(error, PairingList)}."
            ) from error
        now = self.clock.now()
        latest = now + timedelta(seconds=2 * CODE_STANDS_SECONDS)  # A later time was stored while the clock was ahead.
        return raw, PairingList(
            roster.paired, tuple(request for request in roster.waiting if now < request.expires_at <= latest)
        )

    async def _note(self, what: str, platform: str, user: str, by: str) -> None:
        entry = AuditEntry("access", f"{what} {platform}:{user}", "allow" if what == "pair" else "deny", user=by)
        await self.store.audit.record(CHAIN, [entry])
