"""Run an agent's cases before a person is asked to approve a change to the agent."""

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agents.lifecycle import EditCheck
from shoal.agents.versions import AgentVersions
from shoal.features.evals.settings import CASES
from shoal.kernel.agents import AgentSpec
from shoal.kernel.permissions import Asker

if TYPE_CHECKING:
    from shoal.agents.lifecycle import SystemChange
    from shoal.services import Services


def attach(services: "Services") -> None:
    async def before_edit(agent: AgentSpec, folder: Path, asker: Asker, change: "SystemChange | None") -> str:
        from shoal.features.evals.checks import CaseChecks

        return await services[CaseChecks].before_edit(agent, folder, asker, change)

    services[AgentVersions].edit_checks.append(EditCheck(_has_cases, before_edit))


def _has_cases(folder: Path) -> bool:
    return (folder / CASES).is_dir()
