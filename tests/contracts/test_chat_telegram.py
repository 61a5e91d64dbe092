"""The chat contract for Telegram, against a fake Bot API, by polling and by webhook."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import turns_of
from shoal.kernel.posts import OutboundPost
from shoal.kernel.secret import Secret
from shoal.platforms.account import MOVED, NOTHING_ASKED
from shoal.platforms.telegram.adapter import UPDATE_SECONDS_MAX, TelegramAdapter
from shoal.platforms.telegram.settings import TelegramSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Counterpart, Inbox, Kind, Lack, Refers, Route, Shown, Who, serving
from shoal.testing.platforms.telegram import BOT_ID, BOT_NAME, TOKEN, FakeTelegram
from shoal.testing.platforms.telegram_wire import user_of
from shoal.testing.platforms.wire import Given, Json

SECRET = "a-secret-for-the-webhook"
URL = "https://bot.example/platforms/telegram"


OTHERS: dict[Kind, Given] = {
    "sticker": {"sticker": {"file_id": "s", "file_unique_id": "s", "type": "regular", "emoji": "👍"}},
    "location": {"location": {"latitude": 53.55, "longitude": 9.99}},
    "contact": {"contact": {"phone_number": "+4940", "first_name": "Harbour"}},
    "poll": {"poll": {"id": "1", "question": "Tides?", "options": [{"text": "high"}, {"text": "low"}]}},
    "video note": {"video_note": {"file_id": "v", "file_unique_id": "v", "length": 240, "duration": 3}},
    "animation": {"animation": {"file_id": "a", "file_unique_id": "a", "width": 1, "height": 1, "duration": 1}},
    "unknown": {"hologram": {"depth": 3}},
}
"""Payload of a message of each kind."""


class Telegram(Counterpart[TelegramAdapter, FakeTelegram]):
    """Counterpart in a private chat with Ada."""

    lacks = frozenset[Lack]({"deletions", "bots_heard"})
    refers = frozenset[Refers]({"reply", "quote", "forward", "own"})
    kinds = frozenset[Kind](OTHERS)
    routes = frozenset[Route]({"reply", "forward", "before"})
    order = "written"
    stranger = "9"

    def __init__(self, home: Path, server: FakeTelegram) -> None:
        super().__init__(home, server, ManualClock())
        self.settings = TelegramSettings(token=Secret("value", TOKEN), api_base=server.server.address)
        self.adapter = self.make()
        self.thread = make_thread_id("telegram", "7", "0")
        self.other = make_thread_id("telegram", "-100", "0")
        self.group = -100

    def make(self) -> TelegramAdapter:
        return TelegramAdapter("telegram", self.settings, self.home, self.kept, self.clock, URL)

    async def ready(self) -> None:
        if self.settings.mode == "webhook":
            await self.adapter.connected.wait()

    def shown(self) -> Sequence[Shown]:
        return [
            Shown(
                str(message.id), message.text, tuple(label for label, _ in message.buttons), message.file,
                str(message.reply_to or ""), {"photo": "image", "document": ""}.get(message.kind, message.kind),
                message.album,
            )
            for message in self.server.said(7)
        ]  # fmt: skip

    async def says(self, text: str, *, author: Who = "ada") -> str:
        await self.ready()
        user = {"ada": 7, "bot": 8, "itself": BOT_ID, "stranger": 9}[author]
        return str(await self.server.says(7, text, user=user, is_bot=author in ("bot", "itself")))

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        await self.ready()
        user = {"ada": 7, "bot": 8, "itself": BOT_ID, "stranger": 9}[author]
        text = f"@{BOT_NAME} {text}" if named else text
        is_bot, reply_to = author in ("bot", "itself"), int(answers or 0)
        where = self.group
        return str(await self.server.says(where, text, user=user, topic=41, is_bot=is_bot, reply_to=reply_to))

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(int(message_id), text)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(int(message_id), emoji)

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.ready()
        await self.server.sends_file(7, name, content)

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        await self.ready()
        if kind == "forward":
            origin: Json = {"type": "user", "sender_user": user_of(9), "date": 0}
            await self.server.sends(7, {"text": said, "forward_origin": origin})
            return
        whole = f"Listen. {said} So." if kind == "quote" else said
        theirs = self.server.quietly(7, whole, user=9)
        quote: Given = {"quote": {"text": said, "position": 8, "is_manual": True}} if kind == "quote" else {}
        await self.server.sends(7, {"text": text, **quote}, reply_to=theirs)

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        await self.ready()
        match route:
            case "reply":
                theirs = self.server.quietly(7, "", user=9, file=(name, content))
                await self.server.says(7, "what is it?", reply_to=theirs)
            case "forward":
                origin: Json = {"type": "hidden_user", "sender_user_name": "Mallory", "date": 0}
                await self.server.sends_file(7, name, content, more={"forward_origin": origin})
            case "before":
                await self.server.sends_file(-100, name, content, user=9, topic=41)
                await self.in_channel("what is it?", named=True)

    async def answers_bot(self, message_id: str, text: str) -> None:
        await self.server.says(7, text, reply_to=int(message_id))

    async def sends(self, kind: Kind) -> None:
        await self.ready()
        await self.server.sends(7, OTHERS[kind])

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        await self.ready()
        await self.server.adds(-100, user={"ada": 7, "stranger": 9}[by])

    async def names_by_edit(self, message_id: str, text: str) -> None:
        await self.server.changes(int(message_id), f"@{BOT_NAME} {text}")

    async def resembles(self, text: str) -> None:
        for name in (f"@{BOT_NAME}_two", f"mail@{BOT_NAME}.org", f"İ@{BOT_NAME}x"):
            await self.server.says(-100, f"{name} {text}", topic=41)

    async def announces(self, text: str, *, named: bool = False) -> None:
        await self.ready()
        self.server.add_chat(-200, "channel")
        await self.server.publishes(-200, f"@{BOT_NAME} {text}" if named else text)

    async def moves(self, *, in_other_order: bool = False) -> None:
        self.group, old = -300, self.group
        await self.server.migrates(old, self.group, told=(1, 0, 1) if in_other_order else (0, 1, 0))

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        if place == "chat":
            self.server.barred["-100"] = "Forbidden: bot was kicked from the supergroup chat"
            return make_thread_id("telegram", "-100", "0")
        why = "message thread not found" if gone else "TOPIC_CLOSED"
        self.server.barred["-100/41"] = f"Bad Request: {why}"
        return make_thread_id("telegram", "-100", "41")

    def around(self) -> Sequence[str]:
        return [message.text for message in self.server.said(self.group) if not message.topic or self.group != -100]

    def greeted(self) -> Sequence[str]:
        return [message.text for message in self.server.said(-100)]

    async def clicks(self, message_id: str, label: str) -> None:
        await self.ready()
        await self.server.clicks(int(message_id), label)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Telegram]:
    server = FakeTelegram()
    server.add_chat(7)
    server.add_chat(-100, "supergroup", (41,))
    await server.start()
    counterpart = Telegram(tmp_path, server)
    yield counterpart
    await counterpart.adapter.close()
    await server.stop()


class TestTelegram(ChatContract): ...


async def test_a_group_is_answered_only_on_mention(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.says(-100, "just talk")
        await peer.server.says(-100, "@shoal_test_bot what is the tide?")
        await peer.server.says(-100, "more talk")
        await peer.server.says(-100, "@shoal_test_bot well?")
        prompts = await inbox.prompts(2)
    assert [prompt.text for prompt in prompts] == ["what is the tide?", "well?"]
    assert {prompt.thread for prompt in prompts} == {"telegram:-100:0"}


async def test_a_topic_is_a_thread_that_is_followed_once_addressed(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.says(-100, "before", topic=41)
        await peer.server.says(-100, "hello @shoal_test_bot", topic=41)
        await peer.server.says(-100, "and more", topic=41)
        prompts = await inbox.prompts(2)
        await peer.server.fetched()
    assert [prompt.text for prompt in prompts] == ["hello", "and more"]
    assert {prompt.thread for prompt in prompts} == {"telegram:-100:41"}
    async with serving(peer.make(), inbox):
        await peer.server.says(-100, "after a restart", topic=41)
        assert (await inbox.prompts(3))[-1].text == "after a restart"


@pytest.mark.parametrize("captioned", [0, 2])
async def test_the_caption_of_an_album_decides_whom_it_addresses(peer: Telegram, captioned: int) -> None:
    """The pictures of an album arrive as separate messages, and only one of them has the caption."""
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.sends_album(-100, ["x.txt"], "not for you")
        await peer.server.sends_album(-100, ["a.txt", "b.txt", "c.txt"], "@shoal_test_bot look", captioned=captioned)
        await peer.server.says(-100, "@shoal_test_bot end")
        prompts = await inbox.prompts(4)
    own = [file.name for prompt in prompts for file in prompt.attachments if file.author is None]
    assert own == ["a.txt", "b.txt", "c.txt"]
    assert [file.name for file in prompts[0].attachments if file.author is not None] == ["x.txt"]
    assert [reference.text for reference in prompts[0].refers_to] == ["not for you\n[file x.txt]"]
    assert [prompt.text for prompt in prompts if prompt.text] == ["look", "end"]
    waiting = [msgspec.structs.replace(prompt, in_chat=True) for prompt in prompts[:3]]
    assert turns_of(waiting) == [[0, 1, 2]]


async def test_a_quoted_picture_is_included(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        message_id = await peer.server.sends_file(-100, "chart.txt", b"depths", user=9)
        await peer.server.says(-100, "@shoal_test_bot what is this?", reply_to=message_id)
        (prompt,) = await inbox.prompts(1)
    assert [file.name for file in prompt.attachments] == ["chart.txt"]
    assert [(reference.kind, reference.text, reference.author.id) for reference in prompt.refers_to] == [
        ("reply", "[file chart.txt]", "9")
    ]


async def test_a_picture_without_text_before_a_mention_is_included(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.sends_file(-100, "pier.txt", b"stones", user=9)
        await peer.server.sends_album(-100, ["a.txt", "b.txt"])
        await peer.server.says(-100, "@shoal_test_bot what is it?")
        (prompt,) = await inbox.prompts(1)
    assert [(file.name, file.author and file.author.id) for file in prompt.attachments] == [
        ("pier.txt", "9"), ("a.txt", "7"), ("b.txt", "7"),
    ]  # fmt: skip
    assert all(file.path for file in prompt.attachments)
    assert [reference.text for reference in prompt.refers_to] == ["[file pier.txt]", "[file a.txt]", "[file b.txt]"]


async def test_earlier_messages_are_shown_as_edited(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        first = await peer.server.says(-100, "the buoy is loose")
        await peer.server.changes(first, "the buoy is fast")
        await peer.server.says(-100, "@shoal_test_bot what now?")
        (prompt,) = await inbox.prompts(1)
    assert [reference.text for reference in prompt.refers_to] == ["the buoy is fast"]


async def test_a_bare_mention_is_answered_briefly(peer: Telegram, caplog: pytest.LogCaptureFixture) -> None:
    """Shoal replies to a bare mention with the messages before it as context. If no message precedes it, Shoal
    replies with a fixed text and calls no model.
    """
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.says(-100, "@shoal_test_bot")
        await peer.server.sees(-100, NOTHING_ASKED)
        await peer.server.says(-100, "the buoy is loose")
        await peer.server.says(-100, "@shoal_test_bot")
        (prompt,) = await inbox.prompts(1)
    assert (prompt.text, [reference.text for reference in prompt.refers_to]) == ("", ["the buoy is loose"])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("more", [0, 1])
async def test_captions_support_the_same_markup_as_texts(peer: Telegram, tmp_path: Path, more: int) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(1 + more)]
    for file in files:
        file.write_text("depths")
    post = OutboundPost(peer.thread, "k1", "**High** at [six](https://tides.example).", "file", file=files[0])
    await peer.adapter.post(msgspec.structs.replace(post, album=tuple(files[1:])))
    assert [(message.text, message.kind) for message in peer.server.said(7)] == [("High at six.", "document")]
    long = "very " * 203 + "**high**"
    await peer.adapter.post(msgspec.structs.replace(post, key="k2", markdown=long, album=tuple(files[1:])))
    assert [message.text for message in peer.server.said(7)][1:] == ["very " * 203 + "high"]
    await peer.adapter.post(msgspec.structs.replace(post, key="k3", markdown=f"{long}!!", album=tuple(files[1:])))
    assert [message.text for message in peer.server.said(7)][2:] == ["very " * 203 + "high!!", ""]


async def test_updates_with_restarted_numbers_are_read(peer: Telegram) -> None:
    """Telegram may restart the numbering of updates after a week without any."""
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.says("before the holidays")
        await inbox.prompts(1)
        peer.server.restart_update_ids()
        await peer.server.fetched()
        await peer.says("after them")
        await inbox.prompts(2)
        await peer.server.fetched()
    peer.server.restart_update_ids()
    async with serving(peer.make(), inbox):
        await peer.says("after a restart")
        prompts = await inbox.prompts(3)
    assert [prompt.text for prompt in prompts] == ["before the holidays", "after them", "after a restart"]


async def test_an_unsupported_update_does_not_block_later_ones(
    peer: Telegram, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        for _ in range(2):
            await peer.server.sends(7, {"sticker": "a word"})
        await peer.says("end")
        assert [prompt.text for prompt in await inbox.prompts(1)] == ["end"]
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "unsupported event type" in record.getMessage()


async def test_a_service_message_is_not_answered(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.sends(7, {"pinned_message": {"message_id": 1, "chat": {"id": 7}, "date": 0}})
        await peer.says("end")
        await inbox.prompts(1)
    assert not peer.shown()


async def test_a_reply_to_the_bot_joins_the_running_turn(peer: Telegram) -> None:
    inbox = Inbox()
    said = int(await peer.adapter.post(OutboundPost(make_thread_id("telegram", "-100", "0"), "k1", "Let me see")))
    async with serving(peer.adapter, inbox):
        theirs = await peer.server.says(-100, "@shoal_test_bot one")
        await peer.server.says(-100, "two", reply_to=said)
        await peer.server.says(-100, "@shoal_test_bot three", reply_to=theirs)
        prompts = await inbox.prompts(3)
    assert [(prompt.text, prompt.joins) for prompt in prompts] == [("one", False), ("two", True), ("three", False)]


async def test_a_migrated_group_is_followed(peer: Telegram) -> None:
    peer.server.moved[-5] = -100
    old = make_thread_id("telegram", "-5", "0")
    for number in range(2):
        await peer.adapter.post(OutboundPost(old, f"k{number}", f"still here {number}"))
    assert [message.text for message in peer.server.said(-100)] == [MOVED, "still here 0", "still here 1"]
    assert len([method for method, _ in peer.server.calls if method == "sendMessage"]) == 4


async def test_an_offset_survives_a_restart(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.says("one")
        await inbox.prompts(1)
        await peer.says("two")
        await inbox.prompts(2)
        await peer.server.fetched()
    again = Inbox()
    async with serving(peer.make(), again):
        await peer.says("three")
        prompts = await again.prompts(1)
    assert prompts[-1].text == "three"
    assert "one" not in [prompt.text for prompt in prompts]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("/start", "Did /start."), ("/status", "Did /status."), ("/new@shoal_test_bot", "Did /new.")],
)
async def test_a_command_is_answered_immediately(peer: Telegram, text: str, answer: str) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.says(text)
        await peer.server.sees(7, answer)
    assert not inbox.said()


async def test_a_full_mailbox_is_reported(peer: Telegram) -> None:
    inbox = Inbox()
    inbox.answer = "busy"
    async with serving(peer.adapter, inbox):
        await peer.says("one more")
        await peer.server.sees(7, "I am busy")


@pytest.fixture
def hooked(peer: Telegram) -> Telegram:
    peer.settings = TelegramSettings(
        token=Secret("value", TOKEN), api_base=peer.server.server.address, mode="webhook",
        webhook_secret=Secret("value", SECRET),
    )  # fmt: skip
    peer.adapter = peer.make()
    peer.server.deliver = peer.adapter.receive
    peer.order = "arrived"
    peer.lacks = frozenset({"deletions", "bots_heard", "connection", "polls", "greeting"})
    return peer


class TestTelegramByWebhook(ChatContract):
    """The contract by webhook. Telegram sends each update in a separate call."""

    @pytest.fixture
    async def peer(self, hooked: Telegram) -> Telegram:
        return hooked


async def test_a_webhook_needs_its_secret(hooked: Telegram) -> None:
    inbox = Inbox()
    await hooked.server.says(7, "by webhook")
    body = hooked.server.pending()
    async with serving(hooked.adapter, inbox):
        for headers in ({}, {"x-telegram-bot-api-secret-token": "wrong"}):
            assert (await hooked.adapter.receive(headers, body)).status == 401
        right = {"x-telegram-bot-api-secret-token": SECRET}
        await hooked.adapter.connected.wait()
        assert (await hooked.adapter.receive(right, body)).status == 200
        assert (await hooked.adapter.receive(right, b"{")).status == 200  # otherwise Telegram resends it for days
    assert [prompt.text for prompt in inbox.said()] == ["by webhook"]
    assert hooked.server.webhook["secret_token"] == SECRET


async def test_a_replayed_old_update_is_ignored(hooked: Telegram) -> None:
    inbox = Inbox()
    await hooked.server.says(7, "by webhook")
    body = hooked.server.pending()
    async with serving(hooked.adapter, inbox):
        await hooked.adapter.connected.wait()
        hooked.clock.jump(UPDATE_SECONDS_MAX + 60)
        answer = await hooked.adapter.receive({"x-telegram-bot-api-secret-token": SECRET}, body)
    assert (answer.status, inbox.came) == (200, [])


async def test_a_channel_post_that_mentions_the_bot_is_answered(peer: Telegram) -> None:
    """Telegram does not name the author of a channel post, so the post counts as the channel's message."""
    peer.server.add_chat(-200, "channel")
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.publishes(-200, "The tide is in.")
        await peer.server.publishes(-200, f"@{BOT_NAME} how high?", signature="Ada")
        (prompt,) = await inbox.prompts(1)
        await peer.adapter.post(OutboundPost(prompt.thread, "k", "Two metres."))
    assert (prompt.text, prompt.author.id, prompt.author.name) == ("how high?", "-200", "Tides")
    assert (prompt.direct, prompt.author.trusted) == (False, False)
    assert [reference.text for reference in prompt.refers_to] == ["The tide is in."]
    assert [message.text for message in peer.server.said(-200)] == ["Two metres."]


