"""The chat contract for Discord, against a fake API and gateway, in each threading mode."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from shoal.kernel.errors import PlatformError, StoreError
from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import UNTOLD, Deletion, Inbound, Receipt
from shoal.kernel.ports import ChannelHost
from shoal.kernel.posts import WRITING, OutboundPost
from shoal.kernel.secret import Secret
from shoal.platforms.discord.adapter import DiscordAdapter
from shoal.platforms.discord.messages import Threading
from shoal.platforms.discord.settings import DiscordSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Counterpart, Inbox, Kind, Lack, Refers, Route, Shown, Who, serving
from shoal.testing.platforms.discord import TOKEN, FakeDiscord
from shoal.testing.platforms.discord_world import ADA, BOT, OTHER_ROLE, OWN_ROLE
from shoal.testing.platforms.wire import Given, Json

STRANGER = "700000000000000009"
OTHER_BOT = "900000000000000009"


OTHERS: dict[Kind, Given] = {
    "sticker": {"sticker_items": [{"id": "1", "name": "wave", "format_type": 1}]},
    "poll": {"poll": {"question": {"text": "Tides?"}, "answers": [{"answer_id": 1, "poll_media": {"text": "high"}}]}},
    "unknown": {"hologram": {"depth": 3}},
}
"""Payload of a message of each kind."""


class Discord(Counterpart[DiscordAdapter, FakeDiscord]):
    """Counterpart in a direct conversation with Ada or in a server thread that the bot follows."""

    stranger = STRANGER
    lacks = frozenset[Lack]({"greeting"})
    refers = frozenset[Refers]({"reply", "forward", "own"})
    kinds = frozenset[Kind](OTHERS)
    routes = frozenset[Route]({"reply", "before"})

    def __init__(self, home: Path, server: FakeDiscord, clock: ManualClock) -> None:
        super().__init__(home, server, clock)
        server.world.bots.add(OTHER_BOT)
        self.guild, self.harbour = server.add_server()
        self.settings = DiscordSettings(token=Secret("value", TOKEN), api_base=server.api_base)
        self.adapter = self.make()
        self.channel = server.direct()
        self.kept.values["discord:discord", "direct"] = f'["{self.channel}"]'
        self.thread = make_thread_id("discord", self.channel, "0")
        self.other = make_thread_id("discord", server.add_channel(self.guild), "0")

    def make(self, threading: Threading = "native") -> DiscordAdapter:
        settings = DiscordSettings(token=Secret("value", TOKEN), api_base=self.server.api_base, threading=threading)
        return DiscordAdapter("discord", settings, self.home, self.kept, self.clock)

    def shown(self) -> Sequence[Shown]:
        return [
            Shown(
                message.id,
                message.text,
                tuple(label for label, _ in message.buttons),
                message.file,
                message.reply_to,
                message.kind,
                message.album,
            )
            for message in self.server.said(self.channel)
        ]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        user = {"ada": ADA, "bot": OTHER_BOT, "itself": BOT, "stranger": STRANGER}[author]
        return await self.server.says(self.channel, text, user=user)

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        user = {"ada": ADA, "bot": OTHER_BOT, "itself": BOT, "stranger": STRANGER}[author]
        if inside and inside not in self.server.world.rooms:
            self.server.open_thread(self.harbour, inside)  # as the bot's first post does
        where = inside if inside in self.server.world.rooms else self.harbour
        text = f"<@{BOT}> {text}" if named else text
        return await self.server.says(where, text, user=user, reply_to=answers)

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(message_id, text)

    async def deletes(self, message_id: str) -> None:
        await self.server.deletes(message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(message_id, emoji)

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.server.says(self.channel, "", file=(name, content))

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        await self.adapter.connected.wait()
        if kind == "forward":
            reference: Json = {"type": 1, "message_id": "1", "channel_id": "2"}
            snapshot: Json = {"message": {"content": said, "type": 0, "attachments": [], "embeds": [], "mentions": []}}
            more: Given = {"message_reference": reference, "message_snapshots": [snapshot]}
            await self.server.says(self.channel, "", more=more)
            return
        theirs = self.server.quietly(self.channel, said, user=STRANGER)
        await self.server.says(self.channel, text, reply_to=theirs)

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        await self.adapter.connected.wait()
        if route == "before":
            await self.server.says(self.harbour, "", user=STRANGER, file=(name, content))
            await self.in_channel("what is it?", named=True)
        else:
            theirs = self.server.quietly(self.channel, "", user=STRANGER, file=(name, content))
            await self.server.says(self.channel, "what is it?", reply_to=theirs)

    async def answers_bot(self, message_id: str, text: str) -> None:
        await self.server.says(self.channel, text, reply_to=message_id)

    async def sends(self, kind: Kind) -> None:
        await self.server.says(self.channel, "", more=OTHERS[kind])

    async def names_by_edit(self, message_id: str, text: str) -> None:
        await self.server.changes(message_id, f"<@{BOT}> {text}")

    async def resembles(self, text: str) -> None:
        for name in (f"<@{BOT}9>", f"<@&{OTHER_ROLE}>", "@shoal"):
            await self.server.says(self.harbour, f"{name} {text}")

    async def alerts(self, text: str) -> None:
        embed: Json = {"type": "rich", "title": "Monitor", "description": text, "fields": [], "color": 0}
        await self.server.says(self.harbour, "", user=OTHER_BOT, more={"embeds": [embed]})

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        if place == "chat":
            self.server.barred[self.harbour] = "50013"
            return make_thread_id("discord", self.harbour, "0")
        starter = await self.server.says(self.harbour, "begin", user=OTHER_BOT)
        self.server.open_thread(self.harbour, starter)
        self.server.barred[starter] = "10003" if gone else "160005"
        return make_thread_id("discord", self.harbour, starter)

    def around(self) -> Sequence[str]:
        return [message.text for message in self.server.said(self.harbour)]

    async def clicks(self, message_id: str, label: str) -> None:
        await self.adapter.connected.wait()  # Discord does not store clicks for an offline bot
        await self.server.clicks(message_id, label)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Discord]:
    clock = ManualClock()
    server = FakeDiscord(clock)
    server.world.bots.add(OTHER_BOT)
    await server.start()
    counterpart = Discord(tmp_path, server, clock)
    yield counterpart
    await counterpart.adapter.close()
    await server.stop()


class TestDiscord(ChatContract): ...


class TestDiscordThread(ChatContract):
    """The contract in a server thread that the bot already follows."""

    @pytest.fixture
    async def peer(self, peer: Discord) -> Discord:
        starter = await peer.server.says(peer.harbour, "begin", user=OTHER_BOT)
        peer.server.open_thread(peer.harbour, starter)
        peer.channel = starter
        peer.thread = make_thread_id("discord", peer.harbour, starter)
        peer.kept.values["subscribed:discord", peer.thread] = "1"
        return peer


class TestDiscordChannel(ChatContract):
    """The contract for an account that treats each channel as one thread."""

    @pytest.fixture
    async def peer(self, peer: Discord) -> Discord:
        peer.adapter = peer.make("channel")
        peer.lacks = frozenset({"channels", "greeting"})
        return peer


async def test_a_channel_is_answered_when_it_mentions_the_bot(peer: Discord) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.says(peer.harbour, "just talk")
        first = await peer.server.says(peer.harbour, f"<@{BOT}> what is the tide?")
        (prompt,) = await inbox.prompts(1)
        assert (prompt.text, prompt.thread) == ("what is the tide?", f"discord:{peer.harbour}:{first}")
        await peer.adapter.post(OutboundPost(prompt.thread, "k", "Six.", reply_to=first))
        await peer.server.says(first, "and tomorrow?")
        assert (await inbox.prompts(2))[-1].thread == prompt.thread
    assert [message.text for message in peer.server.said(first)] == ["Six."]
    async with serving(peer.make(), inbox):
        await peer.server.says(first, "after a restart")
        assert (await inbox.prompts(3))[-1].text == "after a restart"


async def test_a_chain_of_replies_is_a_thread(peer: Discord) -> None:
    inbox = Inbox()
    adapter = peer.make("reply")
    async with serving(adapter, inbox):
        root = await peer.server.says(peer.harbour, f"<@{BOT}> what is the tide?")
        (prompt,) = await inbox.prompts(1)
        assert prompt.thread == f"discord:{peer.harbour}:r{root}"
        answer = await adapter.post(OutboundPost(prompt.thread, "k", "Six."))
        inbox.threads[answer] = prompt.thread
        await peer.server.says(peer.harbour, "besides")
        await peer.server.says(peer.harbour, "and tomorrow?", reply_to=answer)
        follow = (await inbox.prompts(2))[-1]
        assert (follow.thread, follow.joins, follow.reply_to) == (prompt.thread, True, answer)
        texts = [message.text async for message in adapter.history(prompt.thread, None, 10)]
    assert peer.server.said(peer.harbour)[-1].reply_to == root
    assert texts == ["what is the tide?", "and tomorrow?"]


async def test_the_bot_opens_a_direct_conversation(peer: Discord) -> None:
    assert await peer.adapter.open_thread(ADA, "Psst.") == peer.thread
    assert [message.text for message in peer.shown()] == ["Psst."]
    peer.server.world.shut.add(STRANGER)
    with pytest.raises(PlatformError):
        await peer.adapter.open_thread(STRANGER, "Psst.")


@pytest.mark.parametrize("threading", ["reply", "native"])
async def test_a_reply_to_the_bots_own_post_joins_its_thread(peer: Discord, threading: Threading) -> None:
    inbox = Inbox()
    adapter = peer.make(threading)
    begun = await adapter.open_thread(peer.harbour, "Low tide at six.")
    (message,) = peer.server.said(peer.harbour)
    async with serving(adapter, inbox):
        await peer.server.says(peer.harbour, "and tomorrow?", reply_to=message.id)
        (prompt,) = await inbox.prompts(1)
    assert (prompt.thread, prompt.joins) == (begun, True)


async def test_the_bot_replies_directly_if_it_cannot_open_a_thread(peer: Discord) -> None:
    voice = peer.server.add_channel(peer.guild, kind=2)
    question = await peer.server.says(voice, f"<@{BOT}> hello")
    thread = make_thread_id("discord", voice, question)
    message_id = await peer.adapter.post(OutboundPost(thread, "k", "Hello."))
    await peer.adapter.edit(thread, message_id, "Hello!")
    (message,) = peer.server.said(voice)
    assert (message.text, message.reply_to) == ("Hello!", question)


@pytest.mark.parametrize(
    ("code", "permanent"),
    [
        (10003, True), (10004, True), (40058, True), (50001, False), (50008, True), (50013, False),
        (50024, True), (50055, True), (50083, False), (50095, False), (160005, False),
    ],
)  # fmt: skip
async def test_an_error_code_decides_whether_a_barred_channel_fails_permanently(
    peer: Discord, code: int, permanent: bool
) -> None:
    """Error codes: https://docs.discord.com/developers/topics/opcodes-and-status-codes"""
    thread = await peer.bars("thread")
    peer.server.barred[thread_address(thread).thread] = str(code)
    with pytest.raises(PlatformError) as caught:
        await peer.adapter.post(OutboundPost(thread, "k", "High tide is at six."))
    assert (caught.value.barred, caught.value.permanent) == (True, permanent)


