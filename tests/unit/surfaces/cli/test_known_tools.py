"""The tool names that are known without starting Shoal match the tools of a running Shoal."""

from pathlib import Path

from shoal.kernel.live_config import LiveConfig
from shoal.surfaces.cli.known_tools import tool_names
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.tools.registry import Registry


async def test_the_known_tools_match_the_running_ones(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(), settings={"tools": {"hardware": True}}) as world:
        assert sorted(tool_names(world.app[LiveConfig].current)) == list(world.app[Registry].names())
