"""Processes that an agent starts. They outlive the turn and report events."""

import asyncio
import gc
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shoal.features.processes.live import LiveProcess
from shoal.features.processes.records import Process
from shoal.features.processes.service import BEAT_SECONDS, ProcessService
from shoal.kernel.clock import Clock, SystemClock
from shoal.kernel.errors import StoreFull
from shoal.sandbox.processes import is_alive
from shoal.store.driver import Driver, Script
from shoal.testing.clock import ManualClock, in_time
from shoal.testing.faults import T, WrappedDriver
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import SECONDS_MAX, World, scenario


def starts(command: str, *hooks: Mapping[str, object], name: str = "job") -> Reply:
    return Reply(calls=(Call("process_start", json.dumps({"command": command, "name": name, "hooks": hooks})),))


async def test_an_exit_hook_ignores_other_exit_codes_and_kills(tmp_path: Path) -> None:
    exits = [{"on": "exit", "codes": [7]}]
    model = FakeModel(starts("exit 0", *exits), "One.", starts("sleep 60", {"on": "exit"}), "Two.")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("start it")
        await world.ada.sees("One.")
        await world.ada.says("and another")
        await world.ada.sees("Two.")
        found = await world.app[ProcessService].of_agent("main", "")
        (sleeper,) = (one for one in found if one.spec.command == "sleep 60")
        await world.app[ProcessService].kill(sleeper.id, "owner")
        await until(world, lambda found: all(one.state != "running" and one.told for one in found))
        states = {one.state for one in await world.app[ProcessService].of_agent("main", "")}
    assert states == {"exited", "killed"}
    assert model.calls == 4


async def test_matching_lines_start_a_bounded_number_of_turns(tmp_path: Path) -> None:
    hook = {"on": "output", "pattern": "^ready on \\d+$", "fires_max": 1, "note": "tell ada"}
    begin = starts("echo warming up; echo ready on 8080; echo ready on 8081; sleep 60", hook)
    model = FakeModel(begin, "Started.", "It is up.")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("start it")
        await world.ada.sees("It is up.")
        assert "ready on 8080" in model.requests[-1].messages[-1].text
        await world.app[ProcessService].kill((await world.app[ProcessService].of_agent("main", ""))[0].id, "owner")
    assert model.calls == 3


