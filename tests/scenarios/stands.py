"""Test platforms with people and channels, for scenarios that run on several platforms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.messages import Attachment, Author, Prompt
from shoal.kernel.ports import ChatAdapter, InboxPort
from shoal.permissions.access import AccessRules
from shoal.platforms.discord.adapter import DiscordAdapter
from shoal.platforms.google_chat.adapter import GoogleChatAdapter
from shoal.platforms.inbox import press, submit
from shoal.platforms.matrix.adapter import MatrixAdapter
from shoal.platforms.teams.adapter import TeamsAdapter
from shoal.testing.chat import FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.platforms import (
    discord,
    discord_world,
    google_chat,
    matrix,
    matrix_world,
    slack,
    slack_methods,
    teams,
    telegram,
)
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.slack_markup import shown_text
from shoal.testing.platforms.slack_wire import Room

F = TypeVar("F", bound=FakePlatform)
PREVIEW = " …"
"""Suffix of an answer that is still being written."""
File: TypeAlias = tuple[str, bytes]
Look: TypeAlias = Callable[[], str | None]
"""Looks for an answer that may not have arrived."""


class Seen(NamedTuple):
    """A message of the bot as people see it. `place` is its topic or thread, or the `channel` outside of threads."""

    id: str
    channel: str
    place: str
    text: str
    buttons: tuple[str, ...] = ()
    file: File | None = None
    reply_to: str = ""
    is_preview: bool = False


class Stand(ABC):
    """A test platform with people and conversations.

    - `ada`: the owner of the bot, who writes in the `direct` conversation.
    - `bob`: a person who may write to the bot.
    - `stranger`: an unknown person, who writes in the `strange` conversation.
    - `harbour`: a channel with ada and bob.

    A message in a channel names the bot and opens a thread. A reply to the bot continues the thread of that message.
    """

    platform: ClassVar[str]
    makes_channels: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Configuration sections that the platform needs in addition to its account."""
    ada: str
    bob: str
    stranger: str
    direct: str
    strange: str
    harbour: str

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.adapters: tuple[ChatAdapter, ...] = ()

    @abstractmethod
    def account(self) -> Mapping[str, object]:
        """Return the settings of the bot's account without its people. The fake platform returns an empty mapping."""

    @abstractmethod
    async def start(self) -> None:
        """Start the platform. A restart uses the same address."""

    @abstractmethod
    async def stop(self) -> None:
        """Go offline until `start`. The bot's open requests fail. Messages are kept."""

    def hears(self, adapter: ChatAdapter) -> bool:
        """Return True if the bot is connected and can receive messages."""
        return True

    @abstractmethod
    def shown(self) -> list[Seen]:
        """Return all visible messages of the bot, oldest first."""

    def said(self) -> list[Seen]:
        return [seen for seen in self.shown() if not seen.is_preview]

    def previews(self) -> list[Seen]:
        return [seen for seen in self.shown() if seen.is_preview]

    @abstractmethod
    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        """Send a message as `user`. With `answers` it is a reply. In a channel it names the bot unless `named` is
        false.
        """

    @abstractmethod
    async def asks(self, line: str, channel: str, user: str) -> Look:
        """Send a command as `user` and return a lookup for the response."""

    @abstractmethod
    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        """Press a button as `user` and return a lookup for the platform's response."""

    @abstractmethod
    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        """Add an emoji to a message as `user`."""

    def loses(self, channel: str) -> None:
        """Delete a channel. Raises NotImplementedError if the platform does not report that to bots."""
        raise NotImplementedError(f"{self.platform} does not tell bots of that")

    def thread(self, channel: str) -> ThreadId:
        return make_thread_id(self.platform, channel, "0")


