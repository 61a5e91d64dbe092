"""Events of one stream: ordered within a chat, independent between chats."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from shoal.kernel.errors import PlatformError, StoreError
from shoal.platforms.inbox import PATIENCE_SECONDS, SLOW_MAX, Intake
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import MemorySettings

SCOPE = "intake:pigeon"


class Chats:
    """Records the accepted events. Each event fails as often as `failing` says before it is accepted."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kept = MemorySettings()
        self.taken: list[str] = []
        self.slow: dict[str, asyncio.Event] = {}
        self.failing: Counter[str] = Counter()
        self.error: Exception = PlatformError("Not now.")
        self.intake = Intake("pigeon", self.kept, self.clock)

    async def take(self, event: str) -> bool:
        if event in self.slow:
            await self.slow[event].wait()
        if self.failing[event]:
            self.failing[event] -= 1
            raise self.error
        self.taken.append(event)
        return True

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as tasks:
            await self.intake.open(tasks, self.take)
            yield tasks
            tasks.cancel_scope.cancel()

    async def put_slowly(self, tasks: anyio.abc.TaskGroup, chat: str, event: str) -> None:
        self.slow[event] = asyncio.Event()
        tasks.start_soon(self.intake.put, chat, event)
        await self.clock.sleepers(1)
        await self.clock.advance(PATIENCE_SECONDS)

    @property
    def waiting(self) -> list[str]:
        return [value for (scope, _), value in sorted(self.kept.values.items()) if scope == SCOPE]


async def test_a_slow_chat_delays_only_itself() -> None:
    chats = Chats()
    async with chats.running() as tasks:
        await chats.put_slowly(tasks, "ada", "ada's film")
        await chats.intake.put("ben", "hello")
        await chats.intake.put("ada", "ada's words")
        assert chats.taken == ["hello"]
        assert chats.waiting == ['["ada","ada\'s film"]', '["ada","ada\'s words"]']
        chats.slow["ada's film"].set()
        await chats.clock.advance(0)
        assert chats.taken == ["hello", "ada's film", "ada's words"]
        assert not chats.waiting


async def test_pending_events_survive_a_restart_in_order() -> None:
    chats = Chats()
    async with chats.running() as tasks:
        await chats.put_slowly(tasks, "ada", "first")
        await chats.intake.put("ada", "second")
    assert not chats.taken
    chats.slow["first"].set()
    async with chats.running():
        await chats.clock.advance(0)
        assert chats.taken == ["first", "second"]
        assert not chats.waiting


async def test_setting_the_clock_back_keeps_the_order_of_pending_events() -> None:
    chats = Chats()
    async with chats.running() as tasks:
        await chats.put_slowly(tasks, "ada", "first")
        chats.clock.jump(-3600)
        await chats.intake.put("ada", "second")
    chats.clock.jump(-3600)
    async with chats.running():
        await chats.intake.put("ada", "third")
    chats.slow["first"].set()
    async with chats.running():
        await chats.clock.advance(0)
        assert chats.taken == ["first", "second", "third"]


@pytest.mark.parametrize("error", [PlatformError("Not now."), StoreError("The disk is full.")])
async def test_an_immediate_failure_lets_the_platform_redeliver(error: PlatformError | StoreError) -> None:
    chats = Chats()
    chats.error, chats.failing["hello"] = error, 1
    async with chats.running():
        with pytest.raises(type(error)):
            await chats.intake.put("ada", "hello")
        await chats.intake.put("ada", "hello")
    assert chats.taken == ["hello"]


async def test_a_stored_event_is_retried_until_accepted() -> None:
    chats = Chats()
    chats.failing["film"] = 3
    async with chats.running() as tasks:
        await chats.put_slowly(tasks, "ada", "film")
        chats.slow["film"].set()
        await chats.clock.advance(60)
        assert chats.taken == ["film"]
        assert not chats.waiting


async def test_an_unacceptable_event_is_dropped() -> None:
    chats = Chats()
    chats.error, chats.failing["film"] = PlatformError("You were thrown out.", permanent=True), 1
    async with chats.running():
        await chats.intake.put("ada", "film")
        await chats.intake.put("ada", "hello")
    assert chats.taken == ["hello"]


async def test_a_stream_waits_when_too_many_chats_are_slow() -> None:
    chats = Chats()
    async with chats.running() as tasks:
        for number in range(SLOW_MAX):
            await chats.put_slowly(tasks, f"chat {number}", f"film {number}")
        tasks.start_soon(chats.intake.put, "ben", "hello")
        await chats.clock.advance(10)
        assert not chats.taken
        chats.slow["film 3"].set()
        await chats.clock.advance(0)
        assert chats.taken == ["film 3", "hello"]


async def test_an_event_that_causes_an_error_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    chats = Chats()
    chats.failing.update(["odd", "kept odd"])
    chats.error = RecursionError("too deep")
    async with chats.running() as tasks:
        assert not await chats.intake.put("ada", "odd")
        await chats.put_slowly(tasks, "ada", "kept odd")
        await chats.intake.put("ada", "hello")
        chats.slow["kept odd"].set()
        await chats.clock.advance(0)
    assert chats.taken == ["hello"]
    assert not chats.waiting
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["too deep"] * 2
