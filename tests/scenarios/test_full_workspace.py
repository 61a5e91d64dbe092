"""A full workspace: Shoal ends the command that fills it, and later commands can free space."""

import re
from pathlib import Path

from tests.scenarios.test_processes import starts
from tests.scenarios.test_taint import call

from shoal.kernel.events import ToolFinished
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario

SETTINGS = {"sandbox": {"kind": "host", "workspace_files_max": 50}}
FILL = "echo x > kept; mkdir d; for i in {1..100}; do : > d/$i; done; sleep 600"


async def test_the_model_is_informed_of_a_full_workspace_and_can_make_room(tmp_path: Path) -> None:
    model = FakeModel(
        call("bash", command=FILL),
        call("write", path="more.md", content="x"),
        call("edit", path="kept", old_string="x", new_string="y"),
        call("bash", command="echo x > more.md; rm -r d"),
        call("write", path="more.md", content="x"),
        "tidy",
    )
    async with scenario(tmp_path, model, settings=SETTINGS) as world:
        await world.ada.says("fill it")
        await world.ada.sees("tidy")
        ends = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
    for end, how in zip(ends, (r"Shoal stopped the command and all its processes\. ", "", ""), strict=False):
        assert end.is_error
        assert re.fullmatch(
            how + r"/workspace contains \d+ files and folders, more than the limit of 50\. Remove some\.", end.text
        )
    assert "Files cannot grow until the problem is fixed" in ends[3].text
    assert not ends[4].is_error
    assert (tmp_path / "agents" / "main" / "workspace" / "more.md").read_text() == "x"


async def test_a_process_that_fills_the_workspace_is_ended_and_its_hook_says_why(tmp_path: Path) -> None:
    model = FakeModel(starts(FILL, {"on": "exit"}), "It runs.", "I tidy up.")
    async with scenario(tmp_path, model, settings=SETTINGS) as world:
        await world.ada.says("start it")
        await world.ada.sees("I tidy up.")
    assert "was killed" in model.requests[-1].messages[-1].text
    assert "more than the limit of 50" in model.requests[-1].messages[-1].text
