"""The app on Teams: older cards and teams."""

from pathlib import Path

import pytest
from tests.scenarios.kit import calls
from tests.scenarios.scene import playing
from tests.scenarios.stands import TeamsStand

from shoal.agents.registry import AgentRegistry
from shoal.testing.model import FakeModel
from shoal.testing.platforms.teams import TENANT

pytestmark = pytest.mark.parametrize("stand", ["teams"], indirect=True)


async def test_a_client_with_submit_actions_can_approve(tmp_path: Path, stand: TeamsStand) -> None:
    makes = calls("bash", arguments='{"command": "echo x > made"}')
    async with playing(stand, tmp_path, FakeModel(makes, "It is made."), profile="standard") as scene:
        await scene.ada.says("go")
        card = await scene.ada.sees("echo x > made")
        await stand.fake.clicks(card.id, "Allow once", submits=True)
        await scene.ada.sees("It is made.")
        assert (scene.app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"


async def test_team_settings_apply_only_in_their_team(tmp_path: Path, stand: TeamsStand) -> None:
    pier, private = "19:pier@thread.tacv2", f"a:{stand.ada}"
    stand.fake.add(pier, "channel")
    async with playing(stand, tmp_path, FakeModel()) as scene:
        data = {"tenant": {"id": TENANT}, "team": {"id": "19:fleet@thread.tacv2"}}
        await stand.fake.says(stand.harbour, "/settings permissions locked", named=True, channelData=data)
        await scene.ada.sees("permissions is now locked in teams@19:fleet@thread.tacv2", where=private)
        await stand.fake.says(pier, "/settings", named=True, channelData=data)
        await scene.ada.sees("in this server: permissions locked", where=private)
        await scene.ada.says("/settings")
        await scene.ada.sees("the permissions open")
