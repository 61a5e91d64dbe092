"""The names of tools that are known without starting a Shoal are those that a running one has."""

from pathlib import Path

from shoal.surfaces.cli.offline import tool_names
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario


async def test_what_is_known_beforehand_is_what_runs(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), settings={"tools": {"hardware": True}}) as world:
        assert sorted(tool_names(world.app.config)) == list(world.app.tools.names())
