"""Background processes of several machines that share a store: detecting dead owners and cleaning up."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from shoal.features.processes.logs import log_of
from shoal.features.processes.records import Hook, Process, ProcessEnd, ProcessSpec
from shoal.features.processes.service import (
    BEAT_SECONDS,
    KEEP_DAYS,
    STALE_SECONDS,
    ProcessService,
    ProcessSettings,
    ProcessTable,
)
from shoal.features.processes.store import ProcessStore
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Inbound, Prompt, Receipt
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database

THREAD = ThreadId("web:lobby:a")
SPEC = ProcessSpec("main", THREAD, "sleep 60", hooks=(Hook("exit"),), author=Author("u1", trusted=True), tainted_by="")


class Machine:
    """A machine on which all processes are alive except those in `dead`."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.ended: list[str] = []

    def identity_of(self, pid: int) -> str:
        return f"{pid} 1 1"

    def is_alive(self, identity: str) -> bool:
        return identity not in self.dead

    def kill_leftovers(self, identity: str) -> None:
        self.ended.append(identity)


class Stand:
    """Two Shoal processes that share a store."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.home = Home(folder)
        self.driver = SqliteDriver(empty_database(folder / "shoal.db"), synchronous="OFF")
        self.store = Store(self.driver, self.clock)
        self.rows = ProcessStore(self.driver, self.clock)
        self.machine = Machine()
        self.sent: list[Prompt] = []
        self.full = False

    async def send(self, message: Inbound) -> Receipt:
        assert isinstance(message, Prompt)
        if self.full:
            return Receipt("busy")
        if message.key in {prompt.key for prompt in self.sent}:
            return Receipt("duplicate")
        self.sent.append(message)
        return Receipt("accepted")

    def service(self, owner: str) -> ProcessService:
        settings = ProcessSettings(owner, alone=False)
        table = ProcessTable(self.machine.identity_of, self.machine.is_alive, self.machine.kill_leftovers)
        return ProcessService(self.rows, self.home, self.clock, self.send, str, table, settings)

    async def left_behind(self, owner: str) -> Process:
        now = self.clock.now()
        process = Process(self.clock.new_id(), SPEC, "running", owner, "", now, now)
        assert await self.rows.add(process, 8)
        return process

    async def until(self, process: str, fits: Callable[[Process], bool]) -> Process:
        async with asyncio.timeout(60):
            while True:
                found = await self.rows.get(process)
                assert found is not None
                if fits(found):
                    return found
                await self.clock.advance(BEAT_SECONDS)


@asynccontextmanager
async def running(service: ProcessService) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        await asyncio.sleep(0)
        yield
        tasks.cancel_scope.cancel()


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    found = Stand(tmp_path)
    yield found
    await found.store.close()


async def test_processes_of_a_dead_server_here_are_ended_and_reported_immediately(stand: Stand) -> None:
    process = await stand.left_behind("here 7 1 1")
    stand.machine.dead.add("7 1 1")
    async with running(stand.service("here 8 1 1")):
        found = await stand.until(process.id, lambda one: one.told)
    assert found.state == "lost"
    assert stand.machine.ended == [process.identity]
    assert [prompt.key for prompt in stand.sent] == [f"process:{process.id}:exit:0"]


async def test_processes_of_a_silent_machine_are_lost_after_a_while(stand: Stand) -> None:
    process = await stand.left_behind("there 7 1 1")
    began = stand.clock.now()
    async with running(stand.service("here 8 1 1")):
        found = await stand.until(process.id, lambda one: one.told)
    assert found.state == "lost"
    assert found.ended_at is not None
    assert (found.ended_at - began).total_seconds() >= STALE_SECONDS
    assert stand.machine.ended == []


async def test_a_full_mailbox_is_retried(stand: Stand) -> None:
    process = await stand.left_behind("here 7 1 1")
    stand.machine.dead.add("7 1 1")
    stand.full = True
    async with running(stand.service("here 8 1 1")):
        await stand.until(process.id, lambda one: one.state == "lost")
        await stand.clock.advance(3 * BEAT_SECONDS)
        stand.full = False
        await stand.until(process.id, lambda one: one.told)
    assert len(stand.sent) == 1


@pytest.mark.parametrize("is_odd", [False, True])
async def test_processes_that_ended_long_ago_are_forgotten_without_a_restart(stand: Stand, is_odd: bool) -> None:
    old, young = [await stand.left_behind("gone 7 1 1") for _ in range(2)]
    await stand.rows.end(old.id, ProcessEnd("exited", told=True))
    service = stand.service("here 8 1 1")
    if is_odd:
        log_of(stand.home, old).mkdir(parents=True)
    async with running(service):
        await stand.clock.sleepers()
        await stand.clock.jump_to(stand.clock.now() + timedelta(days=KEEP_DAYS))
        await stand.until(young.id, lambda one: one.state == "lost")
        await stand.clock.jump_to(stand.clock.now() + timedelta(days=2))
    assert await stand.rows.get(old.id) is None
    assert await stand.rows.get(young.id) is not None
