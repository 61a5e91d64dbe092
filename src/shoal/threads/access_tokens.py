"""Create, look up and revoke access tokens.

Each use of a token checks the access rules again, as if the token's person had written on their platform. A token never
grants more than the rules do, and is useless if its person loses access.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from typing import Annotated

import msgspec

from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.messages import Author
from shoal.kernel.permissions import TOKEN_NAME, TOKEN_SCOPES, AccessToken, TokenScope, parse_expiry
from shoal.permissions.access import STRANGER, AccessRules, Admission, Links, admit, vouched
from shoal.store.store import Store
from shoal.threads.pairing import Pairing

PREFIX = "shoal_"
ENTROPY_BYTES = 32
OWNER = "web:owner"
"""Identity of the owner. The home's own token acts as this person."""


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    scope: TokenScope
    person: Annotated[str, msgspec.Meta(max_length=300)] = ""
    """PLATFORM:USER, a name from [access.people], or `owner`. If empty, an `admin` token acts as the owner. Any other
    token acts as `web:NAME`, where NAME is the token's own name.
    """
    agent: Annotated[str, msgspec.Meta(max_length=64)] = ""
    expires: Annotated[str, msgspec.Meta(max_length=40)] = ""
    """A duration (`90d`), a date, or a time. Empty means that the token never expires."""


class AccessTokens(msgspec.Struct, frozen=True, eq=False):
    """The access tokens of an installation, shared by all its processes.

    `agents` returns the names of current agents.
    """

    store: Store
    clock: Clock
    pairing: Pairing
    links: Links
    agents: Callable[[], Collection[str]]

    async def create(self, wanted: NewToken, by: str, via: str = "") -> tuple[AccessToken, str]:
        """Create a token. Return it with its secret text, which is not stored.

        `by` is the person who creates it, and `via` the token that they used. Raises InvalidInput, Conflict if the
        name is already used, and StoreError.
        """
        if not TOKEN_NAME.fullmatch(wanted.name):
            raise InvalidInput(
                f"{wanted.name[:80]!r} is not a valid token name. Use 1 to 64 characters from a-z, 0-9, - and _."
            )
        if wanted.scope not in TOKEN_SCOPES:
            raise InvalidInput(f"No scope named {wanted.scope[:40]!r}. Scopes: {', '.join(TOKEN_SCOPES)}.")
        if wanted.agent and wanted.scope == "admin":
            raise InvalidInput("An admin token covers every agent. Omit the agent, or choose another scope.")
        if wanted.agent and wanted.agent not in self.agents():
            raise InvalidInput(f"No agent named {wanted.agent[:80]!r}. Agents: {', '.join(self.agents())}.")
        now = self.clock.now()
        text = f"{PREFIX}{secrets.token_urlsafe(ENTROPY_BYTES)}"
        token = AccessToken(
            name=wanted.name,
            digest=digest_of(text),
            scope=wanted.scope,
            person=await self._person(wanted),
            created_by=by,
            created_at=now,
            agent=wanted.agent,
            expires_at=parse_expiry(wanted.expires, now) if wanted.expires else None,
        )
        await self.store.tokens.add(token, via)
        return token, text

    async def all(self) -> list[AccessToken]:
        """Return all tokens sorted by name, including expired ones. Raises StoreError."""
        return await self.store.tokens.all()

    async def revoke(self, name: str, by: str, via: str = "") -> None:
        """Revoke a token. Its next call is rejected, and live streams end within a second. Raises NotFound."""
        if not await self.store.tokens.revoke(name, by, via):
            raise NotFound(f"No token named {name[:80]!r}. `shoal token list` shows all tokens.")
        self.pairing.removed()

    async def find(self, text: str) -> AccessToken | None:
        """Find a token by its secret text, even if it has expired. Raises StoreError."""
        if not text.startswith(PREFIX):
            return None
        digest = digest_of(text)
        row = await self.store.tokens.by_digest(digest)
        return row if row is not None and hmac.compare_digest(row.digest, digest) else None

    async def named(self, name: str) -> AccessToken | None:
        """Find a token by name, even if it has expired. Raises StoreError."""
        return await self.store.tokens.by_name(name) if TOKEN_NAME.fullmatch(name) else None

    def has_expired(self, token: AccessToken) -> bool:
        return token.expires_at is not None and token.expires_at <= self.clock.now()

    async def note_use(self, token: AccessToken) -> None:
        """Record the token's use, with at most one write per day. Raises StoreError."""
        today = self.clock.now().date().isoformat()
        if token.used_on != today:
            await self.store.tokens.note_use(token, today)

    async def is_valid(self, token: AccessToken) -> bool:
        """Return True if the token is not revoked, replaced or expired, and its person still has access."""
        row = await self.store.tokens.by_digest(token.digest)
        return row is not None and not self.has_expired(row) and await self.author(row) is not None

    async def author(self, token: AccessToken) -> Author | None:
        """Return the token's person with the trust that the access rules now give them, or None if they have lost
        access.
        """
        platform, _, user = token.person.partition(":")
        admission = await self.admission(token.person)
        if not admission.allowed:
            return None
        name = self.links.people.find(token.person).name or (user if platform == "web" else token.name)
        return Author(token.person, name, trusted=admission.trusted)

    async def _person(self, wanted: NewToken) -> str:
        linked = self.links.people.named(wanted.person)
        if wanted.person and linked.identities:
            person = linked.identities[0]
        elif wanted.person == "owner" or (not wanted.person and wanted.scope == "admin"):
            person = OWNER
        else:
            person = wanted.person or f"web:{wanted.name}"
        platform, _, user = person.partition(":")
        if not user or platform not in self.links.rules:
            known = ", ".join(sorted(self.links.rules))
            raise InvalidInput(
                f"{person[:80]!r} is not a valid person. Use PLATFORM:USER, where PLATFORM is one of {known}, or "
                "the name of a linked person."
            )
        if platform == "web" and not TOKEN_NAME.fullmatch(user):
            raise InvalidInput(
                f"{person[:80]!r} is not valid. A page user is web:NAME, where NAME has 1 to 64 characters "
                "from a-z, 0-9, - and _."
            )
        if person == OWNER and not wanted.person and wanted.scope != "admin":
            raise InvalidInput(
                "A token named owner would act as the owner. Confirm with `--as owner`, or choose another name."
            )
        if not (await self.admission(person)).allowed:
            raise InvalidInput(f"{person[:80]} has no access. Add them to platforms.{platform}.allow, or pair them.")
        return person

    async def admission(self, identity: str) -> Admission:
        """Resolve a person's access from the rules for each of their identities.

        A `web:NAME` identity without a rule is admitted by its token alone, and is not trusted.
        """
        platform, _, user = identity.partition(":")
        person = self.links.people.find(identity)
        rules = self.links.rules.get(platform)
        admission = Admission(True) if platform == "web" else STRANGER
        if rules is not None:
            paired = await self.pairing.people(platform)
            anywhere = AccessRules(rules.owners, rules.allow, trust_everybody=rules.trust_everybody)
            here = admit(anywhere, Author(user, roles=person.roles, trusted=False), "", paired)
            admission = here if here.allowed else admission
        for other in person.identities:
            there, _, name = other.partition(":")
            if there in self.links.rules and other != identity and not admission.trusted:
                elsewhere = vouched(self.links.rules[there], name, await self.pairing.people(there))
                admission = elsewhere if elsewhere.allowed else admission
        return admission


def digest_of(text: str) -> str:
    """Return the digest under which a token is stored. A token has 256 random bits, so a single SHA-256 hash is
    enough.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
