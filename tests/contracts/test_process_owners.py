"""Background processes end when their rows say so, even if another machine changed the row."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.features.processes.test_service_owners import SPEC, Stand, running

from shoal.features.processes.records import Process, ProcessEnd
from shoal.features.processes.store import ProcessStore
from shoal.kernel.ports import Command
from shoal.sandbox.host import HostSandbox
from shoal.sandbox.processes import identity_of


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    owners = Stand(tmp_path)
    yield owners
    await owners.store.close()


async def nothing() -> str:
    return ""


async def test_a_process_declared_lost_is_killed(stand: Stand, tmp_path: Path) -> None:
    service = stand.service("here 8 1 1")
    async with running(service):
        process = await service.start(SPEC, Command("sleep 60", tmp_path, ()), HostSandbox(), nothing)
        await stand.rows.end(process.id, ProcessEnd("lost", reason="silent"))
        await stand.until(process.id, lambda one: one.told and not identity_of(process.pid))
    assert len(stand.sent) == 1


async def test_a_process_started_during_a_heartbeat_is_not_lost(stand: Stand, tmp_path: Path) -> None:
    """The heartbeat read its list before the process's row existed. The process must keep running, and its end
    must be reported.
    """

    class SlowBeats(ProcessStore):
        def __init__(self) -> None:
            super().__init__(stand.driver, stand.clock)
            self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

        async def beat(self, owner: str) -> list[Process]:
            found = await super().beat(owner)
            self.begun.set()
            await self.goes_on.wait()
            return found

    rows = stand.rows = SlowBeats()
    service, end = stand.service("here 8 1 1"), tmp_path / "end"
    async with running(service):
        await rows.begun.wait()
        waits = Command(f"until [ -e {end} ]; do sleep 0.01; done", tmp_path, ())
        process = await service.start(SPEC, waits, HostSandbox(), nothing)
        rows.begun.clear()
        rows.goes_on.set()
        await stand.until(process.id, lambda _: rows.begun.is_set())
        end.touch()
        found = await stand.until(process.id, lambda one: one.told)
    assert (found.state, found.exit_code) == ("exited", 0)
    assert [prompt.key for prompt in stand.sent] == [f"process:{process.id}:exit:0"]


async def test_a_process_can_be_killed_from_another_machine(stand: Stand, tmp_path: Path) -> None:
    service, other = stand.service("here 8 1 1"), stand.service("there 9 1 1")
    async with running(service):
        process = await service.start(SPEC, Command("sleep 60", tmp_path, ()), HostSandbox(), nothing)
        await other.kill(process.id, "owner")
        row = await stand.until(process.id, lambda one: one.state != "running")
    assert (row.state, row.killed_by) == ("killed", "owner")
    assert stand.sent == []
