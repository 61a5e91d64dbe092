"""Contract tests for order: each post appears exactly once, in the order in which the outbox accepted the posts.

The tests preview answers while the model writes them, post from tools in between, make the platform refuse or lose
calls, and kill the process at any moment. At the end, people must see the posts in the order of the outbox rows.
"""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.delivery.hub import Hub
from shoal.delivery.previews import Previews
from shoal.delivery.sender import Sender
from shoal.kernel.clock import Clock
from shoal.kernel.errors import PlatformError, StoreUnavailable
from shoal.kernel.events import Event, TextStreamed, TurnFinished
from shoal.kernel.ids import TurnId
from shoal.kernel.posts import REPEATED, Deletes
from shoal.kernel.records import NewPost
from shoal.store.driver import Driver, T
from shoal.store.outbox import Outbox
from shoal.store.sqlite import SqliteDriver
from shoal.testing.clock import in_time
from shoal.testing.contracts.chat_peer import WAIT_SECONDS, Peer, needs, post
from shoal.testing.database import empty_database
from shoal.testing.faults import WrappedDriver
from shoal.testing.platforms.fake import Trouble

SEEDS = range(8)
TURNS = 4
MISHAPS: tuple[Trouble, ...] = (("refuse", 3.0), ("refuse_all", 2.0), ("fail", 0.0), ("cut", 0.0), ("lose", 0.0))
OUTAGE: tuple[Trouble, ...] = (("fail", 0.0), ("fail", 0.0), ("fail", 0.0))
STEP_SECONDS = 0.3


class _Mortal(WrappedDriver):
    """The database connection of a process. After the test has killed the process, calls raise StoreUnavailable."""

    is_dead = False

    async def close(self) -> None:
        """Keep the database open for the next process."""

    async def around(self, work: Awaitable[T]) -> T:
        if self.is_dead:
            if asyncio.iscoroutine(work):
                work.close()
            raise StoreUnavailable("This process was killed.")
        return await work


class Process:
    """A simulated process that delivers posts, with its own hub, previews and sender."""

    def __init__(self, peer: Peer, driver: Driver, clock: Clock) -> None:
        self._driver = _Mortal(driver)
        self.hub = Hub()
        outbox = Outbox(self._driver, clock)
        previews = Previews(peer.adapter, self.hub, outbox, clock)
        self._running = asyncio.ensure_future(Sender(peer.adapter, outbox, clock, previews).run())

    async def kill(self) -> None:
        """Kill the process. Its calls to the platform may still complete, but it records no results."""
        self._driver.is_dead = True
        self._running.cancel()
        await asyncio.wait({self._running})


class Life:
    """A conversation whose posts are delivered by several processes, one after another."""

    def __init__(self, peer: Peer, driver: Driver) -> None:
        self._peer = peer
        self._driver = driver
        self._outbox = Outbox(driver, peer.clock)
        self._process = Process(peer, driver, peer.clock)
        self.accepted: list[str] = []

    async def started(self) -> None:
        """Wait until the process listens for the model's output."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._process.hub.watched(self._peer.thread):
                await self.passes(1)

    async def put(self, text: str, id: str = "") -> None:
        """Enqueue a post."""
        await self._outbox.put(NewPost(id or self._peer.clock.new_id(), self._peer.thread, f"{text}."))
        self.accepted.append(text)

    def writes(self, turn: TurnId, text: str) -> None:
        """Stream `text` as the output of the model."""
        self._process.hub.show(self._peer.thread, turn, TextStreamed(text, 0))

    async def answers(self, turn: TurnId, text: str) -> None:
        """Finish the turn with this answer."""
        await self.put(text, f"{turn}:reply")
        ended = Event(1, self._peer.thread, turn, self._peer.clock.now(), TurnFinished("done", text))
        self._process.hub.publish([ended])

    async def killed(self) -> None:
        """Kill the process and start another one."""
        await self._process.kill()
        self._process = Process(self._peer, self._driver, self._peer.clock)
        await self.started()

    async def passes(self, steps: int) -> None:
        """Advance the clock by `steps` steps of STEP_SECONDS."""
        for _ in range(steps):
            await in_time(self._peer.clock, self._outbox.depth(), STEP_SECONDS)

    async def until_sent(self) -> None:
        """Advance the clock until the outbox is empty."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._outbox.depth():
                await self.passes(1)

    async def end(self) -> None:
        """Stop the last process."""
        await self._process.kill()


