"""Subagents: an agent gives tasks to others, each with a thread of its own.

How a thread's work ends for the one that called it stays in the core: it is part of the turn's last transaction
(`kernel.agents.report_of`, `store.inbox`).
"""

from shoal.feature import Feature

FEATURE = Feature(
    name="subagents",
    settings={"subagents": "settings:SubagentsSettings"},
    attach="children:attach",
    tools="tools:subagent_tools",
)
