"""The file tools: output, effects and errors."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from PIL import Image as Picture

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.testing.contracts.tool import tool_context
from shoal.tools.builtin.files import (
    CREATE_FILE,
    VIEW,
    edit_tool,
    list_directory,
    read_tool,
    str_replace_tool,
    write_tool,
)
from shoal.tools.locks import PathLocks

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A tiny picture."""
THREADS = 20
FILES = 5


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return tool_context(tmp_path)


@pytest.fixture
def locks() -> PathLocks:
    return PathLocks()


def prepared(tool: Tool, context: ToolContext, **arguments: object) -> Invocation:
    return tool.prepare(json.dumps(arguments), context)


async def run(tool: Tool, context: ToolContext, **arguments: object) -> ToolOutput:
    return await prepared(tool, context, **arguments).run()


async def test_the_read_tool_numbers_the_lines(context: ToolContext) -> None:
    (context.agent.workspace / "f").write_text("one\n\nthree\n")
    assert (await run(read_tool(), context, path="f")).text == "     1\tone\n     2\t\n     3\tthree"


async def test_the_read_tool_shows_a_part_and_says_how_to_continue(context: ToolContext) -> None:
    (context.agent.workspace / "f").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    output = await run(read_tool(VIEW), context, path="f", offset=3, limit=2)
    assert output.text == "     3\tline 3\n     4\tline 4\n[Lines 3 to 4 of 10. Continue with offset 5.]"
    assert (await run(read_tool(), context, path="f", offset=10)).text.endswith("[Lines 10 to 10 of 10.]")
    with pytest.raises(ToolError, match="has 10 lines, so line 11 does not exist"):
        await run(read_tool(), context, path="f", offset=11)


async def test_the_read_tool_reports_empty_binary_long_and_crlf_files(context: ToolContext) -> None:
    folder = context.agent.workspace
    (folder / "empty").touch()
    (folder / "binary").write_bytes(b"\x7fELF\0\0")
    (folder / "crlf").write_bytes(b"one\r\ntwo\r\n")
    (folder / "wide").write_text("x" * 2500)
    assert (await run(read_tool(), context, path="empty")).text == "[/workspace/empty is empty.]"
    with pytest.raises(ToolError, match=r"is binary \(6 bytes\)"):
        await run(read_tool(), context, path="binary")
    assert "CRLF" in (await run(read_tool(), context, path="crlf")).text
    assert (await run(read_tool(), context, path="wide")).text.endswith("[… characters not shown in this line: 500]")


async def test_an_image_is_passed_on_unchanged(context: ToolContext) -> None:
    path = context.agent.workspace / "picture.png"
    path.write_bytes(PNG)
    output = await run(read_tool(), context, path="picture.png")
    path.write_bytes(b"something else")
    assert [image.media_type for image in output.images] == ["image/png"]
    kept = Path(output.images[0].path)
    assert kept.read_bytes() == PNG
    assert not any(kept.is_relative_to(mount.host) for mount in context.mounts)


async def test_a_damaged_image_is_refused(context: ToolContext) -> None:
    (context.agent.workspace / "picture.png").write_bytes(PNG[:40])
    with pytest.raises(ToolError, match=r"Cannot show .*picture\.png: it is damaged"):
        await run(read_tool(), context, path="picture.png")


async def test_a_wide_image_is_shrunk(context: ToolContext) -> None:
    Picture.new("RGB", (2000, 10)).save(context.agent.workspace / "picture.png")
    output = await run(read_tool(), context, path="picture.png")
    with Picture.open(output.images[0].path) as shown:
        assert shown.size[0] == 1568
    assert [image.media_type for image in output.images] == ["image/jpeg"]


async def test_the_write_tool_shows_and_writes_the_content(context: ToolContext, locks: PathLocks) -> None:
    call = prepared(write_tool(locks), context, path="a/b.txt", content="text\n")
    assert [action.text for action in call.actions] == ["tool:write:/workspace/a/b.txt"]
    assert call.shown == "write /workspace/a/b.txt (5 bytes, new file)\n\ntext\n"
    assert (await call.run()).text == "Wrote /workspace/a/b.txt: 5 bytes, 1 line."
    assert (context.agent.workspace / "a/b.txt").read_text() == "text\n"
    again = prepared(write_tool(locks, CREATE_FILE), context, path="a/b.txt", content="")
    assert "replaces 5 bytes" in again.shown
    assert again.canonical != call.canonical


async def test_the_write_tool_refuses_forbidden_paths(context: ToolContext, locks: PathLocks) -> None:
    for path in ("/skills/x", "/etc/x", "../x", str(context.home.token_file)):
        with pytest.raises(ToolError):
            prepared(write_tool(locks), context, path=path, content="x")


async def test_the_action_names_the_link_target(context: ToolContext, locks: PathLocks) -> None:
    (context.agent.workspace / "secrets").mkdir()
    (context.agent.workspace / "harmless").symlink_to("secrets")
    call = prepared(write_tool(locks), context, path="harmless/key", content="x")
    assert call.actions[0].text == "tool:write:/workspace/secrets/key"


