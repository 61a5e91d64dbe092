"""Malformed tool calls: calls with one possible meaning are repaired, and ambiguous ones are rejected."""

import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from shoal.kernel.errors import ToolError
from shoal.kernel.ids import CallId
from shoal.kernel.messages import ToolCall
from shoal.kernel.traits import Traits
from shoal.testing.contracts.tool import tool_context
from shoal.text.loose_json import loose_value
from shoal.tools.functions import tool
from shoal.tools.mending import closest_name, mended, mended_arguments
from shoal.tools.registry import Registry


@tool
def run(
    command: str,
    count: int = 1,
    ratio: float = 0.5,
    wait: bool = False,
    paths: Annotated[list[str], Meta(description="Files.")] = [],  # noqa: B006
    size: Literal["small", "large"] = "small",
    env: dict[str, str] = {},  # noqa: B006
) -> str:
    """Run something."""
    return command


@tool(Traits(effect="read"))
def look(file_path: str) -> str:
    """Look at a file."""
    return file_path


@tool
def clock() -> str:
    """Tell the time."""
    return ""


def arguments(written: str) -> object:
    return json.loads(mended_arguments(written, run))


MENDED: dict[str, dict[str, object]] = {
    '{"command":"ls","count":null}': {"command": "ls"},
    '{"command":"ls","count":"5","wait":"true","ratio":"0.25"}': {
        "command": "ls", "count": 5, "wait": True, "ratio": 0.25
    },
    '{"command":"ls","count":5.0,"wait":"False"}': {"command": "ls", "count": 5, "wait": False},
    '"{\\"command\\":\\"ls\\"}"': {"command": "ls"},
    json.dumps(json.dumps(json.dumps({"command": "ls"}))): {"command": "ls"},
    '[{"command":"ls"}]': {"command": "ls"},
    '{"command":"ls",}': {"command": "ls"},
    '{"command": // runs it\n"ls" /* all */}': {"command": "ls"},
    '{"command":"a\nb"}': {"command": "a\nb"},
    "{'command': 'ls', 'wait': True, 'count': None}": {"command": "ls", "wait": True},
    '```json\n{"command":"ls"}\n```': {"command": "ls"},
    '{"command":"ls"}<|call|>': {"command": "ls"},
    '{"command":"ls"}}': {"command": "ls"},
    '{"command":"ls"}{"command":"ls"}': {"command": "ls"},
    '{"command":"grep \\d"}': {"command": "grep \\d"},
    '{"command":"ls","explanation":"to see"}': {"command": "ls"},
    '{"command":"ls","cwd":null,"timeout":""}': {"command": "ls"},
    '{"Command":"ls"}': {"command": "ls"},
    '{"arguments":{"command":"ls"}}': {"command": "ls"},
    '{"name":"run","arguments":"{\\"command\\":\\"ls\\"}"}': {"command": "ls"},
    '{"command":"ls","paths":"a.txt"}': {"command": "ls", "paths": ["a.txt"]},
    '{"command":"ls","paths":"[\\"a\\",\\"b\\"]"}': {"command": "ls", "paths": ["a", "b"]},
    '{"command":"ls","size":"Large"}': {"command": "ls", "size": "large"},
    '{"command":"ls","env":"{\\"A\\":\\"b\\"}"}': {"command": "ls", "env": {"A": "b"}},
    '{"command":7}': {"command": "7"},
    "{command: \"ls\"}": {"command": "ls"},
}  # fmt: skip


@pytest.mark.parametrize("written", MENDED)
def test_an_unambiguous_call_is_repaired(written: str, tmp_path: Path) -> None:
    assert arguments(written) == MENDED[written]
    assert run.prepare(mended_arguments(written, run), tool_context(tmp_path)).actions