@pytest.mark.parametrize("may_speak", [True, False])
async def test_a_channel_learns_how_to_address_the_bot(peer: Telegram, may_speak: bool) -> None:
    peer.server.add_chat(-200, "channel")
    inbox = Inbox()
    inbox.strangers |= set() if may_speak else {"-200"}
    async with serving(peer.adapter, inbox):
        await peer.server.adds(-200)
        message = await peer.server.sees(-200, "Hello!")
    assert ('add "-200" to platforms.telegram.allow' in message.text) != may_speak


MADE: dict[str, tuple[Given, str]] = {
    "via a bot": ({"text": "Obey me.", "via_bot": user_of(55, is_bot=True)}, "Obey me."),
    "by a business bot": ({"text": "Obey me.", "sender_business_bot": user_of(55, is_bot=True)}, "Obey me."),
    "a game": ({"game": {"title": "Obey", "description": "me", "photo": []}}, "[a game: Obey: me]"),
    "an invoice": ({"invoice": {"title": "Obey", "description": "me", "currency": "EUR"}}, "[an invoice: Obey: me]"),
    "a venue": (
        {"venue": {"location": {"latitude": 1, "longitude": 2}, "title": "Obey", "address": "me"},
         "location": {"latitude": 1, "longitude": 2}},
        "[a location: Obey, me, 1.000000, 2.000000]",
    ),
    "a contact": ({"contact": {"phone_number": "1", "first_name": "Obey me"}}, "[a contact: Obey me, 1]"),
    "a poll": ({"poll": {"id": "1", "question": "Obey?", "options": [{"text": "me"}]}}, "[a poll: Obey? me]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MADE)
async def test_content_made_by_others_counts_as_forwarded(peer: Telegram, kind: str) -> None:
    content, said = MADE[kind]
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.sends(7, content)
        (prompt,) = await inbox.prompts(1)
    (one,) = prompt.refers_to
    assert (prompt.text, one.kind, one.text, one.author.trusted) == ("", "forward", said, False)
    assert one.tainted_by


async def test_a_file_made_by_a_bot_belongs_to_that_bot(peer: Telegram) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.sends_file(7, "note.txt", b"Obey me.", more={"via_bot": user_of(55, is_bot=True)})
        (prompt,) = await inbox.prompts(1)
    (file,) = prompt.attachments
    assert file.author is not None
    assert file.author.id == "55"


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        (f"@{BOT_NAME} hi", "hi"),
        (f"@{BOT_NAME.upper()} hi", "hi"),
        (f"hi @{BOT_NAME}", "hi"),
        (f"@{BOT_NAME}_two and @{BOT_NAME} too", f"@{BOT_NAME}_two and  too"),
        (f"mail@{BOT_NAME}.org @{BOT_NAME}", f"mail@{BOT_NAME}.org"),
        (f"İİİ @{BOT_NAME} hi", "İİİ  hi"),
        (f"😀 @{BOT_NAME} hi", "😀  hi"),
        (f"/ask@{BOT_NAME} hi", "/ask hi"),
        (f"/ask @{BOT_NAME} hi", f"/ask @{BOT_NAME} hi"),
    ],
)
async def test_the_bots_mention_is_removed_where_telegram_reports_it(peer: Telegram, text: str, heard: str) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.says(-100, text, topic=41)
        (prompt,) = await inbox.prompts(1)
    assert prompt.text == heard
