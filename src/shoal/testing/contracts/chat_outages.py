"""Contract tests for failures: lost calls and responses, refusals, outages, duplicates, and events out of order.

As in the app, a sender delivers posts from an outbox. The tests check the messages that people see at the end.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.delivery.sender import Sender
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, thread_address
from shoal.kernel.messages import Prompt
from shoal.kernel.records import NewPost
from shoal.store.outbox import Outbox
from shoal.store.sqlite import SqliteDriver
from shoal.testing.clock import in_time
from shoal.testing.contracts.chat_peer import WAIT_SECONDS, Inbox, Peer, needs, post, serving
from shoal.testing.database import empty_database
from shoal.testing.platforms.fake import Trouble

STORM: tuple[Trouble, ...] = (
    ("refuse", 5.0), ("cut", 0.0), ("fail", 0.0), ("refuse_all", 30.0), ("lose", 0.0), ("refuse", 2.0), ("lose", 0.0),
)  # fmt: skip
STEP_SECONDS = 0.2
"""Seconds by which the clock advances in each step. Small steps ensure that a slow call on a slow machine does not look
like a long delay to the platform.
"""
WORDS = "\n\n".join(f"**w{number}** 潮汐 [l{number}](https://example.com/{number})." for number in range(200))
ROWS = "\n".join(f"| pier {number} | {number} 米 |" for number in range(40))
CODE = "\n".join(f"print({number})  # コード <{number}>" for number in range(120))
LONG = f"# Tides\n\n{WORDS}\n\n| pier | depth |\n|---|---|\n{ROWS}\n\n```python\n{CODE}\n```\n\nThe end."


class Out:
    """An outbox and its running sender."""

    def __init__(self, peer: Peer, outbox: Outbox) -> None:
        self._peer = peer
        self._outbox = outbox

    async def put(self, *texts: str, thread: ThreadId | None = None) -> None:
        """Enqueue each text as a reply."""
        for text in texts:
            await self._outbox.put(NewPost(self._peer.clock.new_id(), thread or self._peer.thread, text))

    async def until_left(self, posts: int) -> None:
        """Advance the clock until exactly `posts` posts remain in the outbox. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._outbox.depth() != posts:
                await self._peer.clock.advance(STEP_SECONDS)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Advance the clock until `holds` returns True. The fake platform evaluates it after each call. Raises
        TimeoutError.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            await in_time(self._peer.clock, self._peer.server.until(holds), STEP_SECONDS)


@asynccontextmanager
async def delivering(peer: Peer, folder: Path) -> AsyncGenerator[Out]:
    """Yield an outbox whose posts are delivered by a sender while the block runs."""
    driver = SqliteDriver(empty_database(folder / "outbox.db"), synchronous="OFF")
    outbox = Outbox(driver, peer.clock)
    sending = asyncio.ensure_future(Sender(peer.adapter, outbox, peer.clock).run())
    try:
        yield Out(peer, outbox)
    finally:
        sending.cancel()
        await asyncio.wait({sending})
        await driver.close()


def numbers(peer: Peer) -> list[int]:
    """Return the numbers in the replies of the conversation, in the order in which people see them."""
    matches = [re.search(r"reply (\d+)", post.text) for post in peer.shown()]
    return [int(match[1]) for match in matches if match is not None]