REFUSED = (
    '{"command":"rm -rf /tmp/x', '{"command":"rm -rf /tmp/x"', '{"command":"rm -rf /', "{'command': 'rm -rf /tmp",
    '"{\\"command\\":\\"rm -rf /tmp/x', '"{\\"command\\":\\"rm -rf /tmp"', '```json\n{"command":"rm"}',
    '{"command":"rm"}{"command":"ls"}', '{"command":"echo "hi""}', '{"command":"rm","dry_run":true}',
    '{"command":"rm -rf *","cwd":"/tmp/x"}', '{"command":["rm","-rf"]}', '{"command":"ls","count":"five"}',
    '{"command":"ls","count":1.5}', '{"command":"ls","wait":"yes"}', '{"command":"ls","paths":"a,b"}',
    '{"command":"ls","paths":{"a":1}}', "ls -la", "5", "[]", '[{"command":"a"},{"command":"b"}]', '{"count":1}',
    '{"command":null}', '{"command":"a","command":"b",}', '{"Command":"a","COMMAND":"b"}', '{"command":{"a":1}}',
)  # fmt: skip


@pytest.mark.parametrize("written", REFUSED)
def test_an_ambiguous_or_truncated_call_is_refused(written: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError):
        run.prepare(mended_arguments(written, run), tool_context(tmp_path))


@pytest.mark.parametrize("written", ["", "null", "{}", '""', "None", '{"random_string":"x"}', '{"dummy":""}', " \n"])
def test_a_tool_without_arguments_accepts_any_empty_value(written: str) -> None:
    assert json.loads(mended_arguments(written, clock) or "{}") == {}


def test_a_read_only_tool_ignores_unknown_keys() -> None:
    assert json.loads(mended_arguments('{"filePath":"a","limit":5}', look)) == {"file_path": "a"}


def test_valid_arguments_are_unchanged() -> None:
    for written in ('{"command": "ls",  "count": 2}', '{ "command":"ls" }'):
        assert mended_arguments(written, run) is written


@given(st.dictionaries(st.sampled_from(["command", "count", "env"]), st.text(max_size=20), min_size=1), st.data())
def test_truncated_arguments_are_never_read_as_complete(values: dict[str, str], data: st.DataObject) -> None:
    written = data.draw(st.sampled_from([json.dumps(values), repr(values), json.dumps(json.dumps(values))]))
    end = data.draw(st.integers(1, len(written) - 1))
    cut = written[:end]
    try:
        value = loose_value(cut)
    except ValueError:
        return
    assert isinstance(value, str), (cut, value)  # plain text is not a call


NAMES = ("bash", "read_url", "web_search", "mcp_files_read_file", "mcp_git_status", "mcp_svn_status", "a_b", "ab")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("bash", "bash"), ("Bash", "bash"), ("BASH", "bash"), ("functions.bash", "bash"), ("default_api.bash", "bash"),
        ("bash<|channel|>commentary", "bash"), ("functions.bash:0", "bash"), ("bash()", "bash"), (" bash ", "bash"),
        ("tool.bash", "bash"), ("default_api:bash", "bash"), ('"bash"', "bash"), ("webSearch", "web_search"),
        ("web-search", "web_search"), ("WebSearch", "web_search"), ("mcp__files__read_file", "mcp_files_read_file"),
        ("files_read_file", "mcp_files_read_file"), ("files.read-file", "mcp_files_read_file"),
        ("read_file", "mcp_files_read_file"), ("git__status", "mcp_git_status"),
        ("status", "status"), ("A-B", "A-B"), ("rm", "rm"), ("bash2", "bash2"), ("", ""), ("x" * 300, "x" * 300),
        ("basher", "basher"), ("<|channel|>", "<|channel|>"),
    ],
)  # fmt: skip
def test_an_unambiguous_name_selects_its_tool(written: str, meant: str) -> None:
    assert closest_name(written, NAMES) == meant


def test_a_call_is_repaired_with_its_name() -> None:
    registry = Registry()
    for one in (run, look, clock):
        registry.add(one)
    call = mended(ToolCall(CallId("c"), "functions.Run", '{"command":"ls","count":"2"}'), registry, ())
    assert (call.name, json.loads(call.arguments)) == ("run", {"command": "ls", "count": 2})
    other = ToolCall(CallId("c"), "Run", "{}")
    assert mended(other, registry, ("look",)) == other
