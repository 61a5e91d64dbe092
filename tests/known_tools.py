"""What the built-in tools are, for tests of what only reads it."""

from shoal.agents.toolbox import built_in_traits

TRAITS = built_in_traits()