class FakeStand(Stand):
    platform = "fake"
    ada, bob, stranger = "ada", "bob", "eve"
    direct, strange, harbour = "ada", "eve", "harbour"

    def __init__(self, files: Path) -> None:
        super().__init__()
        self.chat = FakeChat(clock=self.clock)
        self.adapters = (self.chat,)
        self._files = files

    def account(self) -> Mapping[str, object]:
        return {}

    def access(self) -> Mapping[str, AccessRules]:
        return {self.platform: AccessRules((self.ada,), (self.bob,))}

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def hears(self, adapter: ChatAdapter) -> bool:
        return self.chat.inbox is not None

    def shown(self) -> list[Seen]:
        found: list[Seen] = []
        for made in self.chat.posted:
            channel, file = thread_address(made.post.thread).channel, made.post.file
            content = (file.name, file.read_bytes()) if file is not None else None
            labels = tuple(button.label for button in made.buttons)
            text = made.markdown.replace("**", "").replace("`", "")
            found.append(Seen(made.id, channel, made.post.thread, text, labels, content, made.post.reply_to))
        return found

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        key, found = self.clock.new_id(), None
        if answers is not None and channel != self.direct:
            found = await self._inbox.thread_of(f"{self.platform}:{channel}:", answers.id)
        begun = ThreadId(answers.place) if answers is not None else None
        thread = found or begun or make_thread_id(self.platform, channel, "0" if channel == self.direct else key)
        reply_to = answers.id if answers is not None else ""
        prompt = self._prompt(thread, text, user, key)
        files = (self._kept(*file),) if file is not None else ()
        fields = {"reply_to": reply_to, "joins": bool(reply_to), "attachments": files}
        await submit(replace(prompt, **fields), self._inbox)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        prompt = self._prompt(self.thread(channel), line, user, self.clock.new_id())
        told = (await submit(prompt, self._inbox)).replace("**", "").replace("`", "")
        return lambda: told

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        made = next(made for made in self.chat.posted if made.id == seen.id)
        value = next(button.value for button in made.buttons if button.label == label)
        told = await press(value, ThreadId(seen.place), Author(user, user, trusted=False), self._inbox)
        return lambda: told

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.chat.reacts(seen.id, emoji, user=user)

    def loses(self, channel: str) -> None:
        self.chat.gone.add(channel)

    @property
    def _inbox(self) -> InboxPort:
        assert self.chat.inbox is not None
        return self.chat.inbox

    def _prompt(self, thread: ThreadId, text: str, user: str, key: str) -> Prompt:
        is_direct = thread_address(thread).channel in (self.direct, self.strange)
        author = Author(user, user, trusted=True)
        return Prompt(thread, key, text, author, self.clock.now(), message_id=key, direct=is_direct)

    def _kept(self, name: str, content: bytes) -> Attachment:
        path = self._files / name
        path.write_bytes(content)
        return Attachment(name, "text/plain", len(content), path=str(path))


class WireStand(Stand, Generic[F]):
    """A platform that the app reaches over its wire protocol. `fake` can inject faults."""

    def __init__(self, fake: F, clock: ManualClock | None = None) -> None:
        super().__init__(clock)
        self.fake = fake

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    async def asks(self, line: str, channel: str, user: str) -> Look:
        before = len(self.said())
        await self.says(line, channel, user)
        return lambda: next((seen.text for seen in self.said()[before:]), None)


class TelegramStand(WireStand[telegram.FakeTelegram]):
    """Telegram with a private chat and a group, in which topics are the threads."""

    platform = "telegram"
    makes_channels = False
    ada, bob, stranger = "7", "8", "9"
    direct, strange, harbour = "7", "9", "-1001"

    def __init__(self) -> None:
        super().__init__(telegram.FakeTelegram())
        for chat in (self.ada, self.bob, self.stranger):
            self.fake.add_chat(int(chat))
        self.fake.add_chat(int(self.harbour), "supergroup")

    def account(self) -> Mapping[str, object]:
        return {"token": telegram.TOKEN, "api_base": self.fake.server.address}

    def shown(self) -> list[Seen]:
        return [
            Seen(str(one.id), str(one.chat), str(one.topic), one.text, tuple(label for label, _ in one.buttons),
                 one.file, str(one.reply_to), one.text.endswith(PREVIEW))
            for one in self.fake.messages
            if one.user == telegram.BOT_ID
        ]  # fmt: skip

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        chat, topic, reply_to = int(channel), 0, 0
        if file is not None:
            await self.fake.sends_file(chat, *file, user=int(user), caption=text)
            return
        if answers is not None:
            topic, reply_to = int(answers.place), int(answers.id)
        elif chat < 0:
            topics = self.fake.chats[chat][1]
            topic = len(topics) + 1
            topics.add(topic)
            text = f"@{telegram.BOT_NAME} {text}" if named else text
        await self.fake.says(chat, text, user=int(user), topic=topic, reply_to=reply_to)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        asked = str(await self.fake.says(int(channel), line, user=int(user)))
        return lambda: next((seen.text for seen in self.said() if seen.reply_to == asked), None)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        before = len(self.fake.answers)
        await self.fake.clicks(int(seen.id), label, user=int(user))
        return lambda: next(iter(self.fake.answers[before:]), None)

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(int(seen.id), emoji, user=int(user))


