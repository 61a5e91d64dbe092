"""The stands of Matrix, Teams and Google Chat."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from tests.scenarios.stands import PREVIEW, File, Look, Seen, WireStand

from shoal.chat.google_chat.adapter import GoogleChatAdapter
from shoal.chat.teams.adapter import TeamsAdapter
from shoal.domain.ports import ChatAdapter
from shoal.testing.clock import ManualClock
from shoal.testing.platforms import google_chat, matrix, matrix_world, teams


class MatrixStand(WireStand[matrix.FakeMatrix]):
    """Matrix: a room with the bot alone, and one with both people, where a question opens a thread."""

    platform = "matrix"
    makes_channels = False
    ada, bob, stranger = matrix_world.ADA, "@bob:harbour.example", "@eve:harbour.example"

    def __init__(self) -> None:
        clock = ManualClock()
        super().__init__(matrix.FakeMatrix(clock), clock)
        self.direct, self.strange = self.fake.add_room(), self.fake.add_room(self.stranger)
        self.harbour = self.fake.add_room(self.ada, self.bob, name="harbour")

    def account(self) -> Mapping[str, object]:
        return {"homeserver": self.fake.address, "user": matrix_world.BOT, "access_token": matrix.TOKEN}

    def hears(self, adapter: ChatAdapter) -> bool:
        return self.fake.syncs > 0

    def shown(self) -> list[Seen]:
        said = [one for room in self.fake.world.rooms for one in self.fake.said(room)]
        return [
            Seen(one.id, one.room, one.thread, one.text, (), one.file, one.reply_to, one.text.endswith(PREVIEW))
            for one in said
        ]

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None
    ) -> None:
        thread = answers.place if answers is not None else ""
        if file is not None:
            await self.fake.sends_file(channel, *file, user=user, thread=thread)
        named = text if channel != self.harbour or answers is not None else f"{matrix_world.BOT}: {text}"
        await self.fake.says(channel, named, user=user, thread=thread)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        before = len(self.said())
        await self.fake.says(channel, line, user=user)
        return lambda: next((seen.text for seen in self.said()[before:]), None)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        raise NotImplementedError("Matrix has no buttons")

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.channel, seen.id, emoji, user=user)


class TeamsStand(WireStand[teams.FakeTeams]):
    """Teams: a personal chat, and a channel whose posts have replies."""

    platform = "teams"
    makes_channels = False
    ada, bob, stranger = "aad-ada", "aad-bob", "aad-eve"
    direct, strange, harbour = "a:1ada", "a:1eve", "19:harbour@thread.tacv2"

    def __init__(self) -> None:
        clock = ManualClock()
        super().__init__(teams.FakeTeams(clock), clock)
        for chat in (self.direct, self.strange):
            self.fake.add(chat, "personal")
        self.fake.add(self.harbour, "channel")

    def account(self) -> Mapping[str, object]:
        return self.fake.settings()

    def hears(self, adapter: ChatAdapter) -> bool:
        assert isinstance(adapter, TeamsAdapter)
        self.fake.deliver = adapter.receive
        return adapter.connected.is_set() and self.fake.granted

    def shown(self) -> list[Seen]:
        return [
            Seen(one.id, one.conversation.partition(";")[0], one.conversation, one.text,
                 tuple(label for label, _ in one.buttons), one.file, one.reply_to, one.text.endswith(PREVIEW))
            for one in self.fake.messages
        ]  # fmt: skip

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None
    ) -> None:
        if file is not None:
            await self.fake.sends_file(channel, *file)
        root = answers.place.partition(";messageid=")[2] if answers is not None else ""
        named = channel == self.harbour and not root
        await self.fake.says(channel, text, user=user.removeprefix("aad-"), root=root, named=named)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        before = len(self.said())
        await self.says(line, channel, user)
        return lambda: next((seen.text for seen in self.said()[before:]), None)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        answer = await self.fake.clicks(seen.id, label, user=user.removeprefix("aad-"))
        return answer.body.decode

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.channel, seen.id, emoji)


class GoogleChatStand(WireStand[google_chat.FakeGoogleChat]):
    """Google Chat: direct messages, and a space with threads. The key is kept in `files`."""

    platform = "google_chat"
    makes_channels = False
    settings: ClassVar[Mapping[str, Mapping[str, object]]] = {"web": {"public_url": "https://bot.example.org"}}
    ada, bob, stranger = "1001", "1002", "1009"
    direct, strange, harbour = "DmAda", "DmEve", "AAAAharbour"

    def __init__(self, files: Path) -> None:
        clock = ManualClock()
        super().__init__(google_chat.FakeGoogleChat(clock), clock)
        self._key = files / "app.json"
        for space in (self.direct, self.strange):
            self.fake.add(space, "DIRECT_MESSAGE")
        self.fake.add(self.harbour, "SPACE")

    def account(self) -> Mapping[str, object]:
        self._key.write_bytes(self.fake.key_file())
        return {**self.fake.settings(), "service_account_file": str(self._key)}

    def hears(self, adapter: ChatAdapter) -> bool:
        assert isinstance(adapter, GoogleChatAdapter)
        self.fake.deliver = adapter.receive
        return self.fake.granted > 0

    def shown(self) -> list[Seen]:
        said = [one for space in self.fake.spaces for one in self.fake.said(space)]
        return [
            Seen(one.name, one.space, one.thread, one.shown, tuple(label for label, _ in one.buttons),
                 is_preview=one.text.endswith(PREVIEW))
            for one in said
        ]  # fmt: skip

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None
    ) -> None:
        if file is not None:
            await self.fake.sends_file(channel, *file)
        thread = answers.place if answers is not None else ""
        await self.fake.says(channel, text, user=user, thread=thread, named=answers is None)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        before = len(self.said())
        await self.says(line, channel, user)
        return lambda: next((seen.text for seen in self.said()[before:]), None)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        before = len(self.said())
        await self.fake.clicks(seen.id, label, user=user)
        return lambda: next((seen.text for seen in self.said()[before:]), None)

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.id, emoji, user=user)


MORE: Mapping[str, Callable[[Path], WireStand[matrix.FakeMatrix] | WireStand[teams.FakeTeams] | GoogleChatStand]] = {
    "matrix": lambda _: MatrixStand(), "teams": lambda _: TeamsStand(), "google_chat": GoogleChatStand,
}  # fmt: skip
"""By name."""
