"""Agents: who answers in a thread, with which model, permissions and limits."""

from pathlib import Path
from typing import Annotated

import msgspec

from shoal.domain.ids import ThreadId
from shoal.domain.messages import Caller


class AgentBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent's own ceilings, in US dollars and tokens (in and out), beside those of [budget]; 0 is none."""

    usd_per_turn: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    usd_per_day: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tokens_per_turn: Annotated[int, msgspec.Meta(ge=0)] = 0
    tokens_per_day: Annotated[int, msgspec.Meta(ge=0)] = 0


class AgentSpec(msgspec.Struct, frozen=True):
    """A named configuration as one turn uses it; read fresh at a turn's start, so an edit counts from the next.

    `home` holds AGENTS.md and its like and `docs/`; `workspace` is where the tools work.
    An empty `model` means the default, an empty `tools` every registered one. After `idle_minutes` (0: never) without
    anything happening, its conversations are saved and begun anew.
    """

    name: str
    home: Path
    workspace: Path
    model: str
    profile: str
    system_prompt: str = ""
    tools: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    max_output_tokens: int = 4096
    temperature: float | None = None
    restrict_to_workspace: bool = True
    taint: bool = True
    idle_minutes: float = 0.0
    budget: AgentBudget = AgentBudget()


GUESTS = "guests"
"""The folder of an agent that has the workspaces of channels which strangers may read."""
NO_TOOLS = ("-",)
"""A choice of tools that has none: an empty one is all."""


def within(agent: AgentSpec, caller: Caller) -> AgentSpec:
    """The agent for a turn that another one called: with no tool that one lacks, and held up as that one is."""
    tools = agent.tools
    if caller.tools is not None:
        tools = tuple(name for name in tools or caller.tools if name in caller.tools) or NO_TOOLS
    taint = agent.taint or caller.gates
    if tools == agent.tools and taint == agent.taint:
        return agent
    return msgspec.structs.replace(agent, tools=tools, taint=taint)


def as_guest(agent: AgentSpec, thread: ThreadId) -> AgentSpec:
    """The agent for a conversation that strangers may read: it works in a folder of that channel's own."""
    platform, channel, _ = thread.split(":")
    return msgspec.structs.replace(agent, workspace=agent.home / GUESTS / platform / channel)


class TurnLimits(msgspec.Struct, frozen=True):
    """The bounds of one turn; see [turns] in the configuration, and [model] and [triggers] for outages."""

    steps_max: int = 25
    tool_errors_in_a_row_max: int = 5
    steer: str = "skip"
    timeout_seconds: float = 3600.0
    model_attempts_max: int = 4
    retry_base_seconds: float = 1.0
    retry_after_seconds_max: float = 60.0
    outage_seconds: float = 3600.0
    trigger_outage_seconds: float = 86_400.0
    default_response: str = "I have nothing to add. Tell me if you expected something else."
