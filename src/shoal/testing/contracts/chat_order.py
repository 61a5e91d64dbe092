"""The chat adapter's contract for order: posts appear in the order of their acceptance, each once.

Answers are previewed while they are written, tools post in between, the platform refuses or loses calls, and the
process is killed at any moment. In the end, people see the posts in the order of the outbox's rows.
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
    """The database of a process that can be killed. After that, its calls do not reach the database."""

    is_dead = False

    async def close(self) -> None:
        """Do nothing. Others still use the database."""

    async def around(self, work: Awaitable[T]) -> T:
        if self.is_dead:
            if asyncio.iscoroutine(work):
                work.close()
            raise StoreUnavailable("This process was killed.")
        return await work


class Process:
    """A delivering process with its hub, previews and sender."""

    def __init__(self, peer: Peer, driver: Driver, clock: Clock) -> None:
        self._driver = _Mortal(driver)
        self.hub = Hub()
        outbox = Outbox(self._driver, clock)
        previews = Previews(peer.adapter, self.hub, outbox, clock)
        self._running = asyncio.ensure_future(Sender(peer.adapter, outbox, clock, previews).run())

    async def kill(self) -> None:
        """Kill the process. Its calls to the platform may still complete, but it records nothing."""
        self._driver.is_dead = True
        self._running.cancel()
        await asyncio.wait({self._running})


class Life:
    """A conversation across several processes."""

    def __init__(self, peer: Peer, driver: Driver) -> None:
        self._peer = peer
        self._driver = driver
        self._outbox = Outbox(driver, peer.clock)
        self._process = Process(peer, driver, peer.clock)
        self.accepted: list[str] = []

    async def started(self) -> None:
        """Wait until the model's output is read."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._process.hub.watched(self._peer.thread):
                await self.passes(1)

    async def put(self, text: str, id: str = "") -> None:
        """Accept a post."""
        await self._outbox.put(NewPost(id or self._peer.clock.new_id(), self._peer.thread, f"{text}."))
        self.accepted.append(text)

    def writes(self, turn: TurnId, text: str) -> None:
        """Write text as the model."""
        self._process.hub.show(self._peer.thread, turn, TextStreamed(text, 0))

    async def answers(self, turn: TurnId, text: str) -> None:
        """End the turn with this answer."""
        await self.put(text, f"{turn}:reply")
        ended = Event(1, self._peer.thread, turn, self._peer.clock.now(), TurnFinished("done", text))
        self._process.hub.publish([ended])

    async def killed(self) -> None:
        """Kill the process and start another."""
        await self._process.kill()
        self._process = Process(self._peer, self._driver, self._peer.clock)
        await self.started()

    async def passes(self, steps: int) -> None:
        """Let time pass."""
        for _ in range(steps):
            await in_time(self._peer.clock, self._outbox.depth(), STEP_SECONDS)

    async def until_sent(self) -> None:
        """Let time pass until all posts are sent."""
        async with asyncio.timeout(WAIT_SECONDS):
            while await self._outbox.depth():
                await self.passes(1)

    async def end(self) -> None:
        """Stop."""
        await self._process.kill()


@asynccontextmanager
async def living(peer: Peer, folder: Path) -> AsyncGenerator[Life]:
    """A conversation whose posts are delivered inside the block."""
    if not peer.adapter.limits.has_preview:
        pytest.skip("answers are not previewed there")
    driver = SqliteDriver(empty_database(folder / "outbox.db"), synchronous="OFF")
    life = Life(peer, driver)
    await life.started()
    try:
        yield life
    finally:
        await life.end()
        await driver.close()


class ChatOrder:
    """The contract's tests of order."""

    async def test_a_deleted_message_is_gone_and_cannot_be_deleted_again(self, peer: Peer) -> None:
        """A deleted message is gone. Deleting it again fails permanently or changes nothing."""
        if not isinstance(peer.adapter, Deletes):
            pytest.skip("a bot cannot delete there")
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

    async def test_no_preview_stands_above_a_post_that_is_not_sent_yet(self, peer: Peer, tmp_path: Path) -> None:
        """While an earlier post is refused, the next answer has no preview and follows that post."""
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

    async def test_an_answer_stands_after_what_was_posted_while_it_was_written(
        self, peer: Peer, tmp_path: Path
    ) -> None:
        """Its preview is deleted, or points to the answer if the platform cannot delete."""
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
    async def test_posts_stand_in_the_order_of_acceptance(self, peer: Peer, tmp_path: Path, seed: int) -> None:
        """Despite refusals, losses and kills, each appears once, or is marked as a repeat if posts have no keys."""
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
    """Run a turn with a previewed answer, posts in between and failures at any time."""
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
