"""The chat contract for Google Chat, over signed calls and over Pub/Sub, and rules specific to Google Chat."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest
from tests.contracts.google_chat_peer import DIRECT, HARBOUR, GoogleChat

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import UNTOLD, Deletion
from shoal.kernel.posts import OutboundPost
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Inbox, serving
from shoal.testing.platforms.google_chat import FakeGoogleChat
from shoal.testing.platforms.google_chat_wire import Json
from shoal.testing.platforms.tokens import signer


async def made(home: Path, *, pulls: bool) -> AsyncIterator[GoogleChat]:
    clock = ManualClock()
    server = FakeGoogleChat(clock)
    server.pulls = pulls
    await server.start()
    server.add(DIRECT, "DIRECT_MESSAGE")
    server.add(HARBOUR, "SPACE")
    peer = GoogleChat(home, server, clock)
    yield peer
    await peer.adapter.close()
    await server.stop()


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[GoogleChat]:
    async for peer in made(tmp_path, pulls=False):
        yield peer


class TestGoogleChat(ChatContract):
    """The contract over signed incoming calls and the REST API."""


class TestGoogleChatPulled(ChatContract):
    """The contract over Pub/Sub, for servers that Google cannot reach."""

    @pytest.fixture
    async def peer(self, tmp_path: Path) -> AsyncIterator[GoogleChat]:
        async for peer in made(tmp_path, pulls=True):
            yield peer


# ---- callers ----


async def answered(peer: GoogleChat, headers: Mapping[str, str], body: Mapping[str, object] | None = None) -> int:
    event = {"type": "REMOVED_FROM_SPACE", "space": peer.server.space(HARBOUR)}
    return (await peer.adapter.receive(headers, msgspec.json.encode(body or event))).status


async def test_only_events_that_google_signed_for_this_app_are_accepted(peer: GoogleChat) -> None:
    sign = peer.server.signed
    async with serving(peer.adapter, Inbox()):
        await peer.ready()
        now = int(peer.clock.now().timestamp())
        for headers in (
            {},
            sign(aud="999"),
            sign(iss="chat@evil.iam.gserviceaccount.com"),
            sign(exp=now - 301),
            sign(by=signer("chat-1")._replace(key=signer("stranger").key)),
            sign(push=True, email="chat@system.gserviceaccount.com"),
        ):
            assert await answered(peer, headers) == 401
        assert await answered(peer, sign()) == 200


async def test_events_for_a_url_are_signed_by_chats_own_account(peer: GoogleChat) -> None:
    peer.adapter = peer.make(audience="https://bot.example.org/x")

    def sign(**more: Json) -> Mapping[str, str]:
        claims: dict[str, Json] = {"aud": "https://bot.example.org/x", "email": "chat@system.gserviceaccount.com"}
        return peer.server.signed(push=True, by=None, **{**claims, **more})

    async with serving(peer.adapter, Inbox()):
        await peer.ready()
        assert await answered(peer, sign()) == 200
        assert await answered(peer, sign(email="x@y.z")) == 401
        assert await answered(peer, sign(email_verified=False)) == 401


async def test_only_the_configured_account_may_push(peer: GoogleChat) -> None:
    push = {"message": {"data": ""}, "subscription": "s"}
    async with serving(peer.adapter, Inbox()):
        await peer.ready()
        assert await answered(peer, peer.server.signed(push=True), push) == 200
        for headers in ({}, peer.server.signed(), peer.server.signed(push=True, email="x@y.z")):
            assert await answered(peer, headers, push) == 401
    peer.adapter = peer.make(push_account="")
    assert await answered(peer, peer.server.signed(push=True, email=""), push) == 401


async def test_an_unreadable_key_file_is_reported(peer: GoogleChat) -> None:
    peer.key_file.write_bytes(b"{}")
    with pytest.raises(PlatformError, match="service_account_file"):
        await peer.adapter.post(OutboundPost(peer.thread, "k1", "hi"))


# ---- posts ----


async def test_no_text_mentions_everyone(peer: GoogleChat) -> None:
    await peer.adapter.post(OutboundPost(peer.thread, "k1", "<users/all> and <users/1001>"))
    assert peer.server.said(DIRECT)[0].text == "\\<\u200busers/all> and <users/1001>"


async def test_an_answer_is_posted_even_if_it_cannot_quote(peer: GoogleChat) -> None:
    async with serving(peer.adapter, Inbox()):
        message_id = await peer.says("well?")
    peer.server.message(message_id).created_at = "2026-01-05T10:00:00Z"
    await peer.adapter.post(OutboundPost(peer.thread, "k1", "well.", reply_to=message_id))
    assert [(message.text, message.reply_to) for message in peer.shown()] == [("well.", "")]


async def test_history_is_read_if_an_administrator_allows_it(peer: GoogleChat) -> None:
    assert not peer.adapter.limits.has_history
    peer.adapter = peer.make(read_history=True)
    async with serving(peer.adapter, Inbox()):
        asked = peer.server.message(await peer.server.says(HARBOUR, "number 0"))
        for number in range(1, 5):
            await peer.server.says(HARBOUR, f"number {number}", thread=asked.thread)
    thread = make_thread_id("google_chat", HARBOUR, asked.thread)
    texts = [prompt.text async for prompt in peer.adapter.history(thread, None, 4)]
    assert texts == [f"@Shoal number {number}" for number in range(1, 5)]


async def test_a_thread_is_opened_in_a_space_and_with_a_person(peer: GoogleChat) -> None:
    opened = await peer.adapter.open_thread(HARBOUR, "The tide turns")
    (first,) = peer.server.said(HARBOUR)
    assert opened == make_thread_id("google_chat", HARBOUR, first.thread)
    assert await peer.adapter.open_thread("1001", "hello") == peer.thread


async def test_a_deletion_applies_to_messages_from_before_a_restart(peer: GoogleChat) -> None:
    """Google Chat's deletion events do not contain the author of the deleted message."""
    first, inbox = Inbox(), Inbox()
    async with serving(peer.adapter, first):
        name = await peer.says("never mind")
        (prompt,) = await first.prompts(1)
    inbox.threads[prompt.key] = prompt.thread
    peer.adapter = peer.make()
    async with serving(peer.adapter, inbox):
        await peer.ready()
        await peer.deletes(name)
        await inbox.until(lambda: bool(inbox.came))
    assert inbox.came == [Deletion(prompt.thread, name, UNTOLD, name)]
