"""The app on Matrix: unconfirmed posts and invitations."""

from pathlib import Path

import pytest
from tests.scenarios.scene import playing
from tests.scenarios.stands import MatrixStand

from shoal.testing.model import FakeModel, Seen
from shoal.testing.platforms.matrix_world import BOT

pytestmark = pytest.mark.parametrize("stand", ["matrix"], indirect=True)
STRANGER = "@mallory:harbour.example"


def tides(seen: Seen) -> str:
    return "It is high." if "then" in seen.user_text else "The tide is low."


async def test_an_unconfirmed_post_is_found_after_its_transaction_expires(tmp_path: Path, stand: MatrixStand) -> None:
    async with playing(stand, tmp_path, FakeModel(script=tides)) as scene:
        stand.fake.server.mute = lambda called: "/send/m.room.message/" in called.path
        await scene.ada.says("how is the tide?")
        await scene.until(lambda: stand.fake.said(stand.direct) or None)
    stand.fake.server.mute = lambda _: False
    stand.fake.world.transactions.clear()
    await stand.clock.advance(6 * 3600)
    async with playing(stand, tmp_path, FakeModel(script=tides)) as scene:
        await scene.ada.says("and then?")
        await scene.ada.sees("It is high.")
        assert scene.texts() == ["The tide is low.", "It is high."]


async def test_an_untrusted_direct_invitation_gets_a_code_and_a_group_invitation_is_declined(
    tmp_path: Path, stand: MatrixStand
) -> None:
    async with playing(stand, tmp_path, FakeModel()) as scene:
        room = await stand.fake.invites(user=STRANGER, direct=True)
        code = await scene.person(STRANGER, room).sees("pair")
        declined = await stand.fake.invites(user=STRANGER, name="many")
        members = stand.fake.world.rooms[declined].members
        await scene.until(lambda: members[BOT] == "leave" or None)
    assert "@mallory" not in code.text
