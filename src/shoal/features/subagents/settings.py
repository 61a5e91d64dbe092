"""[subagents]."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class SubagentsSettings(Section, frozen=True, kw_only=True):
    """Limits of tasks for subagents and other agents."""

    depth_max: Annotated[int, Meta(ge=0, le=10)] = 3
    """Nesting depth of calls. 0 allows none."""
    running_max: Annotated[int, Meta(ge=1, le=100)] = 5
    """Concurrent subagents of one conversation."""
    steps_max: Annotated[int, Meta(ge=1)] = 25
    """Model calls per subagent, at most turns.steps_max."""
