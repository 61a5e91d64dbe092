"""Decide who may use Shoal, from allow-lists, linked identities and pairing codes. All functions are pure and deny by
default.

This module also computes the digests of approvals and checks who may decide them.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence

import msgspec

from shoal.kernel.ids import OWN_PLATFORMS, ThreadId, is_personal, thread_address
from shoal.kernel.messages import Author
from shoal.kernel.permissions import Asker, Audience, Trust
from shoal.kernel.records import Approval

CODE_CHARS = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
CODE_LENGTH = 8
EVERYBODY = "*"


class AccessRules(msgspec.Struct, frozen=True):
    """The access rules of one platform."""

    owners: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    """User ids, `role:NAME` or `*`."""
    channels: tuple[str, ...] = ()
    """Allowed channels. Empty means all."""
    trust_everybody: bool = False
    """Whether to trust everyone that `*` admits. Set on platforms where all users are known."""


class Admission(msgspec.Struct, frozen=True):
    """A person's access. `owner` and `trusted` each imply `allowed`."""

    allowed: bool
    trusted: bool = False
    owner: bool = False

    @property
    def trust(self) -> Trust:
        return "owner" if self.owner else "trusted" if self.trusted else "untrusted"


STRANGER = Admission(False)


def admit(rules: AccessRules, author: Author, channel: str, paired: Sequence[str] = ()) -> Admission:
    """Return a person's access in a channel. Bots and people without an id have no access."""
    if not author.id or author.is_bot:
        return STRANGER
    if author.id in rules.owners:
        return Admission(True, trusted=True, owner=True)
    if rules.channels and channel not in rules.channels:
        return STRANGER
    named = author.id in rules.allow or author.id in paired
    if named or any(f"role:{role}" in rules.allow for role in author.roles):
        return Admission(True, trusted=True)
    if EVERYBODY in rules.allow:
        return Admission(True, trusted=rules.trust_everybody)
    return STRANGER


class Person(msgspec.Struct, frozen=True):
    """A person with identities (PLATFORM:USER) on several platforms.

    The daily limits override the shared budget limits. 0 keeps the shared limit.
    """

    identities: tuple[str, ...]
    roles: tuple[str, ...] = ()
    """Roles, which apply on all platforms."""
    name: str = ""
    usd_per_day: float = 0.0
    tokens_per_day: int = 0
    timezone: str = ""


NOBODY = Person(())


class People:
    """The people with linked identities, and the identities of the owner.

    An identity that is listed twice belongs to the first person.
    """

    def __init__(self, persons: Iterable[Person] = (), owners: Iterable[str] = ()) -> None:
        self._owners = frozenset(owners)
        self._by_identity: dict[str, Person] = {}
        self._by_name: dict[str, Person] = {}
        for person in persons:
            self._by_name.setdefault(person.name, person)
            for identity in person.identities:
                self._by_identity.setdefault(identity, person)

    def become(self, other: "People") -> None:
        """Replace the contents in place with those of `other`."""
        self._owners, self._by_identity, self._by_name = other._owners, other._by_identity, other._by_name

    def find(self, identity: str) -> Person:
        return self._by_identity.get(identity, NOBODY)

    def named(self, name: str) -> Person:
        return self._by_name.get(name, NOBODY)

    def identities(self, asker: Asker) -> tuple[str, ...]:
        return self.find(asker.identity).identities or (asker.identity,)

    def asker(self, asker: Asker) -> Asker:
        """Add the person's linked identities and roles to the asker.

        A trusted asker becomes the owner if one of the identities belongs to the owner.
        """
        person = self.find(asker.identity)
        if person is not NOBODY:
            roles = tuple(dict.fromkeys((*asker.roles, *person.roles)))
            asker = msgspec.structs.replace(asker, known_as=person.identities, roles=roles)
        if asker.trust == "trusted" and not self._owners.isdisjoint(asker.identities):
            asker = msgspec.structs.replace(asker, trust="owner")
        return asker


NO_LINKS = People()
OWNER = "owner"
"""Key under which the owner's private memory is stored, regardless of platform."""


