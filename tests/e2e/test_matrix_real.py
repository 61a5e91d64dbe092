"""The Matrix adapter against a real homeserver (Synapse), with people who use an independent client (matrix-nio)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.e2e.matrix_person import Somebody
from tests.synapse import PASSWORD, Synapse, homeserver

from shoal.kernel.clock import SystemClock
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id, thread_address
from shoal.kernel.messages import Deletion, Edit, Prompt, Reaction
from shoal.kernel.posts import Button, OutboundPost
from shoal.kernel.secret import Secret
from shoal.platforms.matrix.adapter import MatrixAdapter
from shoal.platforms.matrix.settings import MatrixSettings
from shoal.testing.contracts.chat_peer import Inbox, MemorySettings, serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("matrix")]
APPROVAL = "01" + "K" * 24


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with homeserver(tmp_path_factory.mktemp("synapse")) as server:
        yield server


class Stand:
    """A bot and Ada, each with a new account."""

    def __init__(self, synapse: Synapse, folder: Path) -> None:
        self.synapse = synapse
        self.folder = folder
        self.kept = MemorySettings()
        self.inbox = Inbox()
        self.bot = synapse.person("shoal")
        self.ada = Somebody(synapse.address, synapse.person("ada"), folder / "ada")
        self.adapter = self.make()
        self.others: list[Somebody] = []

    async def somebody(self, name: str) -> Somebody:
        person = Somebody(self.synapse.address, self.synapse.person(name), self.folder / name)
        self.others.append(person)
        await person.arrive()
        return person

    def make(self, *, seals: bool = True) -> MatrixAdapter:
        settings = MatrixSettings(
            homeserver=self.synapse.address, user=self.bot, password=Secret("value", PASSWORD), owner=self.ada.id
        )
        return MatrixAdapter("matrix", settings, Home(self.folder), self.kept, SystemClock(), seals=seals)

    @asynccontextmanager
    async def meeting(self, *, encrypted: bool = False, seals: bool = True) -> AsyncGenerator[str]:
        await self.ada.arrive()
        self.adapter = self.make(seals=seals)
        async with serving(self.adapter, self.inbox):
            async with asyncio.timeout(60):
                await self.adapter.connected.wait()
            room = await self.ada.makes_room(self.bot, encrypted=encrypted)
            await self.ada.joined(room, self.bot)
            yield room

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait for this many prompts, and record their threads as the store would."""
        batch = await self.inbox.prompts(count)
        self.inbox.threads.update({prompt.key: prompt.thread for prompt in batch})
        return batch


@pytest.fixture
async def stand(synapse: Synapse, tmp_path: Path) -> AsyncIterator[Stand]:
    started = Stand(synapse, tmp_path)
    yield started
    for person in (started.ada, *started.others):
        await person.leave()
    await started.adapter.close()


async def test_messages_edits_files_and_reactions_are_exchanged(stand: Stand, tmp_path: Path) -> None:
    async with stand.meeting() as room:
        thread = make_thread_id("matrix", room, "0")
        question = await stand.ada.says(room, "What is the tide? 潮")
        (prompt,) = await stand.prompts(1)
        assert (prompt.thread, prompt.key, prompt.text) == (thread, question, "What is the tide? 潮")
        assert prompt.direct
        post = OutboundPost(thread, "k1", "Low at **six**", reply_to=question)
        message_id = await stand.adapter.post(post)
        assert await stand.adapter.post(post) == message_id  # sends the same transaction id again
        await stand.adapter.typing(thread, "thinking")
        await stand.adapter.edit(thread, message_id, "Low at **seven**")
        seen = await stand.ada.sees(stand.bot, "at <strong>seven")
        assert seen.source["content"]["m.relates_to"] == {"rel_type": "m.replace", "event_id": message_id}
        assert [event.event_id for event in stand.ada.seen if event.event_id == message_id] == [message_id]

        await stand.ada.sends_file(room, "tide table.txt", b"high at noon\n")
        file = (await stand.prompts(2))[1].attachments[0]
        assert (file.name, file.error) == ("tide table.txt", "")
        assert await asyncio.to_thread(Path(file.path).read_bytes) == b"high at noon\n"
        out = tmp_path / "out.bin"
        out.write_bytes(bytes(range(256)))
        await stand.adapter.post(OutboundPost(thread, "k2", "The table.", kind="file", file=out))
        assert await stand.ada.reads(await stand.ada.sees(stand.bot, "out.bin")) == out.read_bytes()

        new = {"msgtype": "m.text", "body": "And tomorrow?"}
        await stand.ada.says(
            room,
            "* And tomorrow?",
            **{"m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": question}},
        )
        await stand.ada.client.room_redact(room, question)
        stand.inbox.threads[message_id] = thread
        await stand.ada.reacts(room, message_id, "🛑")
        await stand.inbox.until(lambda: len(stand.inbox.came) >= 5)
        edit, deletion, reaction = stand.inbox.came[2:]
        assert isinstance(edit, Edit)
        assert (edit.key, edit.text) == (question, "And tomorrow?")
        assert isinstance(deletion, Deletion)
        assert deletion.key == question
        assert isinstance(reaction, Reaction)
        assert (reaction.message_id, reaction.emoji) == (message_id, "🛑")


