"""The counterpart of Matrix for contracts: ada and the bot, in a room of their own or in a thread of a larger one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shoal.chat.matrix.adapter import MatrixAdapter, MatrixSettings
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, make_thread_id
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Lack, Shown
from shoal.testing.platforms.matrix import TOKEN, FakeMatrix
from shoal.testing.platforms.matrix_world import ADA, BOT

STRANGER = "@mallory:elsewhere.example"
BEN = "@ben:harbour.example"


class Kept:
    """Settings in memory."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}

    async def get(self, scope: str, key: str) -> str | None:
        return self.values.get((scope, key))

    async def put(self, scope: str, key: str, value: str) -> None:
        self.values[scope, key] = value

    async def swap(self, scope: str, key: str, expected: str | None, value: str) -> bool:
        if self.values.get((scope, key)) != expected:
            return False
        self.values[scope, key] = value
        return True


class Matrix:
    """A bot that was connected before, and its platform."""

    lacks: frozenset[Lack] = frozenset()

    def __init__(self, home: Path, server: FakeMatrix, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.stranger = STRANGER
        self.home = Home(home)
        self.kept = Kept()
        self.room = server.add_room()
        self.root = ""
        self.thread: ThreadId = make_thread_id("matrix", self.room, "0")
        self.adapter = self.make()
        self.kept.values["matrix:matrix", "since"] = f"s{server.world.position}"

    def make(self, **more: object) -> MatrixAdapter:
        """An adapter as after a restart; encryption is tested against a real homeserver."""
        given: dict[str, object] = {"homeserver": self.server.address, "user": BOT, "access_token": lambda: TOKEN}
        settings = MatrixSettings(**(given | {"owner": ADA} | more))  # pyright: ignore[reportArgumentType]
        return MatrixAdapter("matrix", settings, self.home, self.kept, self.clock, seals=False)

    def shown(self) -> Sequence[Shown]:
        found = self.server.said(self.room, thread=self.root)
        return [Shown(one.id, one.text, file=one.file, reply_to=one.reply_to) for one in found]

    async def says(self, text: str, *, author: Literal["ada", "bot", "itself", "stranger"] = "ada") -> str:
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

    async def redeliver(self) -> None:
        await self.server.redeliver()

    def refuse(self, retry_after_seconds: float) -> None:
        self.server.troubles.append(("refuse", retry_after_seconds))

    def lose_answer(self) -> None:
        self.server.troubles.append(("lose", 0))

    def break_connection(self) -> None:
        self.server.server.drop()

    def refuse_token(self, refused: bool) -> None:
        self.server.token_refused = refused

    async def pass_time(self) -> None:
        await self.clock.advance_to_next()
