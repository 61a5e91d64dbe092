"""Subagents on PostgreSQL, where other workers may take each part of the work."""

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.postgres import database
from tests.scenarios.delegation import cast, children_of, delegates, results
from tests.scenarios.kit import Door, calls

from shoal.kernel.events import TurnFinished
from shoal.testing.scenario import scenario

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("postgres")]


@pytest.fixture
def settings() -> Generator[dict[str, object]]:
    """A database of its own."""
    with database() as url:
        yield {"database": {"url": "postgresql:///?" + "&".join(url.split())}}


async def test_waiting_spawning_and_being_told(tmp_path: Path, settings: dict[str, object]) -> None:
    model = cast(
        plan=[delegates("subagent", "red one", "blue one"), delegates("spawn", "dive"), "done"],
        red=["is red"],
        blue=["is blue"],
        dive=["pearls"],
    )
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("plan it")
        await world.ada.sees("done")
        found = await results(world)
        assert sorted(result.text.split("\n")[1] for result in found[:2]) == ["is blue", "is red"]
        note = await world.happens(world.ada.thread, "user_message", 2)
        assert "pearls" in note.data.text  # pyrefly: ignore[missing-attribute]
        assert len(await children_of(world)) == 3


async def test_stop_ends_the_whole_tree(tmp_path: Path, settings: dict[str, object]) -> None:
    door = Door()
    model = cast(plan=[delegates("subagent", "middle")], middle=[delegates("subagent", "leaf")], leaf=[calls("wait")])
    async with scenario(tmp_path, model, tools=[door.tool()], settings=settings) as world:
        await world.ada.says("plan it")
        await door.entered.wait()
        await world.ada.stops()
        (middle,) = await children_of(world)
        (leaf,) = await children_of(world, middle)
        for thread in (world.ada.thread, middle, leaf):
            ended = (await world.happens(thread, "turn_finished")).data
            assert isinstance(ended, TurnFinished)
            assert ended.outcome == "aborted"