async def test_a_reaction_to_a_card_names_the_message_of_the_card(stand: Stand) -> None:
    async with stand.meeting() as room:
        thread = make_thread_id("matrix", room, "0")
        buttons = (Button("Allow", f"allow:{APPROVAL}"), Button("Deny", f"deny:{APPROVAL}"))
        card = await stand.adapter.post(OutboundPost(thread, "k1", "May I?", kind="card", buttons=buttons))
        stand.inbox.threads[card] = thread
        await stand.ada.sees(stand.bot, "May I?")
        await stand.ada.reacts(room, card, "✅")
        await stand.inbox.until(lambda: bool(stand.inbox.came))
    assert [(event.message_id, event.emoji) for event in stand.inbox.came if isinstance(event, Reaction)] == [
        (card, "✅")
    ]


async def test_a_thread_in_a_larger_room_has_its_own_history(stand: Stand) -> None:
    ben = await stand.somebody("ben")
    async with stand.meeting() as room:
        await stand.ada.client.room_invite(room, ben.id)
        await ben.client.join(room)
        await stand.ada.joined(room, ben.id)
        await ben.joined(room, stand.ada.id)
        await stand.ada.says(room, "not for you")
        question = await stand.ada.says(room, "what is the tide?", **{"m.mentions": {"user_ids": [stand.bot]}})
        (prompt,) = await stand.prompts(1)
        assert prompt.thread == make_thread_id("matrix", room, question)
        assert not prompt.direct
        message_id = await stand.adapter.post(OutboundPost(prompt.thread, "k1", "Low."))
        seen = await stand.ada.sees(stand.bot, "Low.")
        assert seen.source["content"]["m.relates_to"]["event_id"] == question
        within = {
            "rel_type": "m.thread",
            "event_id": question,
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": message_id},
        }
        await ben.says(room, "and tomorrow?", **{"m.relates_to": within})
        assert (await stand.prompts(2))[1].thread == prompt.thread
        read = [message async for message in stand.adapter.history(prompt.thread, None, 10)]
        assert [message.text for message in read] == ["what is the tide?", "and tomorrow?"]
        opened = await stand.adapter.open_thread(room, "A new matter")
        assert thread_address(opened).thread.startswith("$")
        room2 = await stand.adapter.create_channel("a new harbour", room)
        assert await stand.adapter.has_channel(room2)
        assert not await stand.adapter.has_channel("!nowhere:localhost")


async def test_an_unknown_persons_invitation_is_declined(stand: Stand) -> None:
    mallory = await stand.somebody("mallory")
    stand.inbox.strangers.add(mallory.id)
    async with stand.meeting():
        room = await mallory.makes_room(stand.bot, direct=False)
        await mallory.until(lambda: any(_left(event.source, stand.bot) for event in mallory.seen))
        assert stand.bot not in mallory.client.rooms[room].users


async def test_messages_sent_before_the_bot_joined_are_answered(stand: Stand) -> None:
    async with stand.meeting():
        pass
    room = await stand.ada.makes_room(stand.bot)
    await stand.ada.until(lambda: room in stand.ada.client.rooms)
    await stand.ada.says(room, "early")
    stand.adapter = stand.make()
    async with serving(stand.adapter, stand.inbox):
        assert [prompt.text for prompt in await stand.prompts(1)] == ["early"]


async def test_messages_from_the_downtime_are_read_after_a_restart(stand: Stand) -> None:
    async with stand.meeting() as room:
        await stand.ada.says(room, "first")
        await stand.prompts(1)
    texts = [f"number {number}" for number in range(60)]  # more than one sync returns
    await asyncio.gather(*(stand.ada.says(room, text) for text in texts))
    stand.adapter = stand.make()
    async with serving(stand.adapter, stand.inbox):
        prompts = await stand.prompts(61)
    assert sorted(prompt.text for prompt in prompts) == sorted(["first", *texts])
    assert len({prompt.key for prompt in prompts}) == 61


