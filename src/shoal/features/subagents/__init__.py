"""Subagents: agents give tasks to other agents, each in a thread of its own.

Reporting a thread's result to its caller is in the core, because it is part of the turn's last transaction
(`kernel.agents.report_of`, `store.inbox`).
"""

from shoal.feature import Feature

FEATURE = Feature(
    name="subagents",
    settings={"subagents": "settings:SubagentsSettings"},
    attach="children:attach",
    tools="tools:subagent_tools",
)
