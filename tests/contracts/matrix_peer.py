"""The counterpart of Matrix for contracts: ada and the bot, in a room of their own or in a thread of a larger one."""

from collections.abc import Sequence
from pathlib import Path

from shoal.chat.matrix.adapter import MatrixAdapter
from shoal.domain.ids import make_thread_id
from shoal.domain.secret import Secret
from shoal.domain.settings import MatrixSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Counterpart, Shown, Who
from shoal.testing.platforms.matrix import TOKEN, FakeMatrix
from shoal.testing.platforms.matrix_world import ADA, BOT

STRANGER = "@mallory:elsewhere.example"
BEN = "@ben:harbour.example"


class Matrix(Counterpart[MatrixAdapter, FakeMatrix]):
    """A bot that was connected before, and its platform."""

    stranger = STRANGER

    def __init__(self, home: Path, server: FakeMatrix, clock: ManualClock) -> None:
        super().__init__(home, server, clock)
        self.room = server.add_room()
        self.root = ""
        self.thread = make_thread_id("matrix", self.room, "0")
        self.other = make_thread_id("matrix", server.add_room(), "0")
        self.adapter = self.make()
        self.kept.values["matrix:matrix", "since"] = f"s{server.world.position}"

    def make(self, **more: object) -> MatrixAdapter:
        """An adapter as after a restart; encryption is tested against a real homeserver."""
        given: dict[str, object] = {
            "homeserver": self.server.address,
            "user": BOT,
            "access_token": Secret("value", TOKEN),
        }
        settings = MatrixSettings(**(given | {"owner": ADA} | more))  # pyright: ignore[reportArgumentType]
        return MatrixAdapter("matrix", settings, self.home, self.kept, self.clock, seals=False)

    def shown(self) -> Sequence[Shown]:
        found = self.server.said(self.room, thread=self.root)
        return [Shown(one.id, one.text, file=one.file, reply_to=one.reply_to) for one in found]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        user = {"ada": ADA, "bot": BEN, "itself": BOT, "stranger": STRANGER}[author]
        kind = "m.notice" if author == "bot" else "m.text"
        return await self.server.says(self.room, text, user=user, thread=self.root, kind=kind)

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(self.room, message_id, text)

    async def deletes(self, message_id: str) -> None:
        await self.server.deletes(self.room, message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(self.room, message_id, emoji)

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.server.sends_file(self.room, name, content, thread=self.root)

    async def clicks(self, message_id: str, label: str) -> None:
        await self.server.reacts(self.room, message_id, "✅" if label == "Allow" else "❌")