@pytest.mark.parametrize("code", [160002, 160009, 160010])
async def test_an_answer_is_posted_even_if_it_cannot_quote(peer: Discord, code: int) -> None:
    message_id = await peer.says("well?")
    peer.server.world.replies_refused = code
    for _ in range(2):
        await peer.adapter.post(OutboundPost(peer.thread, "k", "High tide is at six.", reply_to=message_id))
    assert [(message.text, message.reply_to) for message in peer.shown()] == [("High tide is at six.", "")]


async def test_a_session_is_resumed_by_the_next_process(peer: Discord) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.says("one")
        await peer.says("two")
        await inbox.prompts(2)  # reading the second prompt acknowledges the first
    await peer.says("meanwhile")
    again = Inbox()
    async with serving(peer.make(), again):
        await again.until(lambda: "meanwhile" in [prompt.text for prompt in again.said()])
    assert "one" not in [prompt.text for prompt in again.said()]
    assert (peer.server.gateway.identified, peer.server.gateway.resumed) == (1, 1)


async def test_missed_messages_are_read_once(peer: Discord) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.says("one")
        await inbox.prompts(1)
    peer.server.gateway.forget()
    message_id = await peer.server.says(peer.harbour, f"<@{BOT}> two")
    await peer.says("three")
    async with serving(peer.make(), inbox):
        while len(inbox.said()) < 3:
            await peer.clock.advance(1)
    prompts = inbox.said()
    assert sorted(prompt.text for prompt in prompts[1:]) == ["three", "two"]
    assert make_thread_id("discord", peer.harbour, message_id) in {prompt.thread for prompt in prompts}