async def test_an_encrypted_room_works_after_a_restart(stand: Stand, tmp_path: Path) -> None:
    async with stand.meeting(encrypted=True) as room:
        thread = make_thread_id("matrix", room, "0")
        await stand.ada.says(room, "a secret")
        (prompt,) = await stand.prompts(1)
        assert (prompt.text, prompt.thread) == ("a secret", thread)
        message_id = await stand.adapter.post(OutboundPost(thread, "k1", "well **kept**"))
        await stand.adapter.edit(thread, message_id, "well **kept** indeed")
        assert (await stand.ada.sees(stand.bot, "kept</strong> indeed")).decrypted
        await stand.ada.sends_file(room, "secret.txt", b"hidden\n", encrypted=True)
        file = (await stand.prompts(2))[1].attachments[0]
        assert (file.name, file.error) == ("secret.txt", "")
        assert await asyncio.to_thread(Path(file.path).read_bytes) == b"hidden\n"
        out = tmp_path / "out.txt"
        out.write_bytes(b"for your eyes\n")
        await stand.adapter.post(OutboundPost(thread, "k2", "", kind="file", file=out))
        assert await stand.ada.reads(await stand.ada.sees(stand.bot, "out.txt")) == b"for your eyes\n"
        buttons = (Button("Allow", f"allow:{APPROVAL}"), Button("Deny", f"deny:{APPROVAL}"))
        card = await stand.adapter.post(OutboundPost(thread, "k3", "May I?", kind="card", buttons=buttons))
        stand.inbox.threads[card] = thread
        await stand.ada.sees(stand.bot, "May I?")
        await stand.ada.reacts(room, card, "❌")
        await stand.inbox.until(lambda: any(isinstance(event, Reaction) for event in stand.inbox.came))
    await stand.ada.says(room, "still there?")
    stand.adapter = stand.make()
    async with serving(stand.adapter, stand.inbox):
        assert (await stand.prompts(3))[2].text == "still there?"
        await stand.adapter.post(OutboundPost(thread, "k4", "still here"))
        await stand.ada.sees(stand.bot, "still here")


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_message_with_a_late_key_is_read(stand: Stand, restarts: bool) -> None:
    async with stand.meeting(encrypted=True) as room:
        keys = await stand.ada.seals(room, "is the tide high?", stand.bot)
        plain = await stand.ada.makes_room(stand.bot)
        await stand.ada.joined(plain, stand.bot)
        await stand.ada.says(plain, "in the clear")
        await stand.prompts(1)
        assert any(scope == "undecrypted:matrix" for scope, _ in stand.kept.values)
        if not restarts:
            await stand.ada.brings(keys)
            await stand.prompts(2)
    if restarts:
        await stand.ada.brings(keys)
        stand.adapter = stand.make()
        async with serving(stand.adapter, stand.inbox):
            await stand.prompts(2)
    assert [prompt.text for prompt in stand.inbox.said()] == ["in the clear", "is the tide high?"]


async def test_an_upgraded_room_continues_in_the_new_one(stand: Stand) -> None:
    async with stand.meeting() as room:
        await stand.ada.says(room, "before")
        (before,) = await stand.prompts(1)
        answer = await stand.ada.calls("POST", f"rooms/{quote(room)}/upgrade", {"new_version": "11"})
        new = str(answer["replacement_room"])
        await stand.ada.client.room_invite(new, stand.bot)
        await stand.ada.joined(new, stand.bot)
        await stand.ada.says(new, "after")
        after = (await stand.prompts(2))[1]
        assert after.thread == before.thread
        await stand.adapter.post(OutboundPost(after.thread, "k1", "here I am"))
        message = await stand.ada.sees(stand.bot, "here I am")
        assert (await stand.ada.calls("GET", f"rooms/{quote(new)}/event/{message.event_id}", {}))["sender"] == stand.bot


async def test_without_encryption_an_encrypted_room_is_refused_once(stand: Stand) -> None:
    async with stand.meeting(encrypted=True, seals=False) as room:
        await stand.ada.says(room, "one")
        await stand.ada.says(room, "two")
        await stand.ada.sees(stand.bot, "I cannot read this encrypted room")
        plain = await stand.ada.makes_room(stand.bot)
        await stand.ada.joined(plain, stand.bot)
        await stand.ada.says(plain, "three")
        assert [prompt.text for prompt in await stand.prompts(1)] == ["three"]
    assert sum("I cannot read this encrypted room" in str(event.source) for event in stand.ada.seen) == 1


def _left(event: dict[str, object], user: str) -> bool:
    content = event.get("content")
    return event.get("state_key") == user and isinstance(content, dict) and content.get("membership") == "leave"