@asynccontextmanager
async def living(peer: Peer, folder: Path) -> AsyncGenerator[Life]:
    """Yield a conversation whose posts are delivered while the block runs."""
    if not peer.adapter.limits.has_preview:
        pytest.skip("the platform has no previews of answers")
    driver = SqliteDriver(empty_database(folder / "outbox.db"), synchronous="OFF")
    life = Life(peer, driver)
    await life.started()
    try:
        yield life
    finally:
        await life.end()
        await driver.close()


class ChatOrder:
    """Tests of message order, mixed into `ChatContract`."""

    async def test_deleting_a_message_twice_fails_permanently_or_does_nothing(self, peer: Peer) -> None:
        if not isinstance(peer.adapter, Deletes):
            pytest.skip("the platform does not let bots delete messages")
        needs(peer, "view")
        first = await peer.adapter.post(post(peer, "one"))
        await peer.adapter.post(post(peer, "two", "k2"))
        await peer.adapter.delete(peer.thread, first)
        assert [post.text for post in peer.shown()] == ["two"]
        refused: PlatformError | None = None
        try:
            await peer.adapter.delete(peer.thread, first)
        except PlatformError as error:
            refused = error
        assert refused is None or refused.permanent
        assert [post.text for post in peer.shown()] == ["two"]

    async def test_no_preview_appears_above_an_unsent_post(self, peer: Peer, tmp_path: Path) -> None:
        needs(peer, "view", "weather")
        async with living(peer, tmp_path) as life:
            peer.server.troubles.extend(OUTAGE)
            await life.put("said 0")
            life.writes(TurnId("T1"), "draft 1")
            while peer.server.troubles:
                assert not peer.shown()
                await life.passes(1)
            await life.answers(TurnId("T1"), "said 1")
            await life.until_sent()
            assert [post.text.removeprefix(REPEATED) for post in peer.shown()][-2:] == ["said 0.", "said 1."]

    async def test_an_answer_appears_after_posts_made_while_it_was_written(self, peer: Peer, tmp_path: Path) -> None:
        """The preview of the answer is deleted. If the platform cannot delete messages, the preview links to the
        answer.
        """
        needs(peer, "view")
        async with living(peer, tmp_path) as life:
            life.writes(TurnId("T1"), "draft 1")
            async with asyncio.timeout(WAIT_SECONDS):
                while not any("draft 1" in post.text for post in peer.shown()):
                    await life.passes(1)
            await life.put("said 0")
            await life.until_sent()
            await life.answers(TurnId("T1"), "said 1")
            await life.until_sent()
            texts = [post.text for post in peer.shown()]
            left = [] if isinstance(peer.adapter, Deletes) else texts[:1]
            assert texts == [*left, "said 0.", "said 1."]
            assert "draft" not in "".join(texts)

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_posts_appear_once_in_the_order_of_acceptance(self, peer: Peer, tmp_path: Path, seed: int) -> None:
        """A post may appear twice only if the platform has no idempotency keys. The second one is marked as a
        repeat.
        """
        needs(peer, "view", "weather")
        chance = random.Random(seed)
        async with living(peer, tmp_path) as life:
            for number in range(TURNS):
                await _turn(life, peer, chance, number)
            await life.until_sent()
            texts = [post.text for post in peer.shown()]
            numbers_said = [
                found[0] for text in texts for found in [re.search(r"said \d+\w?", text)] if found is not None
            ]
            assert list(dict.fromkeys(numbers_said)) == life.accepted
            assert numbers_said == sorted(numbers_said, key=life.accepted.index)
            if peer.adapter.limits.idempotent_posts:
                assert len(numbers_said) == len(life.accepted)
                assert "draft" not in "".join(texts)


async def _turn(life: Life, peer: Peer, chance: random.Random, number: int) -> None:
    """Run a turn with a previewed answer, posts from tools, and random failures."""
    turn = TurnId(f"T{number}")
    for step in range(chance.randrange(4)):
        peer.server.troubles.extend(chance.choices(MISHAPS, k=chance.choice((0, 0, 1, 3))))
        life.writes(turn, f"draft {number} ")
        await life.passes(chance.randrange(8))
        if chance.random() < 0.3:
            await life.put(f"said {number}{'abcd'[step]}")
        if chance.random() < 0.3:
            await life.killed()
    await life.answers(turn, f"said {number}")
    await life.passes(chance.randrange(4))
    if chance.random() < 0.3:
        await life.killed()
