"""Calls that were running when the server ended. Harmless ones run again, and the model is told about the others."""

import asyncio
from pathlib import Path

import pytest
from tests.scenarios.kit import calls

from shoal.kernel.events import INTERRUPTED, ToolFinished
from shoal.kernel.traits import Traits
from shoal.testing.model import FakeModel
from shoal.testing.scenario import World, scenario
from shoal.tools.functions import tool

AT_ONCE = {"engine": {"drain_seconds": 0.0}}


async def results(world: World) -> list[str]:
    return [event.data.text for event in await world.journal() if isinstance(event.data, ToolFinished)]


@pytest.mark.parametrize("names", [("look",), ("look", "look")])
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
async def test_an_interrupted_call_is_repeated_only_if_its_tool_allows_it(
    tmp_path: Path, names: tuple[str, ...], idempotent: bool, read_only: bool
) -> None:
    began, ended, hangs = list[str](), list[str](), True
    entered = asyncio.Event()

    @tool(Traits(effect="read" if read_only else "unknown", idempotent=idempotent, origin="own"))
    async def look() -> str:
        """Look."""
        began.append("look")
        if hangs:
            entered.set()
            await asyncio.Event().wait()
        ended.append("look")
        return "seen"

    async with scenario(tmp_path, FakeModel(calls(*names)), tools=[look], settings=AT_ONCE) as world:
        await world.ada.says("look around")
        await entered.wait()
        await world.happens(world.ada.thread, "tool_started", len(names) if read_only else 1)
    started = len(began)
    assert started == (len(names) if read_only else 1)
    hangs = False
    async with scenario(tmp_path, FakeModel("done"), tools=[look], settings=AT_ONCE) as world:
        await world.ada.sees("done")
        again = len(names) if idempotent else len(names) - started
        assert len(ended) == again
        expected = ["seen" if idempotent or number >= started else INTERRUPTED for number in range(len(names))]
        assert await results(world) == expected
