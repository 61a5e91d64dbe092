"""The chat contract for adapters without an external platform: the in-memory chat, the terminal and the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shoal.kernel.errors import PlatformError
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id
from shoal.kernel.ports import ChatAdapter
from shoal.kernel.posts import OutboundPost
from shoal.platforms.local import TerminalAdapter, WebAdapter
from shoal.testing.chat import FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat import ChatContract
from shoal.testing.contracts.chat_peer import Counterpart, Lack, Shown
from shoal.testing.platforms.fake import FakePlatform

PLAIN = str.maketrans("", "", "*")


class Quiet(Counterpart[ChatAdapter, FakePlatform]):
    """Counterpart without a platform. People write to the adapter directly."""

    lacks = frozenset[Lack]({"people", "channels", "connection", "files_in", "troubles", "weather"})

    def __init__(self, home: Path, adapter: ChatAdapter) -> None:
        super().__init__(home, FakePlatform(), ManualClock())
        self.adapter = adapter
        self.thread = make_thread_id(adapter.platform, "harbour", "1")
        self.seen: list[Shown] = []

    def shown(self) -> Sequence[Shown]:
        return self.seen

    def show(self, post: OutboundPost) -> None:
        file = (post.file.name, post.file.read_bytes()) if post.file is not None else None
        shown = Shown(post.key, post.markdown.translate(PLAIN), tuple(b.label for b in post.buttons), file)
        self.seen = [old for old in self.seen if old.id != post.key] + [shown]


class InMemory(Quiet):
    """Counterpart for FakeChat. Simulates failures through `FakeChat.troubles`."""

    lacks = frozenset[Lack]({"people", "connection", "files_in", "weather"})

    def __init__(self, home: Path, chat: FakeChat) -> None:
        super().__init__(home, chat)
        self._chat = chat

    def shown(self) -> Sequence[Shown]:
        return [
            Shown(
                posted.id,
                posted.markdown.translate(PLAIN),
                tuple(button.label for button in posted.buttons),
                (posted.post.file.name, posted.post.file.read_bytes()) if posted.post.file else None,
                posted.post.reply_to,
                "voice" if posted.post.kind == "voice" else "",
            )
            for posted in self._chat.posted
        ]

    def refuse(self, retry_after_seconds: float) -> None:
        self._chat.troubles.append(PlatformError("slow down", retry_after_seconds=retry_after_seconds))

    def lose_answer(self) -> None:
        self._chat.troubles.append(PlatformError("lost", outcome_unknown=True))


class TestFakeChat(ChatContract):
    """The contract over FakeChat, which Shoal ships to extension authors."""

    @pytest.fixture
    def peer(self, tmp_path: Path) -> InMemory:
        return InMemory(tmp_path, FakeChat())


class TestTerminal(ChatContract):
    @pytest.fixture
    def peer(self, tmp_path: Path) -> Iterator[Quiet]:
        adapter = TerminalAdapter()
        peer = Quiet(tmp_path, adapter)
        with adapter.attach(peer.thread, peer.show):
            yield peer


class Page(Quiet):
    """Counterpart for the web page, which shows the journal."""

    lacks = frozenset[Lack]({"people", "connection", "files_in", "troubles", "weather", "view"})


class TestWeb(ChatContract):
    """The contract over the page's adapter, which only delivers files."""

    @pytest.fixture
    def peer(self, tmp_path: Path) -> Page:
        return Page(tmp_path, WebAdapter(Home(tmp_path)))


class TestWebFiles:
    async def test_a_file_is_stored_with_the_thread(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "home")
        thread = make_thread_id("web", "lobby", "1")
        file = tmp_path / "a.txt"
        file.write_text("a")
        await WebAdapter(home).post(OutboundPost(thread, "k", "", "file", file=file))
        (stored,) = home.attachments(thread).iterdir()
        assert stored.read_text() == "a"
