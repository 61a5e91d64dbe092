"""The Slack counterpart for the contract suite: a fake workspace and the people who write in it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from shoal.kernel.ids import ThreadId, make_thread_id, thread_address
from shoal.kernel.secret import Secret
from shoal.kernel.webhooks import HttpAnswer
from shoal.platforms.slack.adapter import SlackAdapter
from shoal.platforms.slack.settings import SlackSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Counterpart, Kind, Lack, Refers, Route, Shown, Who
from shoal.testing.platforms.slack import APP_TOKEN, BOT_TOKEN, SIGNING_SECRET, FakeSlack
from shoal.testing.platforms.slack_methods import BOT
from shoal.testing.platforms.slack_wire import Room, Sent
from shoal.testing.platforms.wire import Given, Json

DIRECT = "D00000001"
CHANNEL = "C00000001"
SECRET_ROOM = "C00000002"


def workspace() -> FakeSlack:
    server = FakeSlack()
    server.add_room(Room(DIRECT, "", "im", ["UADA", BOT]))
    server.add_room(Room(CHANNEL, "harbour", "channel", ["UADA", "UBEA", "USTRANGER", "UOTHERBOT", BOT]))
    server.add_room(Room(SECRET_ROOM, "vault", "private", ["UADA", "UBEA", BOT]))
    return server


class Slack(Counterpart[SlackAdapter, FakeSlack]):
    """Counterpart in a direct conversation with Ada or in a channel thread."""

    stranger = "USTRANGER"
    refers = frozenset[Refers]({"quote", "forward"})
    kinds = frozenset[Kind]({"unknown"})
    routes = frozenset[Route]({"before"})

    def __init__(self, home: Path, server: FakeSlack, mode: Literal["socket", "http"] = "socket") -> None:
        super().__init__(home, server, ManualClock())
        self.mode: Literal["socket", "http"] = mode
        lacks: set[Lack] = {"replies", "answers"} if mode == "socket" else {"replies", "answers", "connection", "polls"}
        self.lacks = frozenset[Lack](lacks)
        self.channel, self.root = DIRECT, ""
        self.adapter = self.make()
        self.thread = make_thread_id("slack", DIRECT, "0")
        root = server.keep(Sent(server.stamp(), CHANNEL, "UADA", "the moon"))
        self.other = make_thread_id("slack", CHANNEL, root.ts)
        if mode == "http":
            server.deliver = self._called

    async def move_to_thread(self) -> None:
        root = self.server.keep(Sent(self.server.stamp(), CHANNEL, "UADA", "the tides"))
        self.channel, self.root = CHANNEL, root.ts
        self.thread = make_thread_id("slack", CHANNEL, root.ts)
        await self.kept.put("subscribed:slack", self.thread, "1")

    async def _called(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        await self.adapter.connected.wait()
        return await self.adapter.receive(headers, body)

    def make(self) -> SlackAdapter:
        settings = SlackSettings(
            bot_token=Secret("value", BOT_TOKEN), app_token=Secret("value", APP_TOKEN),
            signing_secret=Secret("value", SIGNING_SECRET),
            api_base=f"{self.server.address}/api/", mode=self.mode,
        )  # fmt: skip
        return SlackAdapter("slack", settings, self.home, self.kept, self.clock)

    def shown(self) -> Sequence[Shown]:
        return [self._shown(message) for message in self.server.said(self.channel) if not message.only_for]

    def _shown(self, message: Sent) -> Shown:
        labels = tuple(label for label, _ in message.buttons)
        files = [(str(self.server.files[file]["name"]), self.server.contents[file]) for file in message.file_ids]
        return Shown(message.ts, self.server.shown(message), labels, next(iter(files), None), album=tuple(files[1:]))

    def told(self) -> Sequence[str]:
        return [self.server.shown(message) for message in self.server.said(self.channel)]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        user = {"ada": "UADA", "bot": "UOTHERBOT", "itself": BOT, "stranger": "USTRANGER"}[author]
        return await self.server.says(self.channel, text, user=user, thread_ts=self.root)

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        user = {"ada": "UADA", "bot": "UOTHERBOT", "itself": BOT, "stranger": "USTRANGER"}[author]
        text = f"<@{BOT}> {text}" if named else text
        return await self.server.says(CHANNEL, text, user=user, thread_ts=inside)

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(message_id, text)

    async def deletes(self, message_id: str) -> None:
        await self.server.deletes(message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(message_id, emoji)

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.server.sends_file(self.channel, name, content, thread_ts=self.root)

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        await self.adapter.connected.wait()
        await self.server.sends_file(CHANNEL, name, content, user="USTRANGER")
        await self.in_channel("what is it?", named=True)

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        mark = {"is_share": True} if kind == "forward" else {"is_msg_unfurl": True}
        shared: Json = {**mark, "author_name": "Mallory", "author_id": "USTRANGER", "text": said, "ts": "1.1", "id": 1}
        link: Json = {"title": "Tides", "text": "of a page", "ts": 1512085950, "id": 2}
        more: Given = {"attachments": [shared, link]}
        await self.server.says(self.channel, text, thread_ts=self.root, more=more)

    async def names_by_edit(self, message_id: str, text: str) -> None:
        await self.server.changes(message_id, f"<@{BOT}> {text}")

    async def resembles(self, text: str) -> None:
        for name in (f"<@{BOT}9>", f"@{BOT}", f"<#{BOT}>"):
            await self.server.says(CHANNEL, f"{name} {text}")

    async def alerts(self, text: str) -> None:
        section: Json = {"type": "section", "text": {"type": "mrkdwn", "text": f"*{text}*"}}
        attachment: Json = {"color": "#f00", "blocks": [section], "fallback": "[no preview available]", "id": 1}
        await self.server.says(CHANNEL, "", user="UOTHERBOT", more={"attachments": [attachment]})

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        root = thread_address(self.other).thread
        if place == "chat":
            self.server.barred[CHANNEL] = "not_in_channel"
        elif gone:
            await self.server.deletes(root)
        else:
            self.server.barred[f"{CHANNEL}/{root}"] = "restricted_action_thread_locked"
        return self.other

    def around(self) -> Sequence[str]:
        return [self.server.shown(message) for message in self.server.said(CHANNEL) if not message.thread_ts]

    async def sends(self, kind: Kind) -> None:
        await self.server.says(self.channel, "", thread_ts=self.root, more={"blocks": [{"type": "hologram"}]})

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        await self.server.adds(SECRET_ROOM, user={"ada": "UADA", "stranger": "USTRANGER"}[by])

    def greeted(self) -> Sequence[str]:
        return [self.server.shown(message) for message in self.server.said(SECRET_ROOM)]

    async def clicks(self, message_id: str, label: str) -> None:
        await self.server.clicks(message_id, label)