async def test_the_list_tool_shows_kinds_and_sizes(context: ToolContext) -> None:
    (context.agent.workspace / "b").mkdir()
    (context.agent.workspace / "a.txt").write_text("x" * 1234)
    assert (await run(list_directory, context)).text == "a.txt\t1,234 bytes\nb/"
    assert (await run(list_directory, context, path="b")).text == "[/workspace/b is empty.]"
    with pytest.raises(ToolError, match="does not exist"):
        await run(list_directory, context, path="c")


async def test_the_edit_tool_shows_the_diff_and_applies_it(context: ToolContext, locks: PathLocks) -> None:
    path = context.agent.workspace / "f"
    path.write_text("one\ntwo\nthree\n")
    call = prepared(edit_tool(locks), context, path="f", old_string="two", new_string="2")
    assert (
        call.shown
        == "edit /workspace/f\n\n--- /workspace/f\n+++ /workspace/f\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )
    assert path.read_text() == "one\ntwo\nthree\n"
    assert "+2" in (await call.run()).text
    assert path.read_text() == "one\n2\nthree\n"


async def test_an_edit_of_a_changed_file_is_refused(context: ToolContext, locks: PathLocks) -> None:
    path = context.agent.workspace / "f"
    path.write_text("one\ntwo\nthree\n")
    call = prepared(str_replace_tool(locks), context, path="f", old_str="two", new_str="2")
    path.write_text("zero\ntwo\nthree\n")
    with pytest.raises(ToolError, match="has changed since"):
        await call.run()
    assert path.read_text() == "zero\ntwo\nthree\n"


async def test_an_edit_still_applies_when_only_its_lines_have_moved(context: ToolContext, locks: PathLocks) -> None:
    path = context.agent.workspace / "f"
    text = "a\nb\nc\ntwo\nd\ne\nf\ng\n"
    path.write_text(text)
    call = prepared(edit_tool(locks), context, path="f", old_string="two", new_string="2")
    path.write_text(f"new first line\n{text}new last line\n")
    await call.run()
    assert path.read_text() == f"new first line\n{text}new last line\n".replace("two", "2")


async def test_an_approved_edit_applies_only_to_the_displayed_content(context: ToolContext, locks: PathLocks) -> None:
    path = context.agent.workspace / "f"
    path.write_text("one two\n")
    arguments = {"path": "f", "old_string": "two", "new_string": "2"}
    before = prepared(edit_tool(locks), context, **arguments).canonical
    assert prepared(edit_tool(locks), context, **arguments).canonical == before
    path.write_text("one two three\n")
    assert prepared(edit_tool(locks), context, **arguments).canonical != before


async def test_no_content_is_revealed_before_the_call_is_allowed(context: ToolContext, locks: PathLocks) -> None:
    (context.agent.workspace / "f").write_text("the secret word\n")
    call = prepared(edit_tool(locks), context, path="f", old_string="the secret ward", new_string="x")
    assert "word" not in call.shown + call.canonical
    with pytest.raises(ToolError, match="nearest line is 1: the secret word"):
        await call.run()


async def test_an_edit_of_binary_content_is_refused(context: ToolContext, locks: PathLocks) -> None:
    (context.agent.workspace / "f").write_bytes(b"\x7fELF\0\0 one")
    with pytest.raises(ToolError, match="binary"):
        await run(edit_tool(locks), context, path="f", old_string="one", new_string="1")


async def test_a_redaction_placeholder_never_overwrites_a_secret(context: ToolContext, locks: PathLocks) -> None:
    path = context.mounts[0].host / ".env"
    path.write_text("KEY=canary-4711\nMODE=dev\n")
    shown = "KEY=[redacted:secret]\nMODE=prod\n"
    with pytest.raises(ToolError, match="is a placeholder for a hidden secret"):
        await run(write_tool(locks), context, path=".env", content=shown)
    edit = edit_tool(locks)
    with pytest.raises(ToolError, match="Edit the other lines"):
        await run(edit, context, path=".env", old_string=shown.replace("prod", "dev"), new_string=shown)
    assert path.read_text() == "KEY=canary-4711\nMODE=dev\n"
    await run(edit, context, path=".env", old_string="dev", new_string="prod")
    notes = context.mounts[0].host / "notes.md"
    notes.write_text("It says [redacted:secret] there.")
    await run(write_tool(locks), context, path="notes.md", content="It said [redacted:secret] there.")
    assert path.read_text() == "KEY=canary-4711\nMODE=prod\n"


async def test_concurrent_edits_of_the_same_files_are_all_kept(context: ToolContext, locks: PathLocks) -> None:
    marks = [f"mark {thread}" for thread in range(THREADS)]
    apart = "\n".join(f"{mark}\n{'.' * 5}\n\n\n\n\n\n" for mark in marks)
    for number in range(FILES):
        (context.agent.workspace / f"f{number}").write_text(apart)
    tool = edit_tool(locks)
    calls = [
        prepared(tool, context, path=f"f{number}", old_string=f"{mark}\n", new_string=f"{mark} done\n")
        for mark in marks
        for number in range(FILES)
    ]
    await asyncio.gather(*(call.run() for call in calls))
    for number in range(FILES):
        text = (context.agent.workspace / f"f{number}").read_text()
        assert [f"{mark} done\n" in text for mark in marks] == [True] * THREADS
    assert len(locks) == 0
