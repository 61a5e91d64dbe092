"""The access tokens' rows."""

from typing import cast

from shoal.domain.clock import Clock, from_micros, to_micros
from shoal.domain.errors import Conflict
from shoal.domain.records import AuditEntry
from shoal.domain.tokens import TOKENS_MAX, AccessToken, TokenScope
from shoal.store.appends import chain
from shoal.store.rows import moment
from shoal.store.script import Driver, Row, Script, number, query, text

CHAIN = "tokens"
"""The audit chain of tokens that were made and revoked."""


class TokensView:
    """Implements `domain.tokens.Tokens` over either dialect."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def add(self, token: AccessToken, via: str = "") -> None:
        """Store one and have the audit log tell."""
        what = f"agent {token.agent}, " if token.agent else ""
        until = f"until {token.expires_at:%Y-%m-%d %H:%M} UTC" if token.expires_at else "for good"
        entry = AuditEntry(
            "token",
            f"create {token.name}",
            "allow",
            user=token.created_by,
            detail=f"{token.scope} as {token.person}, {what}{until}",
            token=via,
        )
        await self._driver.write(self._add(token, entry))

    async def by_digest(self, digest: str) -> AccessToken | None:
        """The one with this digest, or None."""
        rows = await self._driver.read(query("token_by_digest", digest=digest))
        return _token(rows[0]) if rows else None

    async def by_name(self, name: str) -> AccessToken | None:
        """The one of this name, or None."""
        rows = await self._driver.read(query("token_by_name", token=name))
        return _token(rows[0]) if rows else None

    async def all(self) -> list[AccessToken]:
        """All of them by name."""
        return [_token(row) for row in await self._driver.read(query("tokens_all"))]

    async def note_use(self, token: AccessToken, day: str) -> None:
        """Note the day on which it was used last."""
        await self._driver.write(query("token_used", token=token.name, digest=token.digest, day=day))

    async def revoke(self, name: str, by: str, via: str = "") -> bool:
        """Delete it, which the audit log tells; False when there is none."""
        return await self._driver.write(self._revoke(name, AuditEntry("token", f"revoke {name}", user=by, token=via)))

    def _add(self, token: AccessToken, entry: AuditEntry) -> Script[None]:
        if number((yield from query("token_count"))[0][0]) >= TOKENS_MAX:
            raise Conflict(f"There are {TOKENS_MAX} tokens already; `shoal token revoke NAME` makes room.")
        stored = yield from query(
            "token_insert",
            token=token.name,
            digest=token.digest,
            scope=token.scope,
            person=token.person,
            agent=token.agent,
            created_by=token.created_by,
            created_at=to_micros(token.created_at),
            expires_at=None if token.expires_at is None else to_micros(token.expires_at),
        )
        if not stored:
            raise Conflict(f"There is a token {token.name} already; `shoal token revoke {token.name}` ends it.")
        yield from chain(CHAIN, (entry,), self._clock.now())

    def _revoke(self, name: str, entry: AuditEntry) -> Script[bool]:
        if not (yield from query("token_delete", token=name)):
            return False
        yield from chain(CHAIN, (entry,), self._clock.now())
        return True


def _token(row: Row) -> AccessToken:
    name, digest, scope, person, agent, created_by, created_at, expires_at, used_on = row
    return AccessToken(
        name=text(name),
        digest=text(digest),
        scope=cast("TokenScope", text(scope)),
        person=text(person),
        agent=text(agent),
        created_by=text(created_by),
        created_at=from_micros(number(created_at)),
        expires_at=moment(expires_at),
        used_on=text(used_on),
    )
