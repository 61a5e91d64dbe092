"""The Teams counterpart for the contract suite: a fake bot service and the people who write in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.secret import Secret
from shoal.platforms.teams.adapter import TeamsAdapter
from shoal.platforms.teams.settings import TeamsSettings
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Counterpart, Kind, Lack, Refers, Route, Shown, Who
from shoal.testing.platforms.teams import BOT, PASSWORD, FakeTeams, Json

DIRECT, GROUP, CHANNEL = "a:1ada", "19:crew@thread.v2", "19:harbour@thread.tacv2"


class Teams(Counterpart[TeamsAdapter, FakeTeams]):
    """Counterpart with Ada in a direct chat, a group chat and a channel."""

    lacks: frozenset[Lack] = frozenset({"polls", "answers", "bots_heard"})
    mixes = True
    place = CHANNEL
    stranger = "aad-mallory"
    refers = frozenset[Refers]({"quote", "own"})
    kinds = frozenset[Kind]({"unknown"})
    routes = frozenset[Route]({"before"})

    def __init__(self, home: Path, server: FakeTeams, clock: ManualClock) -> None:
        super().__init__(home, server, clock)
        self.adapter = self.make()
        self.thread = make_thread_id("teams", DIRECT, "0")
        self.other = make_thread_id("teams", GROUP, "0")

    def make(self, **more: object) -> TeamsAdapter:
        values = {**self.server.settings(), "app_password": Secret("value", PASSWORD), **more}
        settings = TeamsSettings(**values)  # pyrefly: ignore[bad-argument-type]
        adapter = TeamsAdapter("teams", settings, self.home, self.kept, self.clock)
        self.server.deliver = adapter.receive
        return adapter

    async def ready(self) -> None:
        await self.adapter.connected.wait()
        while not (self.server.granted or self.server.token_refused):
            await self.clock.advance(31)

    def shown(self) -> Sequence[Shown]:
        return [
            Shown(
                message.id, message.text, tuple(label for label, _ in message.buttons), message.file, message.reply_to
            )
            for message in self.server.said(DIRECT)
        ]

    async def says(self, text: str, *, author: Who = "ada") -> str:
        await self.ready()
        return await self.server.says(DIRECT, text, user="mallory" if author == "stranger" else author)

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        await self.ready()
        user = "mallory" if author == "stranger" else author
        root = inside if self.place == CHANNEL else ""
        more: dict[str, Json] = {"replyToId": answers} if answers else {}
        return await self.server.says(self.place, text, user=user, root=root, named=named, **more)

    async def changes(self, message_id: str, text: str) -> None:
        await self.server.changes(DIRECT, message_id, text)

    async def deletes(self, message_id: str) -> None:
        await self.server.deletes(DIRECT, message_id)

    async def reacts(self, message_id: str, emoji: str) -> None:
        await self.server.reacts(DIRECT, message_id, f"{ord(emoji):04x}_named")

    async def sends_file(self, name: str, content: bytes) -> None:
        await self.ready()
        await self.server.sends_file(DIRECT, name, content)

    async def brings(self, route: Route, name: str, content: bytes) -> None:
        await self.ready()
        await self.server.sends_file(self.place, name, content, user="mallory")
        await self.in_channel("what is it?", named=True)

    async def refers_to(self, kind: Refers, said: str, text: str) -> None:
        await self.ready()
        await self._quotes("29:mallory", "Mallory", "1", said, text)

    async def mixed(self, text: str, message_id: str = "") -> None:
        await self.ready()
        passed_on: Json = [{"contentType": "forwardedMessageReference", "content": "{}"}]
        if message_id:
            await self.server.changes(DIRECT, message_id, text, attachments=passed_on)
        else:
            await self.server.says(DIRECT, text, attachments=passed_on)

    async def answers_bot(self, message_id: str, text: str) -> None:
        await self._quotes(BOT, "Shoal", message_id, "I owe you the harbour.", text)

    async def _quotes(self, author: str, name: str, message_id: str, said: str, text: str) -> None:
        """Teams clients put the quotation above the reply in the HTML. In the plain text, nothing separates the two."""
        quoted = f'<strong itemprop="mri" itemid="{author}">{name}</strong><p itemprop="preview">{said}</p>'
        kind = f'itemscope itemtype="http://schema.skype.com/Reply" itemid="{message_id}"'
        page: Json = {
            "contentType": "text/html",
            "content": f"<blockquote {kind}>{quoted}</blockquote>\n<p>{text}</p>",
        }
        await self.server.says(DIRECT, f"{name}{said}{text}", attachments=[page])

    async def sends(self, kind: Kind) -> None:
        card: Json = {"contentType": "application/vnd.example.hologram", "content": {}}
        await self.server.says(DIRECT, "", attachments=[card])

    async def adds(self, by: Literal["ada", "stranger"] = "ada") -> None:
        await self.ready()
        await self.server.adds(GROUP, user="mallory" if by == "stranger" else by)

    def greeted(self) -> Sequence[str]:
        return [message.text for message in self.server.said(GROUP)]

    async def names_by_edit(self, message_id: str, text: str) -> None:
        root = message_id if self.place == CHANNEL else ""
        name = "<at>Shoal</at>"
        entity: Json = {"type": "mention", "text": name, "mentioned": {"id": BOT, "name": "Shoal"}}
        await self.server.changes(self.place, message_id, f"{name} {text}", root=root, entities=[entity])

    async def bars(self, place: Literal["thread", "chat"], *, gone: bool = False) -> ThreadId:
        await self.ready()
        if place == "chat":
            self.server.barred[GROUP] = "BotNotInConversationRoster"
            return make_thread_id("teams", GROUP, "0")
        await self.server.says(CHANNEL, "hello", named=True)
        self.server.barred[f"{CHANNEL};messageid=17"] = "MessageWritesBlocked"
        return make_thread_id("teams", CHANNEL, "17")

    def around(self) -> Sequence[str]:
        return [message.text for message in self.server.messages if message.conversation == CHANNEL]

    async def clicks(self, message_id: str, label: str) -> None:
        await self.server.clicks(message_id, label)
