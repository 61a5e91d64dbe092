"""The access tokens' rows."""

from datetime import datetime

import msgspec

from shoal.domain.errors import Conflict
from shoal.domain.permissions import TOKENS_MAX, AccessToken
from shoal.domain.records import AuditEntry
from shoal.store.appends import chain
from shoal.store.driver import Script, StorePart, number, query, reader, writes_at

CHAIN = "tokens"
"""The audit chain of tokens that were made and revoked."""

_token = reader(AccessToken, "name digest scope person agent created_by created_at expires_at used_on")


class TokenStore(StorePart):
    """The access tokens, at most TOKENS_MAX."""

    @writes_at
    def add(self, at: datetime, token: AccessToken, via: str = "") -> Script[None]:
        """Store one, which the audit log tells. `via` is the token that its maker came with.

        Raises Conflict when the name is taken or there are TOKENS_MAX.
        """
        if number((yield from query("token_count"))[0][0]) >= TOKENS_MAX:
            raise Conflict(f"There are {TOKENS_MAX} tokens already; `shoal token revoke NAME` makes room.")
        stored = yield from query("token_insert", **msgspec.structs.asdict(token))
        if not stored:
            raise Conflict(f"There is a token {token.name} already; `shoal token revoke {token.name}` ends it.")
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
        yield from chain(CHAIN, (entry,), at)

    async def by_digest(self, digest: str) -> AccessToken | None:
        return await self._one(_token, "token_by_digest", digest=digest)

    async def by_name(self, name: str) -> AccessToken | None:
        return await self._one(_token, "token_by_name", name=name)

    async def all(self) -> list[AccessToken]:
        """All of them by name, the expired ones too."""
        return [_token(row) for row in await self._read("tokens_all")]

    async def note_use(self, token: AccessToken, day: str) -> None:
        """Note the day on which it was used last."""
        await self._write("token_used", name=token.name, digest=token.digest, day=day)

    @writes_at
    def revoke(self, at: datetime, name: str, by: str, via: str = "") -> Script[bool]:
        """Delete it, which the audit log tells; False when there is none. `via` is the token that `by` came with."""
        if not (yield from query("token_delete", name=name)):
            return False
        yield from chain(CHAIN, (AuditEntry("token", f"revoke {name}", user=by, token=via),), at)
        return True