@pytest.mark.parametrize("code", [4000, 4009, 1000])
async def test_the_adapter_reconnects_after_a_close(peer: Discord, code: int) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.server.gateway.end(code)
        await peer.says("still there?")
        while not inbox.said():
            await peer.clock.advance(1)
    assert [prompt.text for prompt in inbox.said()] == ["still there?"]


async def test_a_silent_connection_is_given_up(peer: Discord) -> None:
    peer.server.gateway.deaf = True
    async with serving(peer.adapter, Inbox()):
        await peer.adapter.connected.wait()
        while not peer.server.gateway.resumed:
            await peer.clock.advance(10)


async def test_a_missing_intent_is_reported(peer: Discord, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(peer.adapter, Inbox()):
        await peer.adapter.connected.wait()
        await peer.server.gateway.end(4014)
        while "Message Content Intent" not in caplog.text:
            await peer.clock.advance(1)


async def test_an_event_that_could_not_be_stored_is_delivered_again(peer: Discord) -> None:
    class Failing(Inbox):
        broken = True

        async def send(self, message: Inbound) -> Receipt:
            if self.broken:
                self.broken = False
                raise StoreError("The disk is away.")
            return await super().send(message)

    inbox = Failing()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.says("keep this")
        while not inbox.said():
            await peer.clock.advance(1)
    assert [prompt.text for prompt in inbox.said()] == ["keep this"]


async def test_an_exhausted_rate_limit_is_reported_before_the_server_refuses_a_post(peer: Discord) -> None:
    for number in range(5):
        await peer.adapter.post(OutboundPost(peer.thread, f"k{number}", "x"))
    with pytest.raises(PlatformError) as caught:
        await peer.adapter.post(OutboundPost(peer.thread, "k5", "x"))
    assert caught.value.retry_after_seconds == pytest.approx(5, abs=0.1)
    assert not caught.value.everywhere
    assert peer.server.exceeded == 0


async def test_an_account_wide_limit_is_reported_as_such(peer: Discord) -> None:
    peer.server.troubles.append(("refuse_all", 3.0))
    with pytest.raises(PlatformError) as caught:
        await peer.adapter.post(OutboundPost(peer.thread, "k", "x"))
    assert (caught.value.retry_after_seconds, caught.value.everywhere) == (3.0, True)


async def test_an_ephemeral_post_is_sent_as_a_direct_message(peer: Discord) -> None:
    thread = make_thread_id("discord", peer.harbour, "0")
    post = OutboundPost(thread, "k", "For you alone.", kind="ephemeral", user=ADA)
    await peer.adapter.post(post)
    assert [message.text for message in peer.shown()] == ["For you alone."]
    peer.server.world.shut.add(ADA)
    await peer.adapter.post(msgspec.structs.replace(post, key="k2"))
    (said,) = peer.server.said(peer.harbour)
    assert "For you alone" not in said.text


async def test_a_slash_command_is_acknowledged_before_it_runs(peer: Discord) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        command = await peer.server.commands(peer.harbour, "steer", "faster")
        assert await peer.server.hears(command) == "Did /steer."
    (request,) = inbox.requests
    assert (request.name, request.argument, request.author.name) == ("steer", "faster", "Ada")
    assert [path.split("/")[-1] for _, path, _ in peer.server.calls if command.token in path] == [
        "callback",
        "@original",
    ]


async def test_command_arguments_are_completed(peer: Discord) -> None:
    inbox = Inbox()
    inbox.suggested = ("model one/" + "x" * 100, *(f"model one/{number}" for number in range(30)))
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        completed = [
            command["name"] for command in peer.server.world.commands if '"autocomplete": true' in json.dumps(command)
        ]
        assert completed == ["retry", "model", "agent", "settings"]
        choices = await peer.server.types(peer.harbour, "settings", "model ")
        assert choices == [f"model one/{number}" for number in range(25)], (
            "within Discord's limits of number and length"
        )
        inbox.strangers.add(STRANGER)
        assert await peer.server.types(peer.harbour, "settings", "model ", user=STRANGER) == []


async def test_the_bot_opens_a_thread_with_its_own_post(peer: Discord) -> None:
    inbox = Inbox()
    thread = await peer.adapter.open_thread(peer.harbour, "Good morning!\n" + "x" * 2500)
    topic = thread.rpartition(":")[2]
    assert [message.text[:13] for message in peer.server.said(peer.harbour)] == ["Good morning!"]
    assert peer.server.said(topic)
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.server.says(topic, "morning")
        assert (await inbox.prompts(1))[0].thread == thread


async def test_a_channel_is_created_in_the_guild_of_an_existing_channel(peer: Discord) -> None:
    assert isinstance(peer.adapter, ChannelHost)
    channel = await peer.adapter.create_channel("Night watch", peer.harbour)
    assert await peer.adapter.has_channel(channel)
    assert not await peer.adapter.has_channel("404")
    assert peer.server.world.rooms[channel].guild == peer.guild
    with pytest.raises(PlatformError):
        await peer.adapter.create_channel("Nowhere", "404")


async def test_history_is_read_in_pages_and_keeps_the_newest(peer: Discord) -> None:
    for number in range(230):
        await peer.says(f"n{number}")
    texts = [prompt.text async for prompt in peer.adapter.history(peer.thread, None, 150)]
    assert texts == [f"n{number}" for number in range(80, 230)]
    assert [prompt async for prompt in peer.adapter.history(peer.thread, peer.clock.now(), 10)][-1].text == "n229"
    not_open = make_thread_id("discord", peer.harbour, "404")
    assert [prompt async for prompt in peer.adapter.history(not_open, None, 10)] == []


async def test_an_earlier_attempts_post_is_found_by_its_content(peer: Discord, tmp_path: Path) -> None:
    """Discord's nonces expire. After that, only the file and the replied-to message distinguish posts with the
    same text.
    """
    file, other = tmp_path / "tides.txt", tmp_path / "more.txt"
    file.write_text("high")
    other.write_text("low again")
    question = await peer.server.says(peer.channel, "how is the tide?")
    posts = [
        OutboundPost(peer.thread, "T1:reply:0", "**High**  ", reply_to=question),
        OutboundPost(peer.thread, "T2:reply:0", "**High**"),
        OutboundPost(peer.thread, "f1:0", "here", "file", file),
        OutboundPost(peer.thread, "f2:0", "here", "file", other),
    ]
    ids = [await peer.adapter.post(post) for post in posts]
    preview = await peer.adapter.post(OutboundPost(peer.thread, "preview:T3", "The ti" + WRITING))
    again = peer.make()
    assert [list(await again.find_posted(post)) for post in posts] == [[message_id] for message_id in ids]
    assert await again.find_posted(OutboundPost(peer.thread, "preview:T3", "The tide is high.")) == [preview]
    assert not await again.find_posted(OutboundPost(peer.thread, "T4:reply:0", "Low"))
    nowhere = make_thread_id("discord", peer.harbour, await peer.server.says(peer.harbour, "hi"))
    assert not await again.find_posted(OutboundPost(nowhere, "T5:reply:0", "Low"))
    await again.close()


async def test_a_forum_is_a_channel_whose_posts_are_threads(peer: Discord) -> None:
    forum, inbox = peer.server.add_channel(peer.guild, name="questions", kind=15), Inbox()
    inbox.listen = "all"
    async with serving(peer.adapter, inbox):
        assert await peer.adapter.has_channel(forum)
        opened = await peer.adapter.open_thread(forum, "Low tide is at six.")
        asked = peer.server.open_thread(forum, peer.server.world.fresh())
        await peer.server.says(asked, "how high?")
        (prompt,) = await inbox.prompts(1)
        await peer.adapter.post(OutboundPost(prompt.thread, "k1", "Two metres."))
    assert [message.text for message in peer.server.said(opened.rpartition(":")[2])] == ["Low tide is at six."]
    assert prompt.thread == make_thread_id("discord", forum, asked)
    assert [message.text for message in peer.server.said(asked)] == ["Two metres."]


async def test_the_successor_of_a_deleted_forum_post_is_a_new_post(peer: Discord, tmp_path: Path) -> None:
    forum = peer.server.add_channel(peer.guild, name="questions", kind=15)
    file = tmp_path / "tides.txt"
    file.write_bytes(b"high at noon")
    lost = OutboundPost(make_thread_id("discord", forum, peer.server.world.fresh()), "k", "Two metres.", file=file)
    with pytest.raises(PlatformError) as caught:
        await peer.adapter.post(lost)
    assert caught.value.barred
    around = peer.adapter.around(lost.thread)
    assert around is not None
    for _ in range(2):
        message_id = await peer.adapter.post(msgspec.structs.replace(lost, thread=around))
    assert [(message.text, message.file) for message in peer.server.said(message_id)] == [
        ("Two metres.", ("tides.txt", b"high at noon"))
    ]


async def test_a_deletion_applies_to_messages_from_before_a_restart(peer: Discord) -> None:
    """Discord's deletion events do not contain the author of the deleted message."""
    first, inbox = Inbox(), Inbox()
    async with serving(peer.adapter, first):
        message_id = await peer.says("never mind")
        (prompt,) = await first.prompts(1)
    inbox.threads[message_id] = prompt.thread
    peer.adapter = peer.make()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.deletes(message_id)
        deletion = Deletion(prompt.thread, message_id, UNTOLD, message_id)
        await inbox.until(lambda: deletion in inbox.came)


async def test_embeds_and_components_are_read_in_forwards_replies_and_history(peer: Discord) -> None:
    card: Json = {"author": {"name": "CI"}, "title": "Failed", "fields": [{"name": "on", "value": "main"}],
                  "footer": {"text": "job 7"}}  # fmt: skip
    part: Json = {"type": 17, "components": [{"type": 10, "content": "in parts"}]}
    shown: Given = {"embeds": [card], "components": [part]}
    theirs: Json = {"id": "8", "author": {"id": OTHER_BOT, "username": "ci", "bot": True}, "content": "", **shown}
    snapshot: Json = {"message": {"content": "", **shown}}
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        passed: Given = {"message_reference": {"type": 1, "message_id": "9"}, "message_snapshots": [snapshot]}
        await peer.server.says(peer.channel, "", more=passed)
        reply: Given = {"message_reference": {"type": 0, "message_id": "8"}, "referenced_message": theirs, "type": 19}
        await peer.server.says(peer.channel, "why?", more=reply)
        prompts = await inbox.prompts(2)
    assert [prompt.refers_to[0].text for prompt in prompts] == ["CI\nFailed\non: main\njob 7\nin parts"] * 2


async def test_files_without_text_before_a_mention_are_included(peer: Discord) -> None:
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        await peer.server.says(peer.harbour, "", file=("pier.png", b"x"))
        await peer.in_channel("what is it?", named=True)
        (prompt,) = await inbox.prompts(1)
    assert [(reference.kind, reference.text) for reference in prompt.refers_to] == [("before", "[file pier.png]")]


@pytest.mark.parametrize("text", ["<@&{role}> is it?", "is it, <@&{role}>?", "<@&{role}><@&{other}> is it?"])
async def test_the_bots_own_role_addresses_it(peer: Discord, text: str) -> None:
    """Discord creates a role for each bot, and people mention it by mistake instead of the bot. Mentions of other
    roles must not address the bot.
    """
    inbox = Inbox()
    async with serving(peer.adapter, inbox):
        await peer.server.says(peer.harbour, f"<@&{OTHER_ROLE}> is it?")
        await peer.server.says(peer.harbour, text.format(role=OWN_ROLE, other=OTHER_ROLE))
        (prompt,) = await inbox.prompts(1)
    assert "is it" in prompt.text
    assert OWN_ROLE not in prompt.text
