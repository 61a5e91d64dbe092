"""docs/commands.md describes every chat command, and no other."""

import re
from pathlib import Path

from shoal.kernel.commands import WELCOME
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario
from shoal.threads.commands import CommandRouter
from tests.tidy.source import ROOT


async def test_the_page_describes_the_commands(tmp_path: Path) -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`/(\w+)", page))
    async with scenario(tmp_path, FakeModel("x")) as world:
        commands = {spec.name for spec in world.app[CommandRouter].table}
    assert described == {*commands, WELCOME}
