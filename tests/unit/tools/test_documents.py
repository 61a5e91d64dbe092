"""docs/tools.md names every tool, and says truly what each profile decides."""

import re
from pathlib import Path

import pytest
from tests.known_tools import TRAITS
from tests.tidy.source import ROOT

from shoal.kernel.permissions import Action
from shoal.permissions.actions import shell_actions
from shoal.permissions.effects import Situation
from shoal.permissions.profiles import Profiles, decide_all
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.tools.registry import Registry

PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
SEALED = Situation(isolated=True, sealed=True, covered=True, trusted=True)
PROFILES = ("open", "standard", "guarded", "locked")
ROW = re.compile(
    r"^\|(?: `(?P<tool>\w+)` \|)? `(?P<action>tool:.*)` \| (\w+) \| (\w+) \| (\w+) \| (\w+) \|$", re.MULTILINE
)
ROWS = [(row["tool"] or "", row["action"], row.groups()[2:]) for row in ROW.finditer(PAGE)]


async def test_every_tool_has_a_line(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("x"), settings={"tools": {"hardware": True}}) as world:
        registered = set(world.app[Registry].names())
    told = {tool for tool, _, _ in ROWS if tool}
    assert registered - told == set()
    assert told - registered == set()


@pytest.mark.parametrize(("tool", "action", "decisions"), ROWS)
def test_the_decisions_are_as_told(tool: str, action: str, decisions: tuple[str, ...]) -> None:
    assert action.startswith(f"tool:{tool}")
    actions = (Action(action),)
    if tool == "bash":
        actions = shell_actions("bash", action.removeprefix("tool:bash:"), cwd=Path("/workspace"))
    profiles = Profiles(TRAITS)
    assert tuple(decide_all(profiles.get(name), actions, SEALED)[0] for name in PROFILES) == decisions
