"""Shoal's built-in tools and the tools of packages/shoal-hardware."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from shoal.agents.toolbox import built_in_traits
from shoal.kernel.home import Home
from shoal.kernel.ports import Tool, ToolContext
from shoal.testing.contracts.tool import tool_context
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.tools.registry import Registry

TRAITS = built_in_traits()
for entry in entry_points(group="shoal.tools.hardware"):
    TRAITS.add(entry.name, cast("Tool", entry.load()).traits)


async def all_tools(folder: Path) -> Registry:
    """Return the tools of a Shoal instance that ran in `folder` and has stopped. Their calls can be prepared
    but not run.
    """
    harbour = Home(folder).agent("harbour")
    harbour.mkdir(parents=True)
    (harbour / "agent.toml").touch()
    async with scenario(folder, FakeModel("x"), settings={"tools": {"hardware": True}}) as world:
        return world.app[Registry]


def example_context(folder: Path) -> ToolContext:
    context = tool_context(folder)
    (context.agent.workspace / "notes.txt").write_text("one\ntwo\nthree\n")
    (context.agent.home / "docs/tides.md").write_text("High at noon.\n")
    skill = context.agent.home / "skills/tide-table/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: tide-table\ndescription: Looks up tides.\n---\nRead the table.\n")
    return context