class Links(msgspec.Struct, frozen=True):
    """Linked people and the access rules of each platform, which together determine the audience of a request."""

    people: People = NO_LINKS
    rules: dict[str, AccessRules] = {}

    def become(self, other: "Links") -> None:
        """Replace the contents in place with those of `other`."""
        self.people.become(other.people)
        self.rules.clear()
        self.rules.update(other.rules)

    def audience(self, asker: Asker, author: Author, thread: ThreadId) -> Audience:
        """Return the audience of a request in a thread. `author` must already have the trust that the access rules
        give them there.
        """
        platform, channel, _ = msgspec.structs.astuple(thread_address(thread))
        alone = asker.kind == "direct" or platform in OWN_PLATFORMS
        identities = self.people.identities(asker)
        is_owner = any(f"{there}:{user}" in identities for there, rules in self.rules.items() for user in rules.owners)
        rules = self.rules.get(platform, AccessRules())
        takes_strangers = EVERYBODY in rules.allow and not rules.trust_everybody
        takes_strangers = takes_strangers and (not rules.channels or channel in rules.channels)
        speaker = OWNER if is_owner else identities[0]
        return Audience(
            everywhere=alone and is_owner and not is_personal(thread),
            person=speaker if alone else "",
            guest=(takes_strangers or is_personal(thread)) and not (alone and author.trusted),
            speaker=speaker if asker.user else "",
        )


def vouched(rules: AccessRules, user: str, paired: Sequence[str]) -> Admission:
    """Return the access of a user who is named in the rules or paired. Ignores `*`, channels and roles."""
    named = tuple(name for name in rules.allow if name != EVERYBODY)
    return admit(AccessRules(rules.owners, named), Author(user, trusted=False), "", paired)


def among(*lists: Sequence[str]) -> Callable[[Asker], bool]:
    """Return a function that checks whether a person is on one of these lists. The function reads the lists on each
    call.
    """
    return lambda by: is_among(by, [person for people in lists for person in people])


def is_among(by: Asker, people: Sequence[str]) -> bool:
    """Return True if a person matches an entry of the form PLATFORM:USER, `role:NAME` or PLATFORM:role:NAME.

    A person without an id matches no entry.
    """
    if not by.user or not by.platform:
        return False
    names = {f"{by.platform}:{by.user}"}
    for role in by.roles:
        names |= {f"role:{role}", f"{by.platform}:role:{role}"}
    return any(person in names for person in people)


def make_code(entropy: bytes) -> str:
    """Create a pairing code from at least eight random bytes. It is short enough to type and has 39 bits of entropy."""
    number = int.from_bytes(hashlib.sha256(entropy).digest(), "big")
    reasons: list[str] = []
    for _ in range(CODE_LENGTH):
        number, digit = divmod(number, len(CODE_CHARS))
        reasons.append(CODE_CHARS[digit])
    return "".join(reasons)


def code_digest(code: str) -> str:
    """Return the digest under which a code is stored. Letter case and separators do not matter."""
    plain = "".join(char for char in code.upper() if char.isalnum())
    return hashlib.sha256(f"shoal-pair-1:{plain}".encode()).hexdigest()


def is_code(code: str, digest: str) -> bool:
    """Compare a code with a digest in constant time."""
    return hmac.compare_digest(code_digest(code), digest)


class Bucket:
    """A token bucket that allows `burst` messages at once, and then one per `seconds` seconds. The caller passes
    the time.
    """

    __slots__ = ("_at", "_burst", "_left", "_seconds")

    def __init__(self, burst: int, seconds: float, now: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._left = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + max(0.0, now - self._at) / self._seconds)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


# ---- approvals ----
# An approval is bound to a digest of everything that determines the effect of the call, and can be used once. The rows
# are in the store. The executor compares the digest of the call with the approved one.


def approval_digest(tool: str, canonical: str, *extra: str) -> str:
    """Return the SHA-256 digest, in hex, that an approval is bound to.

    The digest covers the tool's name, the canonical JSON of the call, and `extra`, which is the agent and anything else
    that determines the effect.
    """
    return hashlib.sha256(msgspec.json.encode(["shoal-approval-1", tool, canonical, *extra])).hexdigest()


def may_decide(approval: Approval, by: Asker, approvers: Sequence[str] = (), *, allow: bool = True) -> bool:
    """Return True if a person may decide an approval, as the person who asked for the call or as an approver.

    An untrusted person cannot allow a call that untrusted content caused, because that content may be their own
    message. Linked identities count as the same person. A person without a user id may not decide.

    `approvers` must include the owners. Its entries are PLATFORM:USER, `role:NAME` or PLATFORM:role:NAME.
    """
    if not by.user or not by.platform:
        return False
    names = set(by.identities)
    asked_by = approval.asked_by
    if ":" not in asked_by:
        asked_by = f"{approval.asked_in.split(':', 1)[0]}:{asked_by}"
    if asked_by in names and not (allow and approval.needs_trust and by.trust == "untrusted"):
        return True
    for role in by.roles:
        names |= {f"role:{role}", f"{by.platform}:role:{role}"}
    return any(approver in names for approver in approvers)