class DiscordStand(WireStand[discord.FakeDiscord]):
    """Discord with a direct conversation and a server channel, in which reply chains are the threads."""

    platform = "discord"
    ada, bob, stranger = discord_world.ADA, "700000000000000002", "700000000000000009"

    def __init__(self, clock: ManualClock | None = None) -> None:
        clock = clock or ManualClock()
        super().__init__(discord.FakeDiscord(clock), clock)
        self.guild, self.harbour = self.fake.add_server()
        self.direct, self.strange = self.fake.direct(), self.fake.direct(self.stranger)

    def account(self) -> Mapping[str, object]:
        return {"token": discord.TOKEN, "api_base": self.fake.api_base, "threading": "reply"}

    async def stop(self) -> None:
        await super().stop()
        self.fake.gateway.forget()

    def hears(self, adapter: ChatAdapter) -> bool:
        assert isinstance(adapter, DiscordAdapter)
        return adapter.connected.is_set() and bool(self.fake.world.commands)

    def shown(self) -> list[Seen]:
        rooms = self.fake.world.rooms
        return [
            Seen(one.id, rooms[one.channel].parent or one.channel, one.channel, one.text,
                 tuple(label for label, _ in one.buttons), one.file, one.reply_to, one.text.endswith(PREVIEW))
            for one in self.fake.world.messages
            if one.user == discord_world.BOT and not one.hidden
        ]  # fmt: skip

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        if answers is not None:
            await self.fake.says(answers.place, text, user=user, reply_to=answers.id, file=file)
            return
        names = named and self.fake.world.rooms[channel].guild
        await self.fake.says(channel, f"<@{discord_world.BOT}> {text}" if names else text, user=user, file=file)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        name, _, text = line.removeprefix("/").partition(" ")
        heard = await self.fake.commands(channel, name, text, user=user)
        return lambda: heard.message.text if heard.message is not None else None

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        heard = await self.fake.clicks(seen.id, label, user=user)
        return lambda: heard.message.text if heard.message is not None else None

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.id, emoji, user=user)

    def loses(self, channel: str) -> None:
        del self.fake.world.rooms[channel]


class SlackStand(WireStand[slack.FakeSlack]):
    """Slack with a direct conversation and a channel with threads. Responses to commands are visible only to the
    sender.
    """

    platform = "slack"
    ada, bob, stranger = "UADA", "UBEA", "USTRANGER"
    direct, strange, harbour = "D00000001", "D00000009", "C00000001"

    def __init__(self) -> None:
        super().__init__(slack.FakeSlack())
        everybody = [self.ada, self.bob, self.stranger, slack_methods.BOT]
        for room, user in ((self.direct, self.ada), (self.strange, self.stranger)):
            self.fake.add_room(Room(room, "", "im", [user, slack_methods.BOT]))
        self.fake.add_room(Room(self.harbour, "harbour", "channel", everybody))

    def account(self) -> Mapping[str, object]:
        return {"bot_token": slack.BOT_TOKEN, "app_token": slack.APP_TOKEN, "api_base": f"{self.fake.address}/api/"}

    async def stop(self) -> None:
        await super().stop()
        self.fake.forget()

    def shown(self) -> list[Seen]:
        return [
            Seen(one.ts, one.channel, one.thread_ts, self.fake.shown(one), tuple(label for label, _ in one.buttons),
                 self._file(one.file_ids), one.thread_ts,
                 one.streaming or one.text.endswith(PREVIEW))
            for one in self.fake.messages
            if one.user == slack_methods.BOT and not one.only_for
        ]  # fmt: skip

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        is_direct = channel in (self.direct, self.strange)
        thread = answers.place or answers.id if answers is not None and not is_direct else ""
        if file is not None:
            await self.fake.sends_file(channel, *file, text=text, thread_ts=thread)
            return
        names = named and not is_direct and answers is None
        await self.fake.says(channel, f"<@{slack_methods.BOT}> {text}" if names else text, user=user, thread_ts=thread)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        before = len(self.fake.answers)
        await self.fake.slashes(channel, "/shoal", line.removeprefix("/"), user=user)
        return self._told(before)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        before = len(self.fake.answers)
        await self.fake.clicks(seen.id, label, user=user)
        return self._told(before)

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.id, emoji, user=user)

    def _told(self, before: int) -> Look:
        return lambda: next((shown_text(str(one["text"])) for one in self.fake.answers[before:]), None)

    def loses(self, channel: str) -> None:
        self.fake.rooms[channel].is_archived = True

    def _file(self, files: tuple[str, ...]) -> File | None:
        return (str(self.fake.files[files[0]]["name"]), self.fake.contents[files[0]]) if files else None


