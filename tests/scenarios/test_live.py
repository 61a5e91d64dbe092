"""The live display of a turn: command output, waits and stops."""

import asyncio
import json
import os
from pathlib import Path

from tests.scenarios.test_turns import data_of

from shoal.agents.registry import AgentRegistry
from shoal.delivery.hub import Hub, Subscription
from shoal.kernel.clock import Clock
from shoal.kernel.events import LiveData, LiveEvent, OutputShown, StatusChanged, ToolFinished
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Refusal, Reply
from shoal.testing.scenario import SECONDS_MAX, World, scenario

SECRET = "sk-Abcd1234Efgh5678Ijkl9012"


def command(text: str) -> Reply:
    return Reply(calls=(Call("bash", json.dumps({"command": text})),))


async def seen(coming: Subscription, kind: type[LiveData]) -> LiveData:
    """Skip live events until one of this kind, and return it."""
    async with asyncio.timeout(SECONDS_MAX):
        async for item in coming:
            if isinstance(item, LiveEvent) and isinstance(item.data, kind):
                return item.data
    raise AssertionError("nothing came")


async def status(coming: Subscription, state: str) -> StatusChanged:
    while True:
        found = await seen(coming, StatusChanged)
        if isinstance(found, StatusChanged) and found.state == state:
            return found


def pipe(world: World) -> Path:
    """Create a named pipe in the workspace. A command blocks on it until the test writes."""
    path = world.app[AgentRegistry].spec("main").workspace / "go"
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


async def test_command_output_is_shown_live_and_stored_once(tmp_path: Path) -> None:
    text = f"echo hello; echo key {SECRET}; read -r line <go; echo $line"
    async with scenario(tmp_path, FakeModel(command(text), "done")) as world:
        go = pipe(world)
        with world.app[Hub].subscribe(world.ada.thread) as coming:
            await world.ada.says("run it")
            shown = await seen(coming, OutputShown)
            assert isinstance(shown, OutputShown)
            assert shown.text == "hello\nkey [redacted:api-key]\n"
            await asyncio.to_thread(go.write_text, "go on\n")
            await world.ada.sees("done")
        (result,) = await data_of(world, ToolFinished)
        assert shown.call_id == result.call_id
        assert result.text == "hello\nkey [redacted:api-key]\ngo on\n[exit code 0]"
        assert [kind for kind in await world.types() if kind.startswith("tool")] == ["tool_started", "tool_result"]


async def test_a_stopped_command_is_shown_as_stopped(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(command("read -r line <go"), "next")) as world:
        pipe(world)
        await world.ada.says("run it")
        await world.happens(world.ada.thread, "tool_started")
        await world.ada.stops()
        await world.happens(world.ada.thread, "turn_finished")
        (result,) = await data_of(world, ToolFinished)
        assert result.stopped
        assert result.is_error


async def test_a_turn_shows_the_reason_and_length_of_its_wait(tmp_path: Path) -> None:
    refusal = Refusal(429, headers=(("Retry-After", "20"),))
    model = FakeModel(refusal, command("touch made"), "fine")
    async with scenario(tmp_path, model, clock=ManualClock(), profile="standard") as world:
        with world.app[Hub].subscribe(world.ada.thread) as coming:
            await world.ada.says("hello")
            assert await status(coming, "thinking") == StatusChanged("thinking")
            waits = await status(coming, "retrying")
            assert waits.text == "the model has reached its rate limit"
            assert 20 <= waits.seconds < 30
            clock = world.app[Clock]
            assert isinstance(clock, ManualClock)
            await clock.advance(waits.seconds)
            assert await status(coming, "waiting") == StatusChanged("waiting", "bash")
            await world.ada.decides((await world.ada.is_asked()).id, allow=True)
            assert await status(coming, "tool") == StatusChanged("tool", "bash")
            await world.ada.sees("fine")
