"""The chat contract for the webhook chat, and rules specific to it: signatures, JSON, and files in calls."""

import base64
import mimetypes
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.errors import PlatformError, StoreUnavailable
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id, thread_address
from shoal.kernel.messages import Reaction
from shoal.kernel.posts import OutboundPost
from shoal.kernel.secret import Secret
from shoal.kernel.settings_platforms import WebhookSettings
from shoal.kernel.webhooks import proof, signature
from shoal.platforms.http import PlatformHttp
from shoal.platforms.webhook import KEY_HEADER_CHARS_MAX, WebhookAdapter, key_header
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Counterpart, Inbox, Kind, Lack, Refers, Route, Shown, Who, serving
from shoal.testing.platforms.webhook import SECRET, FakeHookChat, Json

PLAIN = str.maketrans("", "", "*")


class Hook(Counterpart[WebhookAdapter, FakeHookChat]):
    """Counterpart with a channel `harbour` that Ada is in."""

    lacks = frozenset[Lack]({"connection", "polls", "before", "greeting", "downloads"})
    stranger = "mallory"
    refers = frozenset[Refers]({"reply", "quote", "forward", "own"})
    routes = frozenset[Route]({"reply", "forward", "before"})
    kinds = frozenset[Kind]({"unknown"})

    def __init__(self, home: Path, server: FakeHookChat, clock: ManualClock) -> None:
        super().__init__(home, server, clock)
        settings = WebhookSettings(secret=Secret("value", SECRET), post_url=f"{server.server.address}/take")
        self.adapter = WebhookAdapter("ticker", settings, self.home, self.kept, clock)
        self.thread = make_thread_id("ticker", "harbour", "7")
        self.other = make_thread_id("ticker", "harbour", "8")
        server.deliver = self.adapter.receive
        self.answered: list[str] = []
        self.topics: dict[str, str] = {}

    def shown(self) -> Sequence[Shown]:
        return [
            Shown(
                message.id,
                message.text.translate(PLAIN),
                tuple(label for label, _ in message.buttons),
                message.file,
                message.reply_to,
            )
            for message in self.server.messages
        ]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        await self.adapter.connected.wait()
        user = {"ada": "ada", "bot": "other", "itself": "shoal", "stranger": self.stranger}[author]
        return await self.server.says("harbour", "7", text, user=user, is_bot=author in ("bot", "itself"))

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        await self.adapter.connected.wait()
        user = {"ada": "ada", "bot": "other", "itself": "shoal", "stranger": self.stranger}[author]
        is_bot = author in ("bot", "itself")
        said = await self.server.says(
            "square", inside or f"t{len(self.topics)}", text, user=user, is_bot=is_bot, named=named, reply_to=answers
        )
        self.topics[said] = inside or f"t{len(self.topics)}"
        return self.topics[said] if named else said

    async def changes(self, message_id: str, text: str) -> None:
        await self.tells("edit", id=message_id, text=text, at=self.clock.now().isoformat())

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        await self.adapter.connected.wait()
        one: Json = {"kind": kind, "text": said, "id": "m0", "author": {"id": self.stranger, "name": "Mallory"}}
        await self.server.says("harbour", "7", text, refers_to=[one])

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        await self.adapter.connected.wait()
        author: Json = {"id": self.stranger, "name": "Mallory"}
        kind = mimetypes.guess_type(name)[0] or ""
        file: dict[str, Json] = {"name": name, "media_type": kind, "data": base64.b64encode(content).decode()}
        one: Json = {"kind": route, "text": f"[file {name}]", "id": "m0", "author": author}
        await self.server.says("harbour", "7", "what is it?", refers_to=[one], files=[{**file, "author": author}])

    async def answers_bot(self, message_id: str, text: str) -> None:
        await self.server.says("harbour", "7", text, refers_to=[{"id": message_id, "own": True}])

    async def sends(self, kind: Kind) -> None:
        where: dict[str, Json] = {"type": "message", "id": "m9", "channel": "harbour", "thread": "7", "named": False}
        answer = await self.server.tells({**where, "author": {"id": "ada"}, "hologram": 3})
        self.answered.append(msgspec.json.decode(answer.body)["answer"])

    async def deletes(self, message_id: str) -> None:
        await self.tells("deletion", id=message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.tells("reaction", id=message_id, emoji=emoji)

    async def tells(self, kind: str, **more: str) -> None:
        ada: Json = {"id": "ada", "name": "ada"}
        where: dict[str, Json] = {"type": kind, "channel": "harbour", "thread": "7", "author": ada}
        answer = await self.server.tells({**where, **more})
        assert answer.status in (0, 200)
        if answer.status == 200:
            self.answered.append(msgspec.json.decode(answer.body)["answer"])

    def told(self) -> Sequence[str]:
        return self.answered

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.adapter.connected.wait()
        file = {"name": name, "data": base64.b64encode(content).decode()}
        await self.server.says("harbour", "7", "", files=[file])

    async def clicks(self, message_id: str, label: str) -> None:
        await self.server.clicks(message_id, label)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Hook]:
    clock = ManualClock()
    server = FakeHookChat(clock)
    await server.start()
    counterpart = Hook(tmp_path, server, clock)
    yield counterpart
    await counterpart.adapter.close()
    await server.stop()


