"""The chat adapter's contract: what `domain.ports.ChatAdapter` promises, over every platform and its counterpart.

class TestMine(ChatContract):
    @pytest.fixture
    async def peer(self): ...  # a fresh Counterpart, stopped after the test

A counterpart is the platform's other side: its people, and its troubles. What a platform cannot do by its nature its
counterpart says in `lacks`, and those tests are skipped.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec
import pytest

from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, ThreadId, parse_thread_id, thread_address
from shoal.domain.messages import Inbound, Prompt, Receipt
from shoal.domain.permissions import Asker
from shoal.domain.ports import Button, ChatAdapter, OutboundPost

WAIT_SECONDS = 20.0
"""How long a test waits for what has to come; it does not depend on it."""

Lack: TypeAlias = Literal["people", "troubles", "connection", "files_in", "view"]
"""`people`: messages come in by another way than the adapter. `troubles`: its posts cannot fail. `connection`: it has
none that could drop. `files_in`: people cannot send files. `view`: what is posted is seen elsewhere."""


class Shown(msgspec.Struct):
    """A message as people see it now: `text` without markup, `file` as name and content."""

    id: str
    text: str
    buttons: tuple[str, ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""


class Counterpart(Protocol):
    """The other side of a platform, for one test."""

    adapter: ChatAdapter
    clock: Clock
    lacks: frozenset[Lack]
    thread: ThreadId
    """A conversation that exists, in which ada may speak."""
    stranger: str
    """The id of somebody the inbox does not admit."""

    def shown(self) -> Sequence[Shown]:
        """What stands in the conversation, oldest first."""
        ...

    async def says(self, text: str, *, author: Literal["ada", "bot", "itself", "stranger"] = "ada") -> str:
        """Somebody writes in the conversation; returns the platform's message id."""
        ...

    async def sends_file(self, name: str, content: bytes) -> None:
        """Ada sends a file without words."""
        ...

    async def clicks(self, message_id: str, label: str) -> None:
        """Ada presses a button."""
        ...

    async def redeliver(self) -> None:
        """The platform delivers its last event again."""
        ...

    def refuse(self, retry_after_seconds: float) -> None:
        """The next call that posts is refused for so long."""
        ...

    def lose_answer(self) -> None:
        """The next post is made, and the connection breaks before the answer."""
        ...

    def break_connection(self) -> None:
        """Drop what is connected now, once."""
        ...

    def refuse_token(self, refused: bool) -> None:
        """Whether the platform takes the adapter's credential."""
        ...

    async def pass_time(self) -> None:
        """Let the adapter's next pause pass, without waiting for it."""
        ...


class Inbox:
    """An `InboxPort` that writes down what comes in."""

    def __init__(self) -> None:
        self.came: list[Inbound] = []
        self.decided: list[tuple[ApprovalId, bool, Asker, Scope]] = []
        self.cleared: list[ThreadId] = []
        self.answer: Literal["accepted", "busy"] = "accepted"
        self.strangers: set[str] = set()
        self._changed = asyncio.Condition()

    async def send(self, message: Inbound) -> Receipt:
        """Note it; the same key twice is a duplicate."""
        keys = {found.key for found in self.came if isinstance(found, Prompt)}
        if isinstance(message, Prompt) and message.key in keys:
            return Receipt("duplicate")
        if self.answer == "accepted":
            self.came.append(message)
        await self._tell()
        return Receipt(self.answer if isinstance(message, Prompt) else "delivered")

    async def admits(self, message: Prompt) -> bool:
        """Whether it is of nobody in `strangers`."""
        return message.author.id not in self.strangers

    async def decide(self, approval: ApprovalId, allow: bool, by: Asker, scope: Scope = "once") -> str:
        """Note it."""
        self.decided.append((approval, allow, by, scope))
        await self._tell()
        return "allow" if allow else "deny"

    async def clear(self, thread: ThreadId, by: str) -> None:
        """Note it."""
        self.cleared.append(thread)
        await self._tell()

    async def status(self, thread: ThreadId) -> str:
        """Always the same."""
        return "Idle."

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; what it looks at are this inbox's notes."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def prompts(self, count: int) -> list[Prompt]:
        """Wait for so many prompts, and return them."""
        await self.until(lambda: len(self.said()) >= count)
        return self.said()

    def said(self) -> list[Prompt]:
        """The prompts that came."""
        return [message for message in self.came if isinstance(message, Prompt)]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serving(adapter: ChatAdapter, inbox: Inbox) -> AsyncGenerator[asyncio.Task[None]]:
    """Run an adapter while inside; leaving cancels it and waits until it has ended."""
    task = asyncio.ensure_future(adapter.run(inbox))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() or task.exception() is None