class MatrixStand(WireStand[matrix.FakeMatrix]):
    """Matrix with a room for ada and the bot, and a room with both people, in which a message opens a thread."""

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
        assert isinstance(adapter, MatrixAdapter)
        return adapter.connected.is_set() and self.fake.syncs > 0

    def shown(self) -> list[Seen]:
        said = [one for room in self.fake.world.rooms for one in self.fake.said(room)]
        return [
            Seen(one.id, one.room, one.thread, one.text, (), one.file, one.reply_to, one.text.endswith(PREVIEW))
            for one in said
        ]

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        thread = answers.place if answers is not None else ""
        if file is not None:
            await self.fake.sends_file(channel, *file, user=user, thread=thread)
        names = named and channel == self.harbour and answers is None
        await self.fake.says(channel, f"{matrix_world.BOT}: {text}" if names else text, user=user, thread=thread)

    async def asks(self, line: str, channel: str, user: str) -> Look:
        before = len(self.said())
        await self.says(line, channel, user, named=False)
        return lambda: next((seen.text for seen in self.said()[before:]), None)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        raise NotImplementedError("Matrix has no buttons")

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.channel, seen.id, emoji, user=user)


class TeamsStand(WireStand[teams.FakeTeams]):
    """Teams with a personal chat and a channel, in which people reply to posts."""

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
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        if file is not None:
            await self.fake.sends_file(channel, *file)
        root = answers.place.partition(";messageid=")[2] if answers is not None else ""
        names = named and channel == self.harbour and not root
        await self.fake.says(channel, text, user=user.removeprefix("aad-"), root=root, named=names)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        answer = await self.fake.clicks(seen.id, label, user=user.removeprefix("aad-"))
        return answer.body.decode

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.channel, seen.id, emoji, user=user.removeprefix("aad-"))


class GoogleChatStand(WireStand[google_chat.FakeGoogleChat]):
    """Google Chat with direct messages and a space with threads. The service account key is written to `files`."""

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
        return adapter.connected.is_set() and self.fake.granted > 0

    def shown(self) -> list[Seen]:
        said = [one for space in self.fake.spaces for one in self.fake.said(space)]
        return [
            Seen(one.name, one.space, one.thread, one.shown, tuple(label for label, _ in one.buttons),
                 is_preview=one.text.endswith(PREVIEW))
            for one in said
        ]  # fmt: skip

    async def says(
        self, text: str, channel: str, user: str, answers: Seen | None = None, file: File | None = None, *,
        named: bool = True,
    ) -> None:  # fmt: skip
        if file is not None:
            await self.fake.sends_file(channel, *file)
        thread = answers.place if answers is not None else ""
        await self.fake.says(channel, text, user=user, thread=thread, named=named and answers is None)

    async def clicks(self, seen: Seen, label: str, user: str) -> Look:
        before = len(self.said())
        await self.fake.clicks(seen.id, label, user=user)
        return lambda: next((seen.text for seen in self.said()[before:]), None)

    async def reacts(self, seen: Seen, emoji: str, user: str) -> None:
        await self.fake.reacts(seen.id, emoji, user=user)


def stand_of(platform: str, files: Path) -> Stand:
    """Return the stand for a platform. `files` is a folder for files that people send and for Google Chat's key."""
    made: dict[str, Callable[[], Stand]] = {
        "fake": lambda: FakeStand(files), "telegram": TelegramStand, "discord": DiscordStand, "slack": SlackStand,
        "matrix": MatrixStand, "teams": TeamsStand, "google_chat": lambda: GoogleChatStand(files),
    }  # fmt: skip
    return made[platform]()
