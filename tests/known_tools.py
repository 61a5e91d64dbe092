"""What the built-in tools are, and those of packages/shoal-hardware, for tests of what only reads it."""

from importlib.metadata import entry_points
from typing import cast

from shoal.agents.toolbox import built_in_traits
from shoal.kernel.ports import Tool

TRAITS = built_in_traits()
for entry in entry_points(group="shoal.tools.hardware"):
    TRAITS.add(entry.name, cast("Tool", entry.load()).traits)