class ChatOutages:
    """Tests of failures, mixed into `ChatContract`."""

    # ---- outbound ----

    async def test_a_refusal_says_how_long_to_wait(self, peer: Peer) -> None:
        needs(peer, "troubles")
        peer.refuse(7)
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(post(peer, "later"))
        assert caught.value.retry_after_seconds == pytest.approx(7, abs=1)
        assert not caught.value.permanent
        assert not caught.value.outcome_unknown
        assert not peer.shown()

    async def test_a_refused_edit_says_how_long_to_wait(self, peer: Peer) -> None:
        needs(peer, "weather")
        if not peer.adapter.limits.can_edit:
            pytest.skip("the platform does not let bots edit messages")
        message_id = await peer.adapter.post(post(peer, "one"))
        peer.refuse(7)
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.edit(peer.thread, message_id, "two")
        assert caught.value.retry_after_seconds == pytest.approx(7, abs=1)
        assert not caught.value.permanent
        assert [post.text for post in peer.shown()] == ["one"]

    async def test_a_lost_answer_is_reported_and_its_key_prevents_a_repeat(self, peer: Peer) -> None:
        needs(peer, "troubles")
        peer.lose_answer()
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.post(post(peer, "maybe"))
        assert caught.value.outcome_unknown
        await in_time(peer.clock, peer.adapter.post(post(peer, "maybe")))  # some adapters must reconnect first
        assert len(peer.shown()) == (1 if peer.adapter.limits.idempotent_posts else 2)

    async def test_a_lost_answer_to_a_new_thread_is_reported_and_its_key_prevents_a_repeat(self, peer: Peer) -> None:
        needs(peer, "troubles")
        channel = thread_address(peer.thread).channel
        peer.lose_answer()
        with pytest.raises(PlatformError) as caught:
            await peer.adapter.open_thread(channel, "maybe", "p:0")
        assert caught.value.outcome_unknown
        opened = await in_time(peer.clock, peer.adapter.open_thread(channel, "maybe", "p:0", maybe_posted=True))
        if peer.adapter.limits.idempotent_posts:
            assert await peer.adapter.open_thread(channel, "maybe", "p:0", maybe_posted=True) == opened
            assert len(peer.shown()) <= 1, "at most the opening post is in the conversation"
        else:
            assert len(peer.shown()) == 2

    async def test_after_failures_and_an_outage_every_reply_appears_in_order(self, peer: Peer, tmp_path: Path) -> None:
        """Replies appear once if the platform has idempotency keys. Otherwise, repeated replies are marked as
        repeats.
        """
        needs(peer, "weather")
        peer.server.troubles.extend(STORM)
        async with delivering(peer, tmp_path) as out:
            await out.put(*(f"reply {number}" for number in range(6)))
            await out.until_left(0)
            assert not peer.server.troubles
            await peer.server.stop()
            await out.put("reply 6", "reply 7")
            await peer.clock.advance(3600)
            await peer.server.start()
            await out.until_left(0)
        numbers_posted = numbers(peer)
        assert numbers_posted == sorted(numbers_posted)
        assert set(numbers_posted) == set(range(8))
        marked = sum("possible duplicate" in post.text for post in peer.shown())
        lost = sum(kind == "lose" for kind, _ in STORM)
        assert len(numbers_posted) - 8 <= (0 if peer.adapter.limits.idempotent_posts else min(marked, lost))

    async def test_an_answer_lost_before_a_long_outage_is_posted_once(self, peer: Peer, tmp_path: Path) -> None:
        """A platform with idempotency keys must not show the post twice, even after it has forgotten the key."""
        needs(peer, "weather")
        peer.server.troubles.append(("lose", 0.0))
        async with delivering(peer, tmp_path) as out:
            await out.put("reply 0")
            await out.until(lambda: not peer.server.troubles)
            await peer.server.stop()
            await peer.clock.advance(7200)
            await peer.server.start()
            await out.until_left(0)
        assert numbers(peer) == ([0] if peer.adapter.limits.idempotent_posts else [0, 0])

    async def test_a_slow_post_delays_only_its_own_thread(self, peer: Peer, tmp_path: Path) -> None:
        needs(peer, "weather")
        peer.server.troubles.append(("delay", 0.0))
        async with delivering(peer, tmp_path) as out:
            await out.put("reply 0")
            await out.until(lambda: numbers(peer) == [0])
            await out.put("reply 1")
            await out.put("elsewhere", thread=peer.other)
            await out.until_left(2)
            assert numbers(peer) == [0]
            await peer.server.let_go()
            await out.until_left(0)
        assert numbers(peer) == [0, 1]

    async def test_a_long_answer_arrives_complete(self, peer: Peer, tmp_path: Path) -> None:
        needs(peer, "view")
        async with delivering(peer, tmp_path) as out:
            await out.put(LONG)
            await out.until_left(0)
        assert len(LONG) > 10_000
        whole = "\n".join(post.text for post in peer.shown())
        assert [number for number in range(200) if f"w{number} 潮汐 " not in whole or f"l{number}" not in whole] == []
        assert [number for number in range(120) if f"print({number})  # コード <{number}>" not in whole] == []
        assert [number for number in range(40) if f"{number} 米" not in whole] == []
        assert whole.count("Tides") == whole.count("The end.") == 1

    # ---- inbound ----

    async def test_a_duplicate_delivery_is_ignored(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "weather")
        async with serving(peer.adapter, inbox):
            await peer.says("begin")
            await inbox.prompts(1)
            peer.server.event_copies = 2
            for number in range(3):
                await peer.says(f"number {number}")
            await peer.says("/stop all")
            peer.server.event_copies = 1
            await peer.says("end")
            prompts = await inbox.prompts(5)
        assert [prompt.text for prompt in prompts] == ["begin", "number 0", "number 1", "number 2", "end"]
        assert [(asked.name, asked.argument) for asked in inbox.requests] == [("stop", "all")]

    async def test_late_deliveries_in_reverse_order_are_not_lost(self, peer: Peer, inbox: Inbox) -> None:
        """If the platform numbers its messages, they are delivered in the order in which they were written."""
        needs(peer, "people", "weather")
        async with serving(peer.adapter, inbox):
            await peer.says("begin")
            await inbox.prompts(1)
            peer.server.hold()
            for number in range(4):
                await peer.says(f"number {number}")
            assert len(inbox.came) == 1
            await peer.server.release(backwards=True)
            prompts = await inbox.prompts(5)
        texts = [f"number {number}" for number in range(4)]
        assert [prompt.text for prompt in prompts[1:]] == (texts if peer.order == "written" else texts[::-1])

    async def test_an_edit_or_deletion_before_its_message_takes_effect(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "weather", "edits")
        if "polls" not in peer.lacks:
            pytest.skip("the platform delivers events in order, in one stream")
        async with serving(peer.adapter, inbox):
            await peer.says("begin")
            await inbox.prompts(1)
            peer.server.hold()
            await peer.changes(await peer.says("low tide"), "high tide")
            if "deletions" not in peer.lacks:
                await peer.deletes(await peer.says("never mind"))
            await peer.server.release(backwards=True)
            await peer.says("end")
            prompts = await inbox.prompts(3)
        assert [message.text for message in inbox.came if isinstance(message, Prompt)] == ["begin", "high tide", "end"]
        assert len(inbox.came) == len(prompts)

    async def test_a_slow_file_delays_only_its_own_chat(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "channels", "files_in", "downloads")
        async with serving(peer.adapter, inbox):
            await peer.says("begin")
            await inbox.prompts(1)
            peer.server.slow_files = True
            slow = asyncio.ensure_future(peer.sends_file("film.txt", b"tides"))
            await peer.server.until(lambda: peer.server.files_asked)
            behind = asyncio.ensure_future(peer.says("what is in it?"))
            elsewhere = asyncio.ensure_future(peer.in_channel("meanwhile", named=True))
            await asyncio.wait_for(_in_time(peer, inbox, 2), WAIT_SECONDS)
            await peer.server.let_go()
            prompts = await inbox.prompts(4)
            await asyncio.gather(slow, behind, elsewhere)
        received = [(prompt.text, [file.name for file in prompt.attachments if file.path]) for prompt in prompts]
        assert received == [("begin", []), ("meanwhile", []), ("", ["film.txt"]), ("what is in it?", [])]

    async def test_failing_polls_lose_no_events(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "weather", "polls")
        peer.server.poll_troubles.extend([("lose", 0.0), ("refuse", 5.0), ("fail", 0.0), ("cut", 0.0)])
        async with serving(peer.adapter, inbox):
            for number in range(3):
                await peer.says(f"number {number}")
            await asyncio.wait_for(_in_time(peer, inbox, 3), WAIT_SECONDS)
        assert [prompt.text for prompt in inbox.said()] == [f"number {number}" for number in range(3)]
        assert not peer.server.poll_troubles

    async def test_the_adapter_reconnects_after_a_drop(self, peer: Peer, inbox: Inbox) -> None:
        needs(peer, "people", "connection")
        async with serving(peer.adapter, inbox):
            await peer.says("before")
            await inbox.prompts(1)
            peer.server.drop()
            await peer.says("after")
            await asyncio.wait_for(_in_time(peer, inbox, 2), WAIT_SECONDS)
        assert [prompt.text for prompt in inbox.said()] == ["before", "after"]

    async def test_a_refused_token_is_logged_and_tried_again(
        self, peer: Peer, inbox: Inbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        needs(peer, "people", "connection")
        peer.server.token_refused = True
        async with serving(peer.adapter, inbox) as task:
            await peer.clock.advance_to_next()
            assert not task.done()
            assert any("token" in record.getMessage() for record in caplog.records)
            peer.server.token_refused = False
            await peer.says("now")
            await asyncio.wait_for(_in_time(peer, inbox, 1), WAIT_SECONDS)


async def _in_time(peer: Peer, inbox: Inbox, count: int) -> None:
    """Wait for `count` prompts, and advance the clock whenever the adapter pauses."""
    while len(inbox.said()) < count:
        passing = asyncio.ensure_future(peer.clock.advance_to_next())
        coming = asyncio.ensure_future(inbox.prompts(count))
        await asyncio.wait({passing, coming}, return_when=asyncio.FIRST_COMPLETED)
        for task in (passing, coming):
            task.cancel()
        await asyncio.wait({passing, coming})
