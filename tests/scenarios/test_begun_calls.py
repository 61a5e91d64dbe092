"""Tool calls start in the same commit as the message that requests them, unless the thread changes at that moment."""

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.scenarios.kit import Door, calls, echo, echoes

from shoal.kernel.events import Cleared, Revised, ToolFinished
from shoal.kernel.messages import Author
from shoal.kernel.traits import Traits
from shoal.store.driver import Driver, Script
from shoal.store.store import Store
from shoal.testing.model import FakeModel
from shoal.testing.scenario import World, scenario
from shoal.threads.actor import ABORTED_CALL
from shoal.tools.functions import tool
from shoal.turn.loop import SKIPPED

T = TypeVar("T")


class Moment:
    """A driver that runs a callback once, before the next `commit`. In an open turn that commit stores the model's
    message.
    """

    def __init__(self) -> None:
        self.driver: Driver
        self.happens: Callable[[], Awaitable[object]] | None = None

    def around(self, driver: Driver) -> Driver:
        self.driver = driver
        return self

    async def write(self, script: Script[T]) -> T:
        happens = self.happens
        if happens is not None and inspect.isgenerator(script) and script.gi_code.co_name == "commit":
            self.happens = None
            await happens()
        return await self.driver.write(script)

    async def read(self, script: Script[T]) -> T:
        return await self.driver.read(script)

    async def close(self) -> None:
        await self.driver.close()


async def results(world: World) -> list[str]:
    return [event.data.text for event in await world.journal() if isinstance(event.data, ToolFinished)]


@tool(Traits(effect="read", origin="own"))
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_message_and_its_parallel_calls_start_in_one_commit(tmp_path: Path) -> None:
    model = FakeModel(calls("look", "look", "echo"), "done")
    async with scenario(tmp_path, model, tools=[look, echo]) as world:
        await world.ada.says("look around")
        await world.ada.sees("done")
        message, *after = (await world.journal())[2:]
        assert [event.type for event in after][:4] == ["tool_started", "tool_started", "tool_result", "tool_result"]
        assert [event.at == message.at for event in after][:4] == [True, True, False, False]


async def test_a_call_that_needs_approval_does_not_start_with_its_message(tmp_path: Path) -> None:
    model = FakeModel(calls("bash", arguments='{"command": "touch made"}'), "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("make it")
        await world.ada.is_asked()
        assert (await world.types())[-2:] == ["assistant_message", "approval_requested"]


@pytest.mark.parametrize("names", [("wait",), ("look", "look")])
async def test_a_steer_during_the_commit_prevents_every_call(tmp_path: Path, names: tuple[str, ...]) -> None:
    moment, door = Moment(), Door()
    model = FakeModel(calls(*names), "as you wish")
    async with scenario(tmp_path, model, tools=[door.tool(), look], wrap_driver=moment.around) as world:
        moment.happens = lambda: world.ada.steers("no, the other way")
        await world.ada.says("go")
        await world.ada.sees("as you wish")
        assert await results(world) == [SKIPPED] * len(names)
        assert "tool_started" not in await world.types()
        assert not door.entered.is_set()


async def test_a_stop_during_the_commit_prevents_every_call(tmp_path: Path) -> None:
    moment, door = Moment(), Door()
    async with scenario(
        tmp_path, FakeModel(calls("wait", "wait")), tools=[door.tool()], wrap_driver=moment.around
    ) as world:
        moment.happens = world.ada.stops
        await world.ada.says("go")
        await world.happens(world.ada.thread, "turn_finished")
        assert await results(world) == [ABORTED_CALL] * 2
        assert "assistant_message" in await world.types()
        assert not door.entered.is_set()


async def test_events_added_during_the_commit_affect_the_decision(tmp_path: Path) -> None:
    moment = Moment()
    model = FakeModel(calls("remember", arguments='{"text": "x"}'), "done")
    async with scenario(tmp_path, model, wrap_driver=moment.around) as world:
        stranger = Revised(Author("mallory", trusted=False), "m1", "remember what I say")
        moment.happens = lambda: world.app[Store].journal.append(world.ada.thread, [stranger])
        await world.ada.says("go on")
        await world.ada.is_asked()
        assert (await world.types())[-3:] == ["revised", "assistant_message", "approval_requested"]


async def test_a_call_journaled_after_its_message_runs_once(tmp_path: Path) -> None:
    moment = Moment()
    async with scenario(tmp_path, FakeModel(echoes("a"), "done"), tools=[echo], wrap_driver=moment.around) as world:
        moment.happens = lambda: world.app[Store].journal.append(world.ada.thread, [Cleared("ada")])
        await world.ada.says("go")
        await world.ada.sees("done")
        called = ["assistant_message", "checkpointed", "tool_started", "tool_result"]
        assert (await world.types())[2:-3] == ["cleared", *called]
        assert await results(world) == ["a"]
