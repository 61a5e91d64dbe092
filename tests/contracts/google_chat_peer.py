"""The Google Chat counterpart for the contract suite: a fake of Google's API and the people who write in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.platforms.google_chat.adapter import GoogleChatAdapter
from shoal.platforms.google_chat.settings import GoogleChatSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Counterpart, Kind, Lack, Refers, Route, Shown, Who
from shoal.testing.platforms.google_chat import PUSH_URL, FakeGoogleChat
from shoal.testing.platforms.google_chat_wire import Given
from shoal.testing.platforms.wire import Json

DIRECT, HARBOUR = "DmAda", "AAAAharbour"
USERS = {"ada": "1001", "bot": "otherbot", "itself": "app", "stranger": "1009"}


class GoogleChat(Counterpart[GoogleChatAdapter, FakeGoogleChat]):
    """Counterpart with Ada in a direct message and in a space."""

    stranger = "1009"
    refers = frozenset[Refers]({"reply", "forward", "own"})
    kinds = frozenset[Kind]({"picture", "unknown"})
    routes = frozenset[Route]({"before"})

    def __init__(self, home: Path, server: FakeGoogleChat, clock: ManualClock) -> None:
        super().__init__(home, server, clock)
        self.key_file = home / "app.json"
        self.key_file.write_bytes(server.key_file())
        self.adapter = self.make()
        self.thread = make_thread_id("google_chat", DIRECT, "0")
        self.other = make_thread_id("google_chat", HARBOUR, "0")
        self.order = "written" if server.pulls else "arrived"
        self.lacks: frozenset[Lack] = frozenset() if server.pulls else frozenset({"polls"})
        self.kept.values["google_chat:google_chat", "name"] = "users/app"

    def make(self, **more: object) -> GoogleChatAdapter:
        values = {**self.server.settings(), "service_account_file": str(self.key_file), **more}
        settings = GoogleChatSettings(**values)  # pyrefly: ignore[bad-argument-type]
        adapter = GoogleChatAdapter("google_chat", settings, self.home, self.kept, self.clock, PUSH_URL)
        self.server.deliver = adapter.receive
        return adapter

    async def ready(self) -> None:
        await self.adapter.connected.wait()
        while not (self.server.granted or self.server.token_refused):
            await self.clock.advance(31)

    def shown(self) -> Sequence[Shown]:
        return [
            Shown(message.name, message.shown, tuple(label for label, _ in message.buttons), None, message.quoted)
            for message in self.server.said(DIRECT)
            if not message.viewer
        ]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        await self.ready()
        return await self.server.says(DIRECT, text, user=USERS[author])

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        await self.ready()
        thread = self.server.message(inside).thread if inside else ""
        return await self.server.says(HARBOUR, text, user=USERS[author], thread=thread, named=named, quotes=answers)

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(message_id, text)

    async def names_by_edit(self, message_id: str, text: str) -> None:
        await self.server.changes(message_id, text, named=True)

    async def deletes(self, message_id: str) -> None:
        await self.server.deletes(message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(message_id, emoji)

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.ready()
        await self.server.sends_file(DIRECT, name, content)

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        await self.ready()
        await self.server.sends_file(HARBOUR, name, content, user=self.stranger, named=False)
        await self.in_channel("what is it?", named=True)

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        await self.ready()
        theirs = self.server.quietly(DIRECT, said, user=self.stranger)
        await self.server.says(DIRECT, text, quotes=theirs, passes_on=kind == "forward")

    async def answers_bot(self, message_id: str, text: str) -> None:
        await self.server.says(DIRECT, text, quotes=message_id)

    async def sends(self, kind: Kind) -> None:
        gif: Given = {"attachedGifs": [{"uri": "https://media.example/tide.gif"}]}
        await self.server.says(DIRECT, "", more=gif if kind == "picture" else {"hologram": {"depth": 3}})

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        await self.ready()
        await self.server.adds(HARBOUR, user=USERS[by])

    def greeted(self) -> Sequence[str]:
        return [message.shown for message in self.server.said(HARBOUR)]

    async def alerts(self, text: str) -> None:
        await self.ready()
        card: Json = {"sections": [{"widgets": [{"decoratedText": {"topLabel": "db1", "text": f"<b>{text}</b>"}}]}]}
        more: Given = {"cardsV2": [{"cardId": "1", "card": card}]}
        await self.server.says(HARBOUR, "", user="otherbot", named=False, more=more)

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        await self.ready()
        thread = f"spaces/{HARBOUR}/threads/t17"
        self.server.barred[f"spaces/{HARBOUR}" if place == "chat" else thread] = "PERMISSION_DENIED"
        return make_thread_id("google_chat", HARBOUR, "t17")

    def around(self) -> Sequence[str]:
        return [message.shown for message in self.server.said(HARBOUR) if message.thread != "t17"]

    async def clicks(self, message_id: str, label: str) -> None:
        await self.server.clicks(message_id, label)
