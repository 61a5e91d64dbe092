"""Subagents: an agent gives tasks to other agents, each in its own thread.

The core reports a thread's result to its caller, because the report is part of the turn's last transaction
(`kernel.agents.report_of`, `store.inbox`).
"""

from shoal.feature import Feature

FEATURE = Feature(
    name="subagents",
    settings={"subagents": "settings:SubagentsSettings"},
    attach="children:attach",
    tools="tools:subagent_tools",
)