async def test_a_long_running_process_starts_a_turn(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(starts("sleep 60", {"on": "timeout", "after_seconds": 600}), "Started.", "Still at it.")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("start it")
        await world.ada.sees("Started.")
        await clock.advance(599)
        assert model.calls == 2
        await clock.advance(2)
        await world.ada.sees("Still at it.")


async def test_the_agent_and_people_see_running_processes(tmp_path: Path) -> None:
    listing = Reply(calls=(Call("process_list", "{}"),))
    model = FakeModel(starts("sleep 60", name="watcher"), "Started.", listing, "There.")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("start it")
        await world.ada.sees("Started.")
        assert "watcher" in await world.ada.asks("/tasks")
        await world.ada.says("what runs?")
        await world.ada.sees("There.")
    assert "Processes you started" in model.requests[2].messages[-1].text
    assert "'watcher': running" in model.requests[3].messages[-1].text


async def test_a_process_log_is_read_from_an_offset(tmp_path: Path) -> None:
    model = FakeModel(starts("echo one; echo two; exit 0", {"on": "exit"}), "Started.", "It ended.")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("start it")
        await world.ada.sees("It ended.")
        (process,) = await world.app[ProcessService].of_agent("main", "")
        piece = await world.app[ProcessService].read(process, offset=4)
    assert piece.lines == ("two",)
    assert (piece.next_offset, piece.total_bytes) == (8, 8)


async def test_hook_chains_have_a_bounded_depth(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        last = seen.messages[-1]
        if last.role == "tool":
            return Reply("at most" if "at most" in last.text else "next")
        return starts("exit 0", {"on": "exit"})

    async with scenario(tmp_path, FakeModel(script=script)) as world:
        await world.ada.says("start it")
        await world.ada.sees("at most")
        assert [one.spec.depth for one in await world.app[ProcessService].of_agent("main", "")] == [3, 2, 1, 0]


async def test_a_process_follows_the_rules_for_bash(tmp_path: Path) -> None:
    model = FakeModel(starts("cd x && git push origin main"), "Denied.")
    async with scenario(tmp_path, model, profile="guarded") as world:
        await world.ada.says("push it")
        await world.ada.sees("Denied.")
        assert await world.app[ProcessService].of_agent("main", "") == []
    assert "Permission denied" in model.requests[-1].messages[-1].text


async def test_a_shutdown_loses_running_processes_and_the_next_start_reports_it(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(starts("sleep 60", {"on": "exit"}), "Started.")) as world:
        await world.ada.says("start it")
        await world.ada.sees("Started.")
        (process,) = await world.app[ProcessService].of_agent("main", "", running=True)
        assert is_alive(process.identity)
    assert not is_alive(process.identity)
    again = FakeModel("It was lost.")
    async with scenario(tmp_path, again) as world:
        await world.ada.sees("It was lost.")
        (process,) = await world.app[ProcessService].of_agent("main", "")
        assert process.state == "lost"
    async with scenario(tmp_path, FakeModel("Nothing.")) as world:
        await until(world, lambda found: all(one.told for one in found))
    assert again.calls == 1


async def test_a_finished_process_is_freed(tmp_path: Path) -> None:
    """A reference cycle would keep the process in memory until the next garbage collection."""
    hooks = {"on": "output", "pattern": "ready"}, {"on": "timeout", "after_seconds": 600}
    model = FakeModel(starts("echo ready", *hooks), "Started.", "Seen.")
    async with scenario(tmp_path, model) as world:
        gc.collect()
        gc.disable()
        try:
            await world.ada.says("start it")
            await world.ada.sees("Seen.")
            await until(world, lambda found: all(one.state != "running" and one.told for one in found))
            await world.is_quiet()
            assert [one for one in gc.get_objects() if isinstance(one, LiveProcess)] == []
        finally:
            gc.enable()


class Disk(WrappedDriver):
    """A database that raises StoreFull while `is_full` is set."""

    def __init__(self, disks: list["Disk"], driver: Driver) -> None:
        super().__init__(driver)
        disks.append(self)
        self.is_full = False
        self.refused = asyncio.Semaphore(0)

    async def write(self, script: Script[T]) -> T:
        if self.is_full:
            self.refused.release()
            raise StoreFull("The disk is full.")
        return await super().write(script)


async def test_a_process_runs_on_a_full_disk_and_its_end_is_reported(tmp_path: Path) -> None:
    clock, go, disks = ManualClock(), tmp_path / "go", list[Disk]()

    model = FakeModel(starts(f"until test -e {go}; do sleep 0.05; done; exit 3", {"on": "exit"}), "Started.", "Ended.")
    async with scenario(tmp_path / "home", model, clock=clock, wrap_driver=partial(Disk, disks)) as world:
        await world.ada.says("start it")
        await world.ada.sees("Started.")
        (process,) = await world.app[ProcessService].of_agent("main", "", running=True)
        disks[0].is_full = True
        for _ in range(3):
            await in_time(clock, disks[0].refused.acquire(), BEAT_SECONDS)
        assert is_alive(process.identity)
        go.touch()
        await ended(process)
        disks[0].is_full = False
        await in_time(clock, world.ada.sees("Ended."))
        assert (await world.app[ProcessService].get(process.id)).exit_code == 3


async def test_a_shutdown_does_not_wait_for_a_full_disk(tmp_path: Path) -> None:
    disks = list[Disk]()
    model = FakeModel(starts(f"until test -e {tmp_path / 'go'}; do sleep 0.05; done", {"on": "exit"}), "Started.")
    async with scenario(tmp_path / "home", model, wrap_driver=partial(Disk, disks)) as world:
        await world.ada.says("start it")
        await world.ada.sees("Started.")
        (process,) = await world.app[ProcessService].of_agent("main", "", running=True)
        disks[0].is_full = True
        (tmp_path / "go").touch()
        await ended(process)
    async with scenario(tmp_path / "home", FakeModel("It was lost.")) as world:
        await world.ada.sees("It was lost.")


async def ended(process: Process) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while is_alive(process.identity):
            await SystemClock().sleep(0.02)


async def until(world: World, fits: Callable[[list[Process]], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not fits(await world.app[ProcessService].of_agent("main", "")):
            await world.app[Clock].sleep(0.02)