class TestWebhookChat(ChatContract):
    """The contract over signed JSON in both directions."""


def call(**more: object) -> bytes:
    author = {"id": "ada"}
    return msgspec.json.encode({"type": "message", "id": "m1", "channel": "c", "author": author, "text": "hi"} | more)


async def test_an_unsigned_call_is_rejected(peer: Hook) -> None:
    body, now = call(), peer.clock.now()
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        for signed in (
            {},
            {"x-shoal-signature": proof("another-secret-of-theirs", body, now)},
            {"x-shoal-signature": proof(SECRET, body + b" ", now)},
            {"authorization": "Bearer wrong"},
        ):
            assert (await peer.adapter.receive(signed, body)).status == 401
        old = {"x-shoal-signature": proof(SECRET, body, now)}
        peer.clock.jump(301)
        assert (await peer.adapter.receive(old, body)).status == 401
        assert (await peer.adapter.receive({"authorization": f"Bearer {SECRET}"}, body)).status == 200
    assert [prompt.thread for prompt in inbox.said()] == ["ticker:c:main"]


@pytest.mark.parametrize("how", ["x-hub-signature-256", "authorization"])
async def test_a_replayed_message_is_ignored_even_if_the_store_forgot_it(peer: Hook, how: str) -> None:
    body = call()
    headers = {
        "x-hub-signature-256": {how: f"sha256={signature(SECRET, body)}"},
        "authorization": {how: f"Bearer {SECRET}"},
    }[how]
    for days in (0, 8, 400):
        peer.clock.jump(days * 86_400)
        inbox = Inbox()
        async with serving(peer.adapter, inbox):
            await peer.adapter.connected.wait()
            answer = await peer.adapter.receive(headers, body)
        assert (answer.status, len(inbox.came)) == (200, 0 if days else 1)


@pytest.mark.parametrize("how", ["x-hub-signature-256", "x-shoal-signature", "authorization"])
@pytest.mark.parametrize(
    "what", [{"type": "reaction", "emoji": "x"}, {"type": "edit", "text": "as it was"}, {"type": "deletion"}]
)
async def test_a_replayed_signed_event_is_ignored_and_a_replayed_bearer_event_is_not(
    peer: Hook, how: str, what: dict[str, Json]
) -> None:
    """Otherwise a replayed stop would end later turns, and a replayed edit would restore an old text."""
    body = call(**what)
    headers = {
        "x-hub-signature-256": {how: f"sha256={signature(SECRET, body)}"},
        "x-shoal-signature": {how: proof(SECRET, body, peer.clock.now())},
        "authorization": {how: f"Bearer {SECRET}"},
    }[how]
    inbox = Inbox()
    inbox.threads["m1"] = peer.thread
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        answers = [await peer.adapter.receive(headers, body) for _ in range(2)]
        peer.clock.jump(8 * 86_400)
        answers.append(await peer.adapter.receive(headers, body))
    is_dated, may_say_anything = how == "x-shoal-signature", how == "authorization"
    assert [answer.status for answer in answers] == [200, 200, 401 if is_dated else 200]
    assert len(inbox.came) == (3 if may_say_anything else 1)


