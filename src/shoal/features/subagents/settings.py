"""Settings in [subagents]."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class SubagentsSettings(Section, frozen=True, kw_only=True):
    """Limits for subagents and for questions to other agents."""

    depth_max: Annotated[int, Meta(ge=0, le=10)] = 3
    """Maximum nesting depth of subagents. 0 allows no subagents."""
    running_max: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of subagents that run concurrently in one conversation."""
    steps_max: Annotated[int, Meta(ge=1)] = 25
    """Maximum number of model calls per subagent. turns.steps_max also applies."""
