"""Workers in separate processes. If a worker is killed or frozen, another worker finishes its turn, and the frozen
worker cannot change the turn afterwards.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.postgres import empty

from shoal.kernel.clock import SystemClock
from shoal.kernel.events import AssistantSaid
from shoal.kernel.ids import ThreadId
from shoal.store.postgres import PoolSettings, open_postgres
from shoal.store.store import Store
from shoal.testing.contracts.steps import OTHER, THREAD, prompt

pytestmark = [pytest.mark.xdist_group("postgres"), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60.0


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self, word: str, thread: str = THREAD) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            while line := (await self._process.stdout.readline()).decode():
                if line.split() == [word, thread]:
                    return
        raise AssertionError(f"The worker ended without saying {word}.")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[Store]:
    driver = await open_postgres(postgres_database, PoolSettings(connections_max=3))
    empty(postgres_database)
    yield Store(driver, SystemClock())
    await driver.close()


Start = Callable[[str], Awaitable[Process]]


@pytest.fixture
async def start(postgres_database: str, store: Store) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(mode: str) -> Process:
            process = Process(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.contracts.engine_worker", postgres_database, mode),
                    cwd=ROOT,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            )
            stack.push_async_callback(process.stop)
            await process.says("ready", "-")
            return process

        yield start


async def journal_is_whole(store: Store, thread: ThreadId = THREAD) -> list[str]:
    """Check that the event numbers have no gap, and return the event types."""
    events = await store.journal.events(thread)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert not [event for event in events if isinstance(event.data, AssistantSaid) and "zombie" in event.data.text]
    return [event.type for event in events]


async def test_a_killed_workers_turn_is_finished_by_another(store: Store, start: Start) -> None:
    hanging = await start("hang")
    await store.inbox.accept(prompt("a"), 5)
    await hanging.says("step")
    finishing = await start("finish")
    hanging.send(signal.SIGKILL)
    await finishing.says("finished")
    assert await journal_is_whole(store) == [
        "turn_started", "user_message", "assistant_message", "assistant_message", "turn_finished",
    ]  # fmt: skip


async def test_a_frozen_worker_is_replaced_and_fenced_after_it_thaws(store: Store, start: Start) -> None:
    hanging = await start("hang")
    await store.inbox.accept(prompt("a"), 5)
    await hanging.says("step")
    hanging.send(signal.SIGSTOP)
    finishing = await start("finish")
    await finishing.says("finished")
    hanging.send(signal.SIGCONT)
    await hanging.go_on()
    await hanging.says("stale")
    assert (await journal_is_whole(store)).count("turn_finished") == 1
    finishing.send(signal.SIGKILL)
    await store.inbox.accept(prompt("b", OTHER), 5)
    await hanging.says("finished", OTHER)  # the resumed process continues as a new worker
    assert (await journal_is_whole(store)).count("turn_finished") == 1


async def test_prompts_queued_behind_a_killed_turn_are_answered(store: Store, start: Start) -> None:
    hanging = await start("hang")
    for key in ("a", "b", "c"):
        await store.inbox.accept(prompt(key), 5)
    await hanging.says("step")
    hanging.send(signal.SIGKILL)
    finishing = await start("finish")
    for _ in range(3):
        await finishing.says("finished")
    assert (await journal_is_whole(store)).count("turn_finished") == 3
    assert await store.inbox.waiting() == []
