"""The Matrix counterpart for the contract suite: Ada and the bot, in a direct room or in a thread of a larger room."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.secret import Secret
from shoal.platforms.matrix.adapter import MatrixAdapter
from shoal.platforms.matrix.settings import MatrixSettings
from shoal.platforms.matrix.wire import Encryption, MatrixEvent
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import THREADS_ARE_OPEN, Counterpart, Kind, Lack, Refers, Route, Shown, Who
from shoal.testing.platforms.matrix import TOKEN, FakeMatrix
from shoal.testing.platforms.matrix_world import ADA, BOT
from shoal.testing.platforms.wire import Given

STRANGER = "@mallory:elsewhere.example"
BEN = "@ben:harbour.example"


OTHERS: dict[Kind, tuple[str, Given]] = {
    "sticker": ("m.sticker", {"body": "wave", "info": {}, "url": "mxc://harbour.example/1"}),
    "location": ("m.room.message", {"msgtype": "m.location", "body": "the pier", "geo_uri": "geo:53.55,9.99"}),
    "poll": (
        "org.matrix.msc3381.poll.start",
        {
            "org.matrix.msc3381.poll.start": {
                "question": {"org.matrix.msc1767.text": "Tides?", "msgtype": "m.text", "body": "Tides?"},
                "answers": [{"id": "1", "org.matrix.msc1767.text": "high"}],
            }
        },
    ),
    "unknown": ("m.room.message", {"msgtype": "org.example.hologram", "body": "a hologram"}),
}
"""Type and content of each kind of event."""


class LateKeys(Encryption):
    """Encryption that decrypts nothing until it has the key. The field `sealed` of an encrypted event contains the
    plain content.
    """

    works = True

    def __init__(self) -> None:
        self.has_key = False
        self.asked: list[str] = []

    def decrypt(self, room: str, event: MatrixEvent) -> MatrixEvent | None:
        if not self.has_key:
            return None
        content = msgspec.json.decode(event.content, type=dict[str, msgspec.Raw])
        return msgspec.structs.replace(event, type="m.room.message", content=content["sealed"])

    async def request_key(self, room: str, event: MatrixEvent) -> None:
        self.asked.append(event.event_id)


class Matrix(Counterpart[MatrixAdapter, FakeMatrix]):
    """Counterpart with a bot that has connected before."""

    stranger = STRANGER
    lacks = frozenset[Lack]()
    refers = frozenset[Refers]({"reply", "own"})
    kinds = frozenset[Kind](OTHERS)
    routes = frozenset[Route]({"reply", "before"})

    def __init__(self, home: Path, server: FakeMatrix, clock: ManualClock) -> None:
        super().__init__(home, server, clock)
        self.room = server.add_room()
        self.root = self.pier = ""
        self.keys = LateKeys()
        self.thread = make_thread_id("matrix", self.room, "0")
        self.other = make_thread_id("matrix", server.add_room(), "0")
        self.adapter = self.make()
        self.kept.values["matrix:matrix", "since"] = f"s{server.world.position}"

    def make(self, *, encryption: Encryption | None = None, **more: object) -> MatrixAdapter:
        """Return a new adapter, as after a restart. Real encryption is tested against a real homeserver."""
        values: dict[str, object] = {
            "homeserver": self.server.address,
            "user": BOT,
            "access_token": Secret("value", TOKEN),
        }
        settings = MatrixSettings(**(values | {"owner": ADA} | more))  # pyrefly: ignore[bad-argument-type]
        return MatrixAdapter("matrix", settings, self.home, self.kept, self.clock, seals=False, encryption=encryption)

    def shown(self) -> Sequence[Shown]:
        messages = self.server.said(self.room, thread=self.root)
        return [
            Shown(
                message.id,
                message.text,
                file=message.file,
                reply_to=message.reply_to,
                kind=message.kind if message.file else "",
            )
            for message in messages
        ]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        user = {"ada": ADA, "bot": BEN, "itself": BOT, "stranger": STRANGER}[author]
        kind = "m.notice" if author == "bot" else "m.text"
        return await self.server.says(self.room, text, user=user, thread=self.root, kind=kind)

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        user = {"ada": ADA, "bot": BEN, "itself": BOT, "stranger": STRANGER}[author]
        if not self.pier:
            self.pier = self.server.add_room(ADA, BEN)
        text, kind = f"{BOT}: {text}" if named else text, "m.notice" if author == "bot" else "m.text"
        return await self.server.says(self.pier, text, user=user, thread=inside, reply_to=answers, kind=kind)

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(self.room, message_id, text)

    async def deletes(self, message_id: str) -> None:
        await self.server.deletes(self.room, message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(self.room, message_id, emoji)

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.server.sends_file(self.room, name, content, thread=self.root)

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        theirs = await self.server.says(self.room, said, user=STRANGER, thread=self.root)
        await self.server.says(self.room, text, thread=self.root, reply_to=theirs)

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        if route == "before":
            await self.in_channel("good morning")
            await self.server.sends_file(self.pier, name, content, user=STRANGER)
            await self.in_channel("what is it?", named=True)
        else:
            theirs = await self.server.sends_file(self.room, name, content, user=STRANGER, thread=self.root)
            await self.server.says(self.room, "what is it?", thread=self.root, reply_to=theirs)

    async def answers_bot(self, message_id: str, text: str) -> None:
        await self.server.says(self.room, text, thread=self.root, reply_to=message_id)

    async def sends(self, kind: Kind) -> None:
        event, content = OTHERS[kind]
        relation: Given = {"rel_type": "m.thread", "event_id": self.root, "is_falling_back": True}
        more: Given = {"m.relates_to": relation} if self.root else {}
        await self.server.happens(self.room, ADA, event, {**content, **more})

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        """Does nothing if the bot is already in a room, because it cannot be invited twice."""
        await self.adapter.connected.wait()
        if not self.pier:
            self.pier = await self.server.invites(user={"ada": ADA, "stranger": STRANGER}[by], name="pier")

    def greeted(self) -> Sequence[str]:
        return [message.text for message in self.server.said(self.pier)]

    async def names_by_edit(self, message_id: str, text: str) -> None:
        await self.server.changes(self.pier, message_id, f"{BOT}: {text}")

    async def resembles(self, text: str) -> None:
        if not self.pier:
            self.pier = self.server.add_room(ADA, BEN)
        for name in (f"{BOT}.evil", f"x{BOT}", f"{BOT}:8448", f"{BOT}-two"):
            # like a client that sends no structured mentions
            content: Given = {"msgtype": "m.text", "body": f"{name}: {text}"}
            await self.server.happens(self.pier, ADA, "m.room.message", content)

    async def seals(self, text: str) -> None:
        await self.adapter.close()
        self.adapter = self.make(encryption=self.keys)
        relation: Given = {"rel_type": "m.thread", "event_id": self.root, "is_falling_back": True}
        more: Given = {"m.relates_to": relation} if self.root else {}
        inside: Given = {"msgtype": "m.text", "body": text, **more}
        content: Given = {"algorithm": "m.megolm.v1.aes-sha2", "sealed": inside, **more}
        await self.server.happens(self.room, ADA, "m.room.encrypted", content)

    async def hands_keys(self) -> None:
        self.keys.has_key = True

    async def moves(self, *, in_other_order: bool = False) -> None:
        """With `in_other_order`, the bot learns about the new room before its invitation arrives."""
        self.pier = await self.server.upgrades(self.pier, public=not in_other_order)
        if in_other_order:
            await self.server.invites_to(self.pier)
        await self.server.until(lambda: BOT in self.server.world.rooms[self.pier].joined())

    def around(self) -> Sequence[str]:
        return [message.text for message in self.server.said(self.pier)]

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        if place == "thread":
            pytest.skip(THREADS_ARE_OPEN)
        room = self.server.add_room(ADA, BEN)
        self.server.barred[room] = "You don't have permission to post that to the room."
        return make_thread_id("matrix", room, "0")

    async def clicks(self, message_id: str, label: str) -> None:
        await self.server.reacts(self.room, message_id, "✅" if label == "Allow" else "❌")
