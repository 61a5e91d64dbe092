"""The tools `remember` and `note_today`."""

import asyncio
import json
from pathlib import Path

import pytest

from shoal.features.memory.files import MemoryEdit, apply_edit
from shoal.features.memory.tools import note_tool, remember_tool
from shoal.kernel.errors import ToolError
from shoal.kernel.memory_files import memory_path, note_path
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.testing.clock import START
from shoal.testing.contracts.tool import THREAD, tool_context

WRITERS = 30


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    """A tool context in an empty home on Monday, 5 January 2026, 9:00 UTC."""
    return tool_context(tmp_path)


async def change(edit: MemoryEdit) -> bool | None:
    return await asyncio.to_thread(apply_edit, edit) or None


remember, note_today = remember_tool(change), note_tool(change)


def prepared(tool: Tool, context: ToolContext, **arguments: object) -> Invocation:
    return tool.prepare(json.dumps(arguments), context)


async def run(tool: Tool, context: ToolContext, **arguments: object) -> ToolOutput:
    return await prepared(tool, context, **arguments).run()


async def test_remember_adds_a_line_to_the_scope(context: ToolContext) -> None:
    for scope in ("global", "platform", "channel"):
        await run(remember, context, text=f" likes\n{scope} tea ", scope=scope)
        assert memory_path(context.home, scope, THREAD).read_text() == f"- likes\n  {scope} tea\n"
    assert prepared(remember, context, text="a\nb").actions == (Action("tool:remember:channel a b"),)


async def test_a_known_entry_is_not_added_again(context: ToolContext) -> None:
    await run(remember, context, text="Likes tea.")
    assert "already contains this" in (await run(remember, context, text="likes  tea")).text
    assert memory_path(context.home, "channel", THREAD).read_text() == "- Likes tea.\n"


async def test_concurrent_writers_lose_no_line(context: ToolContext) -> None:
    await asyncio.gather(*(run(remember, context, text=f"fact {number}") for number in range(WRITERS)))
    lines = memory_path(context.home, "channel", THREAD).read_text().splitlines()
    assert sorted(lines) == sorted(f"- fact {number}" for number in range(WRITERS))


async def test_empty_and_oversized_entries_are_refused(context: ToolContext) -> None:
    for text in ("", " \n ", "x" * 5000):
        with pytest.raises(ToolError):
            prepared(remember, context, text=text)


async def test_a_note_is_filed_under_the_clocks_day(context: ToolContext) -> None:
    for _ in range(2):
        await run(note_today, context, text="met at noon")
    path = note_path(context.home, START.date())
    assert path.read_text() == "- 09:00 met at noon\n- 09:00 met at noon\n"


async def test_a_write_failure_is_reported(context: ToolContext) -> None:
    memory_path(context.home, "global", THREAD).mkdir(parents=True)
    with pytest.raises(ToolError, match="Shoal could not write the memory file"):
        await run(remember, context, text="x", scope="global")
