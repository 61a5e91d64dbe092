"""Storage of agents, channel bindings, runtime settings and access tokens."""

from datetime import datetime

import msgspec

from shoal.kernel.agents import AgentRow, Binding, Work, servers_scope
from shoal.kernel.errors import Conflict, StoreNewer
from shoal.kernel.events import UserSaid, decode_data
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.permissions import TOKENS_MAX, AccessToken
from shoal.kernel.records import AuditEntry
from shoal.kernel.untrusted import UNREADABLE
from shoal.store.appends import chain
from shoal.store.driver import (
    Row,
    Script,
    StorePart,
    Value,
    first_after,
    moment,
    number,
    query,
    reader,
    text,
    writes_at,
)

ASKED_CHARS_MAX = 200
CHOICES = "place"
CHOICES_MAX = 10_000

_agent = reader(AgentRow)
_binding = reader(Binding)


class AgentStore(StorePart):
    @writes_at
    def put(self, at: datetime, name: str, digest: str) -> Script[bool]:
        """Create or update an agent. `digest` is the digest of its configuration.

        Return True if the agent is new or was destroyed before.
        """
        rows = yield from query("agent_lock", agent=name)
        yield from query("agent_put", agent=name, digest=digest, now=at)
        return not rows or text(rows[0][0]) != "active"

    @writes_at
    def retire(self, at: datetime, name: str) -> Script[list[Binding]]:
        yield from query("agent_lock", agent=name)
        yield from query("agent_retire", agent=name, now=at)
        rows = yield from query("bindings_drop", agent=name)
        return sorted((_binding(row) for row in rows), key=lambda binding: binding.place)

    async def all(self) -> list[AgentRow]:
        """Return all agents, including destroyed ones, sorted by name."""
        return [_agent(row) for row in await self._read("agents_all")]

    async def bind(self, binding: Binding) -> None:
        await self._write("binding_put", **msgspec.structs.asdict(binding))

    async def unbind(self, platform: str, channel: str) -> bool:
        return bool(await self._write("binding_delete", platform=platform, channel=channel))

    async def bindings(self, limit: int = 10_000) -> list[Binding]:
        return [_binding(row) for row in await self._read("bindings_all", limit=limit)]

    async def at_work(self, agent: str = "", limit: int = 100, *, within: str = "") -> list[Work]:
        """Return active threads: first those with a running turn, then queued ones, oldest first.

        An empty `agent` means all agents. `within` selects threads by the beginning of their ids. Subagents that
        were called from these threads are included.
        """
        rows = await self._read("threads_at_work", agent=agent, limit=limit, low=within, high=first_after(within))
        return [_work(row) for row in rows]

    async def choices(self) -> dict[str, str]:
        """Return the chosen model and profile for each platform, server or channel, as JSON.

        The keys are PLATFORM, PLATFORM@SERVER or PLATFORM:CHANNEL. Return at most CHOICES_MAX entries.
        """
        rows = await self._read("settings_of", scope=CHOICES, after="", limit=CHOICES_MAX)
        return {text(row[0]): text(row[1]) for row in rows}

    async def server_of(self, platform: str, channel: str) -> str:
        rows = await self._read("setting_get", scope=servers_scope(platform), key=channel)
        return text(rows[0][0]) if rows else ""

    async def choose(self, place: str, value: str) -> None:
        """Set the model and profile for a platform, server or channel. An empty `value` removes the choice."""
        if value:
            await self._write("setting_put", scope=CHOICES, key=place, value=value)
        else:
            await self._write("setting_delete", scope=CHOICES, key=place)


def _work(row: Row) -> Work:
    thread, agent, turn, parent, text_said, since, steps, questions, queued = row
    asked = first_message(text_said) if turn else None
    is_tainted = asked is None or asked.tainted_by or (asked.caller is not None and asked.caller.tainted_by)
    return Work(
        ThreadId(text(thread)),
        text(agent),
        TurnId(text(turn)),
        text(parent),
        asked.text[:ASKED_CHARS_MAX] if asked is not None else "",
        moment(since) if turn else None,
        number(steps),
        number(questions),
        number(queued),
        asked is not None and asked.author.trusted and not is_tainted,
    )


def first_message(value: Value) -> UserSaid | None:
    try:
        data = decode_data(UserSaid.type, text(value)) if value is not None else None
    except (*UNREADABLE, StoreNewer):
        return None
    return data if isinstance(data, UserSaid) else None


class SettingStore(StorePart):
    """Implements `shoal.kernel.ports.Settings`."""

    async def get(self, scope: str, key: str) -> str | None:
        rows = await self._read("setting_get", scope=scope, key=key)
        return text(rows[0][0]) if rows else None

    async def put(self, scope: str, key: str, value: str) -> None:
        await self._write("setting_put", scope=scope, key=key, value=value)

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        if expected is None:
            return bool(await self._write("setting_make", scope=scope, key=key, value=value))
        return bool(await self._write("setting_swap", scope=scope, key=key, expected=expected, value=value))

    async def page(self, scope: str, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        rows = await self._read("settings_of", scope=scope, after=after, limit=limit)
        return [(text(key), text(value)) for key, value in rows]

    async def drop(self, scope: str, key: str, expected: str) -> bool:
        return bool(await self._write("setting_drop", scope=scope, key=key, expected=expected))


# ---- access tokens ----

CHAIN = "tokens"

_token = reader(AccessToken, "name digest scope person agent created_by created_at expires_at used_on")


class TokenStore(StorePart):
    @writes_at
    def add(self, at: datetime, token: AccessToken, via: str = "") -> Script[None]:
        """Store a token and audit its creation. `via` is the token with which the creator authenticated.

        Raises Conflict if the name is taken or TOKENS_MAX tokens exist.
        """
        if number((yield from query("token_count"))[0][0]) >= TOKENS_MAX:
            raise Conflict(
                f"Shoal already has {TOKENS_MAX} tokens, which is the maximum. Revoke one with `shoal token revoke "
                "NAME`."
            )
        stored = yield from query("token_insert", **msgspec.structs.asdict(token))
        if not stored:
            raise Conflict(
                f"The token {token.name} already exists. To replace it, first run `shoal token revoke {token.name}`."
            )
        what = f"agent {token.agent}, " if token.agent else ""
        until = f"until {token.expires_at:%Y-%m-%d %H:%M} UTC" if token.expires_at else "without expiry"
        detail = f"{token.scope} as {token.person}, {what}{until}"
        entry = AuditEntry("token", f"create {token.name}", "allow", user=token.created_by, detail=detail, token=via)
        yield from chain(CHAIN, (entry,), at)

    async def by_digest(self, digest: str) -> AccessToken | None:
        return await self._one(_token, "token_by_digest", digest=digest)

    async def by_name(self, name: str) -> AccessToken | None:
        return await self._one(_token, "token_by_name", name=name)

    async def all(self) -> list[AccessToken]:
        """Return all tokens, including expired ones, sorted by name."""
        return [_token(row) for row in await self._read("tokens_all")]

    async def note_use(self, token: AccessToken, day: str) -> None:
        await self._write("token_used", name=token.name, digest=token.digest, day=day)

    @writes_at
    def revoke(self, at: datetime, name: str, by: str, via: str = "") -> Script[bool]:
        """Delete a token and audit the deletion. Return False if the token does not exist.

        `via` is the token with which `by` authenticated.
        """
        if not (yield from query("token_delete", name=name)):
            return False
        yield from chain(CHAIN, (AuditEntry("token", f"revoke {name}", user=by, token=via),), at)
        return True