async def test_a_message_that_could_not_be_stored_may_be_sent_again(peer: Hook) -> None:
    class Failing(Inbox):
        async def react(self, reaction: Reaction) -> str:
            if not self.came:
                self.came.append(reaction)
                raise StoreUnavailable("it is away")
            return await super().react(reaction)

    body, inbox = call(type="reaction", emoji="x"), Failing()
    headers = {"x-hub-signature-256": f"sha256={signature(SECRET, body)}"}
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        statuses = [(await peer.adapter.receive(headers, body)).status for _ in range(3)]
    assert statuses == [503, 200, 200]
    assert len(inbox.came) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", call(type="dance"), call(channel=""), call(id=7), call(author="ada"), b"\xff", b"[" * 10_000],
)
async def test_a_malformed_call_is_rejected(peer: Hook, body: bytes) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        answer = await peer.adapter.receive({"x-shoal-signature": proof(SECRET, body, peer.clock.now())}, body)
        assert (answer.status, msgspec.json.decode(answer.body)["error"]) == (400, "bad_request")
    assert not inbox.came


async def test_a_call_before_the_adapter_is_ready_must_be_repeated(peer: Hook) -> None:
    body = call()
    assert (await peer.adapter.receive({"authorization": f"Bearer {SECRET}"}, body)).status == 503


async def test_a_reply_joins_the_running_turn_of_its_thread(peer: Hook) -> None:
    inbox = Inbox()
    inbox.threads["out-1"] = peer.thread
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.server.says("harbour", "elsewhere", "not that one", reply_to="out-1")
        (prompt,) = await inbox.prompts(1)
    assert (prompt.thread, prompt.joins) == (peer.thread, True)


async def test_an_invalid_base64_file_is_reported(peer: Hook) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.server.says("harbour", "7", "look", files=[{"name": "x", "data": "%%%"}, {"name": "y", "url": "u"}])
        (prompt,) = await inbox.prompts(1)
    assert [(attachment.name, attachment.url, attachment.path) for attachment in prompt.attachments] == [
        ("x", "", ""),
        ("y", "u", ""),
    ]
    assert "base64" in prompt.attachments[0].error


async def test_without_a_url_nothing_is_sent(peer: Hook, tmp_path: Path) -> None:
    settings = WebhookSettings(secret=Secret("value", SECRET))
    adapter = WebhookAdapter("ticker", settings, Home(tmp_path), peer.kept, peer.clock)
    assert await adapter.post(OutboundPost(peer.thread, "k1", "hi")) == "k1"


async def test_a_channel_may_have_any_name(peer: Hook) -> None:
    for channel in ("café", "潮", "a\nb", "🦈" * 20):
        thread = await peer.adapter.open_thread(channel, "Good morning", f"open:{channel}")
        assert thread_address(thread).channel == channel
    assert [message.text for message in peer.shown()] == ["Good morning"] * 4


@given(st.lists(st.text(st.characters(exclude_characters="%")), unique=True, min_size=2, max_size=2))
def test_header_encoding_of_keys_is_lossless(keys: list[str]) -> None:
    sent = [key_header(key) for key in keys]
    assert sent[0] != sent[1]
    for header in sent:
        assert all("!" <= character <= "~" for character in header)
        assert len(header) <= KEY_HEADER_CHARS_MAX


@pytest.mark.parametrize("key", ["01J:reply:0", "open:ticker:har%3Abour:-", "~key!*'()"])
def test_a_plain_key_is_used_as_the_header_unchanged(key: str) -> None:
    assert key_header(key) == key


@pytest.mark.parametrize("given", [{"headers": {"x-key": "café"}}, {"headers": {"authorization": "Bearer \udcff"}}])
async def test_a_key_that_fits_no_header_is_permanently_rejected(given: dict[str, dict[str, str]]) -> None:
    http = PlatformHttp("the ticker")
    with pytest.raises(PlatformError, match="Check the token") as refused:
        await http.request("POST", "http://127.0.0.1:1/", headers=given["headers"])
    assert refused.value.permanent
    await http.close()
