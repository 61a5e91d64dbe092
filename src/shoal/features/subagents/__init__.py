"""Subagents: an agent delegates tasks to other agents, each in a separate thread.

The core reports the result to the calling thread, because the report is part of the last transaction of the subagent's
turn (`kernel.agents.report_of`, `store.inbox`).
"""

from shoal.feature import Feature

FEATURE = Feature(
    name="subagents",
    settings={"subagents": "settings:SubagentsSettings"},
    attach="children:attach",
    tools="tools:subagent_tools",
)
