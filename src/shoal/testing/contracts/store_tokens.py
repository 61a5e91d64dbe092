"""Contract tests for access tokens, and for lists of the threads in a token's channels."""

from datetime import timedelta

import pytest

from shoal.kernel.errors import Conflict
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author, Caller, Prompt
from shoal.kernel.permissions import AccessToken
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import opened


def token(clock: ManualClock, name: str = "ben", digest: str = "d1") -> AccessToken:
    """Return a chat token that is limited to one agent and expires in a day."""
    until = clock.now() + timedelta(days=1)
    return AccessToken(name, digest, "chat", f"web:{name}", "web:owner", clock.now(), "main", until)


class TokenRules:
    """Tests of access tokens, mixed into `StoreContract`."""

    async def test_a_token_is_stored_and_found_by_name_and_digest(self, store: Store, clock: ManualClock) -> None:
        made = token(clock)
        await store.tokens.add(made)
        assert await store.tokens.by_name("ben") == await store.tokens.by_digest("d1") == made
        assert await store.tokens.by_name("d1") is None
        assert await store.tokens.by_digest("ben") is None
        forever = AccessToken("root", "d2", "admin", "web:owner", "terminal:owner", clock.now())
        await store.tokens.add(forever)
        assert await store.tokens.all() == [made, forever]
        await store.tokens.note_use(made, "2026-01-31")
        stored = await store.tokens.by_name("ben")
        assert stored is not None
        assert stored.used_on == "2026-01-31"

    async def test_token_names_are_unique(self, store: Store, clock: ManualClock) -> None:
        await store.tokens.add(token(clock))
        with pytest.raises(Conflict):
            await store.tokens.add(token(clock, digest="d2"))
        assert await store.tokens.by_digest("d2") is None
        assert await store.tokens.revoke("ben", "web:owner")
        await store.tokens.add(token(clock, digest="d2"))
        assert await store.tokens.by_digest("d1") is None

    async def test_a_revoked_token_is_deleted(self, store: Store, clock: ManualClock) -> None:
        await store.tokens.add(token(clock))
        assert await store.tokens.revoke("ben", "web:owner")
        assert not await store.tokens.revoke("ben", "web:owner")
        assert await store.tokens.all() == []

    async def test_token_changes_are_audited(self, store: Store, clock: ManualClock) -> None:
        await store.tokens.add(token(clock), "root")
        with pytest.raises(Conflict):
            await store.tokens.add(token(clock, digest="d2"))
        await store.tokens.revoke("ben", "web:ada", "boss")
        await store.tokens.revoke("ben", "web:ada")
        entries = [row.entry for row in await store.audit.tail(1000, chain_name="tokens")]
        assert [(entry.action, entry.user, entry.token) for entry in entries] == [
            ("create ben", "web:owner", "root"),
            ("revoke ben", "web:ada", "boss"),
        ]
        assert "d1" not in entries[0].detail

    async def test_a_channels_threads_are_listed_with_their_subagents(self, store: Store, clock: ManualClock) -> None:
        beginnings = ("web:@ben", "openai:@ben", "web:@benn", "web:@be", "web:lobby")
        threads = [ThreadId(f"{channel}:1") for channel in beginnings]
        for thread in threads:
            await clock.advance(1)
            await store.inbox.accept(Prompt(thread, thread, "hi", Author("x", trusted=True), clock.now()), 5)
        await opened(store, "T9", ThreadId("web:@ben:2"))
        child = ThreadId("agent:00:1")
        caller = Caller(
            ((ThreadId("web:@ben:2"), TurnId("T9")),), CallId("c"), "tell", Author("x", trusted=True), tainted_by=""
        )
        await clock.advance(1)
        begun = Prompt(child, "c", "do", caller.author, clock.now(), caller=caller, origin="agent")
        assert (await store.children.begin(begun, 5)).status == "accepted"
        channels = ("web:@ben:", "openai:@ben:")
        visible = await store.journal.threads(channels=channels)
        assert [info.thread for info in visible] == [child, "web:@ben:2", "openai:@ben:1", "web:@ben:1"]
        assert [info.thread for info in await store.journal.threads(2, channels=channels)] == [child, "web:@ben:2"]
        until = visible[2].updated_at
        assert [info.thread for info in await store.journal.threads(before=until, channels=channels)] == ["web:@ben:1"]
        assert await store.journal.threads(agent="nobody", channels=channels) == []
