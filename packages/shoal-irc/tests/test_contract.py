"""Runs Shoal's contract suite for chat adapters against the IRC adapter."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from irc_server import ACCOUNT, PASSWORD, PEOPLE, FakeIrc
from shoal_irc.adapter import IrcAdapter
from shoal_irc.connection import IrcSettings
from shoal_irc.wire import plain

from shoal.kernel.ids import make_thread_id
from shoal.kernel.secret import Secret
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Counterpart, Inbox, Kind, Lack, Shown, Who, serving


class Irc(Counterpart[IrcAdapter, FakeIrc]):
    """A counterpart for a private conversation with ada, whose account the server confirms."""

    lacks = frozenset[Lack](
        {"threads", "answers", "replies", "files_in", "edits", "deletions", "reactions", "polls", "greeting"}
    )
    kinds = frozenset[Kind]({"unknown"})
    stranger = PEOPLE["mallory"].mask

    def __init__(self, home: Path, server: FakeIrc, **settings: object) -> None:
        super().__init__(home, server, ManualClock())
        own = IrcSettings(
            server="127.0.0.1", port=server.port, tls=False, user=ACCOUNT, password=Secret("value", PASSWORD)
        )
        own = msgspec.structs.replace(own, **settings)
        self.adapter = IrcAdapter("irc", own, self.home, self.kept, self.clock)
        self.thread = make_thread_id("irc", PEOPLE["ada"].account, "0")
        self.other = make_thread_id("irc", "#harbour", "0")
        self.kept.values["nicks:irc", PEOPLE["ada"].account] = "ada"

    def shown(self) -> Sequence[Shown]:
        shown: list[Shown] = []
        for message in self.server.said:
            message_id, _, number = message.token.partition(".")
            if message.target == "ada" and number == "0":
                shown.append(Shown(message_id, plain(message.text)))
            elif message.target == "ada":
                shown[-1].text += f"\n{plain(message.text)}"
        return shown

    async def says(self, text: str, *, author: Who = "ada") -> str:
        return await self._writes("", text, author)

    async def in_channel(
        self, text: str, *, named: bool = False, inside: str = "", answers: str = "", author: Who = "ada"
    ) -> str:
        return await self._writes("#harbour", f"shoal: {text}" if named else text, author)

    async def sends(self, kind: Kind) -> None:
        await self._writes("", "\x01DCC SEND tides.txt 2130706433 5000 12\x01", "ada")

    async def _writes(self, channel: str, text: str, author: Who) -> str:
        who = {"ada": "ada", "bot": "bot", "itself": "itself", "stranger": "mallory"}[author]
        if author == "itself":
            await self.adapter.connected.wait()
        return await self.server.says(channel or self.server.nick or "shoal", text, who)


@pytest.fixture
async def peer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Irc]:
    """Start a server and an adapter.

    The adapter always runs, because IRC sends posts over the connection that receives messages.
    """
    server = FakeIrc()
    await server.start()
    made = Irc(tmp_path, server)
    if "inbox" in request.fixturenames:
        yield made
    else:
        async with serving(made.adapter, Inbox()):
            await made.adapter.connected.wait()
            yield made
    await server.stop()


class TestIrc(ChatContract): ...
