"""The app on Google Chat: commands, responses to them, and files."""

from pathlib import Path

import pytest
from tests.scenarios.kit import calls
from tests.scenarios.scene import playing
from tests.scenarios.stands import GoogleChatStand

from shoal.testing.model import FakeModel, Gate, Reply

pytestmark = pytest.mark.parametrize("stand", ["google_chat"], indirect=True)


@pytest.mark.parametrize("by", ["slash", "menu"])
async def test_commands_are_executed(tmp_path: Path, stand: GoogleChatStand, by: str) -> None:
    model = FakeModel(Reply("One, two, three, four, five", gate=Gate(), gate_at=2))
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("count")
        await scene.until(lambda: bool(stand.previews()) or None)
        if by == "slash":
            await scene.ada.says("/stop")
        else:
            await stand.fake.chooses(stand.direct, 4)
        await scene.ada.sees("Stopped")


async def test_an_answer_to_a_command_is_shown_only_to_its_author(tmp_path: Path, stand: GoogleChatStand) -> None:
    async with playing(stand, tmp_path, FakeModel("never")) as scene:
        await scene.ada.says("/help", where=stand.harbour)
        await scene.ada.sees("/status", where=stand.harbour)
    (told,) = stand.fake.said(stand.harbour)
    assert told.viewer == f"users/{stand.ada}"


async def test_incoming_files_are_received_and_outgoing_ones_named(tmp_path: Path, stand: GoogleChatStand) -> None:
    writes = calls("bash", arguments='{"command": "echo high > tides.txt"}')
    model = FakeModel(writes, calls("upload", arguments='{"path": "tides.txt"}'), "Done.")
    async with playing(stand, tmp_path, model) as scene:
        await stand.fake.sends_file(stand.direct, "question.txt", b"When is high tide?\n")
        await scene.ada.sees("Done.")
        await scene.ada.sees("Google Chat does not accept files")
    assert "When is high tide?" in str(model.requests[0].messages[-1])