class ChatContract:
    """Subclass it with a `peer` fixture."""

    @pytest.fixture
    async def inbox(self) -> Inbox:
        """Where what people do arrives."""
        return Inbox()

    def post(self, peer: Counterpart, markdown: str, key: str = "k1", **fields: object) -> OutboundPost:
        """A post to the conversation."""
        plain = OutboundPost(peer.thread, key, markdown)
        return msgspec.structs.replace(plain, **fields)

    # ---- life ----

    async def test_it_stops_when_cancelled_and_starts_again(self, peer: Counterpart, inbox: Inbox) -> None:
        for _ in range(2):
            async with serving(peer.adapter, inbox) as task:
                await asyncio.sleep(0)
                assert not task.done()

    async def test_its_thread_ids_begin_with_its_platform(self, peer: Counterpart) -> None:
        assert parse_thread_id(peer.thread) == peer.thread
        assert thread_address(peer.thread).platform == peer.adapter.platform

    async def test_its_limits_leave_room_for_text(self, peer: Counterpart) -> None:
        limits = peer.adapter.limits
        assert limits.text_chars_max >= 64
        assert all(window.posts > 0 and window.seconds > 0 for window in limits.windows)

    # ---- inbound ----

    async def test_what_a_person_writes_becomes_a_prompt(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            message_id = await peer.says("What is the tide? 潮")
            (prompt,) = await inbox.prompts(1)
        assert prompt.text == "What is the tide? 潮"
        assert prompt.thread == peer.thread
        assert prompt.author.id
        assert not prompt.author.is_bot
        assert prompt.message_id == message_id
        assert prompt.at.tzinfo is not None

    async def test_prompts_keep_their_order_and_have_keys_of_their_own(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            for number in range(5):
                await peer.says(f"number {number}")
            prompts = await inbox.prompts(5)
        assert [prompt.text for prompt in prompts] == [f"number {number}" for number in range(5)]
        assert len({prompt.key for prompt in prompts}) == 5

    async def test_a_message_delivered_twice_has_the_same_key(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            await peer.says("once")
            await inbox.prompts(1)
            await peer.redeliver()
            await peer.says("after")
            prompts = await inbox.prompts(2)
        assert [prompt.text for prompt in prompts] == ["once", "after"]

    @pytest.mark.parametrize("author", ["itself", "bot", "stranger"])
    async def test_it_ignores_who_may_not_speak(
        self, peer: Counterpart, inbox: Inbox, author: Literal["itself", "bot", "stranger"]
    ) -> None:
        needs(peer, "people")
        inbox.strangers.add(peer.stranger)
        async with serving(peer.adapter, inbox):
            await peer.says("/status", author=author)
            await peer.says("not for you", author=author)
            await peer.says("for you")
            prompts = await inbox.prompts(1)
        assert [prompt.text for prompt in prompts] == ["for you"]
        assert "view" in peer.lacks or "Idle." not in [shown.text for shown in peer.shown()]

    async def test_a_file_comes_in_with_its_name(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people", "files_in")
        async with serving(peer.adapter, inbox):
            await peer.sends_file("tide table.txt", b"high at noon\n")
            (prompt,) = await inbox.prompts(1)
        (file,) = prompt.attachments
        assert file.name == "tide table.txt"
        assert file.error == ""
        assert await asyncio.to_thread(Path(file.path).read_bytes) == b"high at noon\n"

    async def test_stop_is_an_abort_and_no_prompt(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people")
        async with serving(peer.adapter, inbox):
            await peer.says("/stop")
            await inbox.until(lambda: bool(inbox.came))
        assert [type(message).__name__ for message in inbox.came] == ["Abort"]

    # ---- outbound ----

    async def test_a_post_is_seen_and_has_an_id(self, peer: Counterpart) -> None:
        message_id = await peer.adapter.post(self.post(peer, "Low tide is at **six**."))
        assert message_id
        needs(peer, "view")
        assert [(shown.id, shown.text) for shown in peer.shown()] == [(message_id, "Low tide is at six.")]

    async def test_an_edit_changes_the_message(self, peer: Counterpart) -> None:
        if not peer.adapter.limits.can_edit:
            pytest.skip("messages cannot be edited there")
        message_id = await peer.adapter.post(self.post(peer, "one"))
        await peer.adapter.edit(peer.thread, message_id, "two")
        await peer.adapter.edit(peer.thread, message_id, "two")
        needs(peer, "view")
        assert [shown.text for shown in peer.shown()] == ["two"]

    async def test_typing_is_harmless(self, peer: Counterpart) -> None:
        await peer.adapter.typing(peer.thread, "thinking")
        await peer.adapter.typing(peer.thread, "")

    async def test_the_longest_text_goes_in_one_post(self, peer: Counterpart) -> None:
        text = "x" * min(peer.adapter.limits.text_chars_max, 100_000)
        await peer.adapter.post(self.post(peer, text))
        needs(peer, "view")
        assert [shown.text for shown in peer.shown()] == [text]

    @pytest.mark.parametrize("text", ["**open", "`", "[a](b", "_*~[]()#+-=|{}.!\\", "漢字 🦈 <b>&", "# T\n- [x] a | b"])
    async def test_broken_markup_is_posted_all_the_same(self, peer: Counterpart, text: str) -> None:
        assert await peer.adapter.post(self.post(peer, text))

    async def test_a_reply_names_what_it_answers(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people", "view")
        async with serving(peer.adapter, inbox):
            asked = await peer.says("well?")
            await inbox.prompts(1)
        await peer.adapter.post(self.post(peer, "well.", reply_to=asked))
        assert peer.shown()[-1].reply_to == asked

    async def test_a_file_goes_out_whole(self, peer: Counterpart, tmp_path: Path) -> None:
        if not peer.adapter.limits.can_upload:
            pytest.skip("files cannot be sent there")
        file = tmp_path / "tides.bin"
        file.write_bytes(bytes(range(256)) * 40)
        assert await peer.adapter.post(self.post(peer, "The table.", kind="file", file=file))
        needs(peer, "view")
        assert peer.shown()[-1].file == ("tides.bin", file.read_bytes())

    async def test_a_file_that_is_gone_is_refused_for_good(self, peer: Counterpart, tmp_path: Path) -> None:
        if not peer.adapter.limits.can_upload or "troubles" in peer.lacks:
            pytest.skip("files cannot be missed there")
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(self.post(peer, "", kind="file", file=tmp_path / "gone"))
        assert caught.value.permanent

    async def test_a_click_decides(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people", "view")
        if not peer.adapter.limits.has_buttons:
            pytest.skip("there are no buttons")
        approval = "01" + "K" * 24
        buttons = (Button("Allow", f"allow:{approval}"), Button("Deny", f"deny:{approval}"))
        async with serving(peer.adapter, inbox):
            message_id = await peer.adapter.post(self.post(peer, "May I?", kind="card", buttons=buttons))
            assert peer.shown()[-1].buttons == ("Allow", "Deny")
            await peer.clicks(message_id, "Deny")
            await inbox.until(lambda: bool(inbox.decided))
        ((decided, allow, by, scope),) = inbox.decided
        assert (decided, allow, scope) == (approval, False, "once")
        assert by.platform == peer.adapter.platform
        assert by.user

    # ---- troubles ----

    async def test_a_refusal_says_how_long_to_wait(self, peer: Counterpart) -> None:
        needs(peer, "troubles")
        peer.refuse(7)
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(self.post(peer, "later"))
        assert caught.value.retry_after_seconds == pytest.approx(7, abs=1)
        assert not caught.value.permanent
        assert not caught.value.outcome_unknown
        assert not peer.shown()

    async def test_a_lost_answer_is_told_and_the_key_makes_a_repeat_harmless(self, peer: Counterpart) -> None:
        needs(peer, "troubles")
        peer.lose_answer()
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(self.post(peer, "maybe"))
        assert caught.value.outcome_unknown
        await peer.adapter.post(self.post(peer, "maybe"))
        assert len(peer.shown()) == (1 if peer.adapter.limits.idempotent_posts else 2)

    async def test_after_a_drop_it_receives_again(self, peer: Counterpart, inbox: Inbox) -> None:
        needs(peer, "people", "connection")
        async with serving(peer.adapter, inbox):
            await peer.says("before")
            await inbox.prompts(1)
            peer.break_connection()
            await peer.says("after")
            await asyncio.wait_for(self._in_time(peer, inbox, 2), WAIT_SECONDS)
        assert [prompt.text for prompt in inbox.said()] == ["before", "after"]

    async def test_a_refused_token_is_told_and_tried_again(
        self, peer: Counterpart, inbox: Inbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        needs(peer, "people", "connection")
        peer.refuse_token(True)
        async with serving(peer.adapter, inbox) as task:
            await peer.pass_time()
            assert not task.done()
            assert any("token" in record.getMessage() for record in caplog.records)
            peer.refuse_token(False)
            await peer.says("now")
            await asyncio.wait_for(self._in_time(peer, inbox, 1), WAIT_SECONDS)

    async def _in_time(self, peer: Counterpart, inbox: Inbox, count: int) -> None:
        while len(inbox.said()) < count:
            passing = asyncio.ensure_future(peer.pass_time())
            coming = asyncio.ensure_future(inbox.prompts(count))
            await asyncio.wait({passing, coming}, return_when=asyncio.FIRST_COMPLETED)
            for task in (passing, coming):
                task.cancel()
            await asyncio.wait({passing, coming})

    # ---- history ----

    async def test_history_can_be_asked_for(self, peer: Counterpart) -> None:
        assert len([prompt async for prompt in peer.adapter.history(peer.thread, None, 10)]) <= 10


def needs(peer: Counterpart, *features: Lack) -> None:
    """Skip the test where the platform lacks one of these."""
    missing = [feature for feature in features if feature in peer.lacks]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} there")
