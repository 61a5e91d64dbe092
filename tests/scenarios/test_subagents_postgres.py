"""Subagents on PostgreSQL, where another worker may take over parts of the work."""

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.postgres import database
from tests.scenarios.delegation import cast, children_of, delegates, results

from shoal.testing.scenario import scenario

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("postgres")]


@pytest.fixture
def settings() -> Generator[dict[str, object]]:
    with database() as url:
        yield {"database": {"url": "postgresql:///?" + "&".join(url.split())}}


async def test_foreground_and_background_subagents_report_to_their_parent(
    tmp_path: Path, settings: dict[str, object]
) -> None:
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
