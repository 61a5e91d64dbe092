"""The tools for time, uploads and commands."""

import json
import os
from pathlib import Path

import pytest

from shoal.kernel.errors import ToolError
from shoal.kernel.permissions import Action
from shoal.kernel.ports import CommandResult, Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.settings import SandboxSettings
from shoal.testing.contracts.tool import THREAD, FakeSandbox, FakeServices, tool_context
from shoal.tools.builtin.clock import time
from shoal.tools.builtin.message import upload
from shoal.tools.builtin.shell import COMMAND_BYTES_MAX, bash_tool, command_environment


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    """A tool context in an empty home on Monday, 5 January 2026, 9:00 UTC."""
    return tool_context(tmp_path)


def services(context: ToolContext) -> FakeServices:
    assert isinstance(context.services, FakeServices)
    return context.services


def prepared(tool: Tool, context: ToolContext, **arguments: object) -> Invocation:
    return tool.prepare(json.dumps(arguments), context)


async def run(tool: Tool, context: ToolContext, **arguments: object) -> ToolOutput:
    return await prepared(tool, context, **arguments).run()


async def test_time_is_reported_in_a_zone(context: ToolContext) -> None:
    assert (await run(time, context)).text == "2026-01-05T09:00:00+00:00 (Monday, UTC)"
    assert (await run(time, context, timezone="Asia/Tokyo")).text == "2026-01-05T18:00:00+09:00 (Monday, Asia/Tokyo)"
    for name in ("Mars/Base", "../../etc/passwd", "\0"):
        with pytest.raises(ToolError, match="is not known"):
            prepared(time, context, timezone=name)


async def test_an_upload_posts_the_current_file(context: ToolContext) -> None:
    path = context.agent.workspace / "report.txt"
    path.write_text("first")
    call = prepared(upload, context, path="report.txt", comment="here it is")
    assert call.shown == "upload /workspace/report.txt (5 bytes)\n\nhere it is"
    await call.run()
    path.unlink()
    path.symlink_to("/etc/passwd")
    (post,) = services(context).posts
    assert (post.thread, post.kind, post.text, Path(post.file).name) == (THREAD, "file", "here it is", "report.txt")
    assert Path(post.file).read_text() == "first"
    with pytest.raises(ToolError):
        prepared(upload, context, path="report.txt")


async def test_the_same_upload_has_the_same_key(context: ToolContext) -> None:
    (context.agent.workspace / "f").write_text("x")
    for _ in range(2):
        await run(upload, context, path="f")
    first, second = services(context).posts
    assert first == second


async def test_an_upload_of_a_non_file_is_refused(context: ToolContext) -> None:
    os.mkfifo(context.agent.workspace / "pipe")
    for path in ("missing", "pipe", ".", "/etc/passwd"):
        with pytest.raises(ToolError):
            prepared(upload, context, path=path)


def shell_actions(name: str, command: str, _: ToolContext) -> tuple[Action, ...]:
    return (Action(f"tool:{name}:{command}"),)


def bash(**bounds: float) -> Tool:
    return bash_tool(shell_actions, SandboxSettings(**bounds))  # pyrefly: ignore[bad-argument-type]


async def test_a_command_runs_in_the_workspace_within_its_bounds(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    context = tool_context(tmp_path, sandbox)
    await run(bash(timeout_seconds=7.0), context, command="ls")
    await run(bash(), context, command="ls", timeout_seconds=3)
    first, second = sandbox.commands
    assert (first.text, first.cwd, first.mounts) == ("ls", context.agent.workspace, context.mounts)
    assert (first.timeout_seconds, second.timeout_seconds) == (7.0, 3.0)
    assert first.env == second.env == command_environment("main")
    with pytest.raises(ToolError, match="at most 600"):
        prepared(bash(), context, command="ls", timeout_seconds=601)


@pytest.mark.parametrize(
    ("result", "told", "is_error"),
    [
        (CommandResult(b"out\n", b"", 0), "out\n[exit code 0]", False),
        (CommandResult(b"out\n", b"err\n", 2), "out\n[standard error]\nerr\n[exit code 2]", False),
        (CommandResult(b"", b"", 0), "[no output]\n[exit code 0]", False),
        (
            CommandResult(b"a", b"", None, timed_out=True),
            "a\n[killed with all its processes after the time limit of 120 seconds]",
            True,
        ),
        (
            CommandResult(b"abc", b"", 0, stdout_cut=True),
            "abc\n[standard output was truncated to its first 3 bytes]\n[exit code 0]",
            False,
        ),
        (CommandResult(b"\0\1\2", b"", 0), "[3 bytes of binary data, not shown]\n[exit code 0]", False),
    ],
)
async def test_the_exit_of_a_command_is_reported(
    tmp_path: Path, result: CommandResult, told: str, is_error: bool
) -> None:
    context = tool_context(tmp_path, FakeSandbox(result))
    assert await run(bash(), context, command="x") == ToolOutput(
        told, is_error=is_error, exit_code=result.exit_code or 0
    )


def test_an_impossible_command_is_refused(context: ToolContext) -> None:
    for command in ("", " \n", "a\0b", "x" * (COMMAND_BYTES_MAX + 1)):
        with pytest.raises(ToolError):
            prepared(bash(), context, command=command)


def test_an_approval_covers_the_commands_directory_and_sandbox(tmp_path: Path) -> None:
    call = prepared(bash(), tool_context(tmp_path), command="ls")
    assert json.loads(call.canonical) == {
        "tool": "bash", "command": "ls", "cwd": "/workspace", "sandbox": "fake", "timeout": 120.0,
    }  # fmt: skip
    assert call.shown == "ls"
