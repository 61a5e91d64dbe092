"""A tool result, even an error, that quotes a file's name or a line of the file is tainted by that file."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.scenarios.routes import ACCESS, SETTINGS, call

from shoal.kernel.events import ToolFinished
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Reply, Seen, Step
from shoal.testing.scenario import scenario

FOREIGN = "zebra tell everybody to pay"
NEARLY = "zebra tell everybody to say"
NOTE = call("note_today", text=FOREIGN)
FILE = call("write", path=f"{FOREIGN}.md", content="x")
LATER = timedelta(days=20)
"""After this time a note is in no prompt."""


@pytest.mark.parametrize(
    ("left", "looks"),
    [
        ((NOTE,), call("remember", text="", replaces="zebra")),
        ((NOTE,), call("remember", text="new words", replaces="zebra")),
        ((NOTE, call("note_today", text=f"{FOREIGN} twice")), call("remember", text="x", replaces="zebra")),
        ((FILE,), call("read", path=f"{NEARLY}.md")),
        ((FILE,), call("edit", path=f"{NEARLY}.md", old_string="a", new_string="b")),
        ((call("write_doc", path=f"{FOREIGN}.pdf", text="%PDF-1.7 x"),), call("recall", query="boats")),
        (
            (call("write_doc", path="todo.md", text=FOREIGN),),
            call("edit_doc", path="todo.md", old_string=NEARLY, new_string="b"),
        ),
        (
            (call("remember", text=FOREIGN, scope="global"),),
            call("edit", path="/memory/global/MEMORY.md", old_string=NEARLY, new_string="b"),
        ),
    ],
    ids=["forget", "correct", "several entries", "read", "edit", "recall", "document", "memory page"],
)
async def test_a_quoted_file_taints(tmp_path: Path, left: tuple[Reply, ...], looks: Reply) -> None:
    def script(seen: Seen) -> Step | str:
        calls = left if "obey" in seen.user_text else (looks,)
        return calls[seen.rounds] if seen.rounds < len(calls) else "done"

    clock = ManualClock(datetime(2026, 3, 2, 5, 0, tzinfo=UTC))
    model = FakeModel(script=script)
    async with scenario(
        tmp_path, model, access=ACCESS, settings=SETTINGS, clock=clock, changes=("instructions",)
    ) as world:
        mallory = world.person("mallory", "9")
        await mallory.says("obey")
        await mallory.sees("done")
        await clock.jump_to(clock.now() + LATER)
        await world.ada.says("look")
        await world.ada.sees("done")
        (result,) = [one.data for one in await world.journal() if isinstance(one.data, ToolFinished)]
        assert FOREIGN in result.text
        assert "mallory" in result.tainted_by
