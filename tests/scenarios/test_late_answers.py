"""An answer to a card that no longer stands: one sentence and the next step, and nothing runs, wherever it is given."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from tests.scenarios.kit import calls, echo, in_time

from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import ToolFinished
from shoal.kernel.messages import Author
from shoal.kernel.records import Approval
from shoal.platforms.inbox import press
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel
from shoal.testing.scenario import World, scenario
from shoal.tools.registry import Registry

EXPIRED = "This approval expired, and nothing ran. Ask the agent again."
CHANGED = "The approved call would now do something different, because something it depends on has changed. Ask again."
TOKEN = "a-token-of-a-test-that-nobody-can-guess"
SURFACES = pytest.mark.parametrize("surface", ["chat", "api"])
CAREFUL = {"permissions": {"default_profile": "careful", "profiles": {"careful": {"ask": ["tool:.*"]}}}}
EDIT = '{"path": "note.txt", "old_string": "one", "new_string": "two"}'


@asynccontextmanager
async def surface_of(world: World, surface: str) -> AsyncGenerator[Callable[[Approval], Awaitable[str]]]:
    """How a yes is given, which returns what the person is told."""
    if surface == "chat":

        async def presses(approval: Approval) -> str:
            assert world.chat.inbox is not None
            author = Author("ada", "ada", trusted=False)
            return await press(f"allow:{approval.id}", world.ada.thread, author, world.chat.inbox)

        yield presses
        return
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        serve(world.app, WebOptions(token=TOKEN, port=0)) as address,
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
    ):

        async def posts(approval: Approval) -> str:
            answer = await client.post(f"/api/approvals/{approval.id}", json={"decision": "allow"})
            return str(answer.json().get("message", ""))

        yield posts


def note(world: World) -> Path:
    return world.app[AgentRegistry].spec("main").workspace / "note.txt"


async def result(world: World) -> str:
    """What the model is told of its only call."""
    event = await world.happens(world.ada.thread, "tool_result")
    assert isinstance(event.data, ToolFinished)
    return event.data.text


async def asked(world: World) -> Approval:
    note(world).write_text("one")
    await world.ada.says("edit it")
    return await world.ada.is_asked()


@SURFACES
async def test_a_card_that_expired(tmp_path: Path, surface: str) -> None:
    clock = ManualClock()
    model = FakeModel(calls("edit", arguments=EDIT), "nobody was there")
    async with scenario(tmp_path, model, settings=CAREFUL, clock=clock) as world, surface_of(world, surface) as allows:
        approval = await asked(world)
        await clock.advance(3700)
        await in_time(clock, world.ada.sees("nobody was there"))
        assert await allows(approval) == EXPIRED
        assert note(world).read_text() == "one"


@SURFACES
async def test_a_card_that_was_decided(tmp_path: Path, surface: str) -> None:
    model = FakeModel(calls("edit", arguments=EDIT), "it was denied")
    async with scenario(tmp_path, model, settings=CAREFUL) as world, surface_of(world, surface) as allows:
        approval = await asked(world)
        await world.ada.decides(approval.id, allow=False)
        assert await allows(approval) == "This was already decided: it was denied."
        await world.ada.sees("it was denied")
        assert note(world).read_text() == "one"


@SURFACES
async def test_a_card_whose_file_changed(tmp_path: Path, surface: str) -> None:
    model = FakeModel(calls("edit", arguments=EDIT), "it had changed")
    async with scenario(tmp_path, model, settings=CAREFUL) as world, surface_of(world, surface) as allows:
        approval = await asked(world)
        note(world).write_text("one and more")
        await allows(approval)
        await world.ada.sees("it had changed")
        assert await result(world) == CHANGED
        assert note(world).read_text() == "one and more"


@SURFACES
async def test_a_card_whose_tool_is_gone(tmp_path: Path, surface: str) -> None:
    model = FakeModel(calls("echo", arguments='{"text": "x"}'), "it is gone")
    async with (
        scenario(tmp_path, model, settings=CAREFUL, tools=(echo,), changes=("tools",)) as world,
        surface_of(world, surface) as allows,
    ):
        approval = await asked(world)
        world.app[Registry].remove("echo")
        await allows(approval)
        await world.ada.sees("it is gone")
        assert (await result(world)).startswith("There is no tool named 'echo'. Tools: ")
