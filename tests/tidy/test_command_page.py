"""docs/commands.md describes every chat command, and each command keeps its number."""

import re
from pathlib import Path

from shoal.kernel.commands import WELCOME
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.threads.commands import CommandRouter
from tests.tidy.source import ROOT

NUMBERS = {
    1: "help", 2: "new", 3: "status", 4: "stop", 5: "retry", 6: "fork", 7: "undo", 8: "steer", 9: "approve",
    10: "deny", 11: "context", 12: "thread", 13: "tasks", 14: "remind", 15: "model", 16: "voice", 17: "agent",
    18: "settings", 19: "memory", 20: "timezone", 21: "mcp",
}  # fmt: skip
"""Users have entered these numbers in Google Chat's console. Add new commands at the end."""


async def test_the_page_describes_the_commands(tmp_path: Path) -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`/(\w+)", page))
    async with scenario(tmp_path, FakeModel("x")) as world:
        table = world.app[CommandRouter].table
        assert described == {*(spec.name for spec in table), WELCOME}
        assert {spec.number: spec.name for spec in table} == NUMBERS
