"""The contract of `shoal.kernel.ports.Tool`, for built-in tools and tools of extensions.

class TestMyTool(ToolContract):
    @pytest.fixture
    def tool(self): return my_tool

    @pytest.fixture
    def good(self): return '{"path": "x"}'  # valid arguments; only needed if `example_arguments` makes invalid ones
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any  # noqa: TID251 - a JSON schema

import msgspec
import pytest

from shoal.kernel.agents import AgentSpec, Purpose
from shoal.kernel.errors import ToolError
from shoal.kernel.files import Files
from shoal.kernel.home import Home
from shoal.kernel.ids import CallId, TurnId, make_thread_id
from shoal.kernel.messages import Author
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import Command, CommandResult, Mount, Sandbox, Tool, ToolContext, VirtualFolder
from shoal.kernel.records import NewPost
from shoal.store.files import LocalFiles
from shoal.testing.clock import ManualClock

THREAD = make_thread_id("web", "lobby", "one")
SCHEMA_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
RUBBISH = (
    "", "null", "[]", "7", '"text"', "{", "}", '{"a"', "\0", "\ud800", "[" * 100_000, '{"unknown_argument": 1}',
    '{"path": null}', '{"path": 7}', '{"path": ["x"]}', '{"command": {}}', '{"text": {"text": "x"}}', "NaN", "{}{}",
)  # fmt: skip
"""Invalid arguments that a model may send."""


class FakeServices:
    """A `ToolServices` that records posts in `posts`."""

    def __init__(self, artifacts: Files) -> None:
        self.artifacts: Files = artifacts
        self.posts: list[NewPost] = []
        self.virtual_folders: list[VirtualFolder] = []

    async def post(self, post: NewPost) -> None:
        self.posts.append(post)


class FakeSandbox:
    """A `Sandbox` that records commands without running them.

    It returns the given results in order, followed by empty results.
    """

    name = "fake"
    isolated = True

    def __init__(self, *results: CommandResult) -> None:
        self.commands: list[Command] = []
        self._results = list(results)

    async def run(self, command: Command) -> CommandResult:
        """Record a command and return the next result."""
        self.commands.append(command)
        return self._results.pop(0) if self._results else CommandResult(b"", b"", 0)

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """Return the path inside the sandbox for a host path. A path outside all mounts stays unchanged."""
        for mount in mounts:
            if path.is_relative_to(mount.host):
                return f"{mount.inside}/{path.relative_to(mount.host)}".removesuffix("/.")
        return str(path)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """Return the host path for a path inside the sandbox. A path outside all mounts stays unchanged."""
        for mount in mounts:
            if Path(path).is_relative_to(mount.inside):
                return mount.host / Path(path).relative_to(mount.inside)
        return Path(path)

    async def close(self) -> None: ...


def tool_context(folder: Path, sandbox: Sandbox | None = None) -> ToolContext:
    """Return a context for a tool call of agent `main`. Its home directory is in `folder`, and its clock is a
    `ManualClock`.

    The context has all four mounts. If `sandbox` is None, commands are recorded and not run.
    """
    home, clock = Home(folder), ManualClock()
    workspace = home.agent("main") / "workspace"
    scratch, skills, docs = home.scratch(THREAD), home.data / "skills", home.agent("main") / "docs"
    for made in (workspace, scratch, skills, docs):
        made.mkdir(parents=True, exist_ok=True)
    return ToolContext(
        thread=THREAD,
        turn=TurnId("T1"),
        call_id=CallId("c1"),
        asker=Asker(trust="trusted", user="u1", platform="web", channel="lobby"),
        agent=AgentSpec("main", home.agent("main"), workspace, "demo", "standard"),
        home=home,
        mounts=(
            Mount(workspace, "/workspace", writable=True),
            Mount(scratch, "/scratch", writable=True),
            Mount(skills, "/skills"),
            Mount(docs, "/docs"),
        ),
        sandbox=sandbox or FakeSandbox(),
        clock=clock,
        services=FakeServices(LocalFiles(home.artifacts)),
        purpose=Purpose(Author("u1", trusted=True), ""),
    )


def example_arguments(tool: Tool) -> str:
    """Return the tool's `example` as JSON. If it has none, build the shortest arguments that the schema allows.

    Patterns and formats in the schema are ignored.
    """
    schema = json.loads(tool.spec.parameters)
    return json.dumps(dict(getattr(tool, "example", {})) or _example(schema, schema.get("$defs", {})))


def _example(schema: dict[str, Any], definitions: dict[str, Any]) -> object:
    if "$ref" in schema:
        return _example(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], definitions)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: _example(properties[name], definitions) for name in schema.get("required", ())}
        case "array":
            return [_example(schema.get("items", {}), definitions)] * max(1, schema.get("minItems", 0))
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case _:
            return "x" * max(1, schema.get("minLength", 0))


class ToolContract:
    """Contract suite for a tool. Subclass it and provide the fixture `tool`."""

    @pytest.fixture
    def good(self, tool: Tool) -> str:
        """Return valid arguments as JSON."""
        return example_arguments(tool)

    @pytest.fixture
    def context(self, tmp_path: Path) -> ToolContext:
        """Return the context of a call in an empty home directory."""
        return tool_context(tmp_path)

    def test_every_provider_accepts_the_name(self, tool: Tool) -> None:
        """Providers allow up to 64 letters, digits, `_` and `-`."""
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.spec.name)
        assert len(tool.spec.description) >= 10
        assert tool.spec is tool.spec

    def test_the_schema_is_an_object_with_described_properties(self, tool: Tool) -> None:
        schema = json.loads(tool.spec.parameters)
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= schema["properties"].keys()
        for name, described in schema["properties"].items():
            assert described.get("type") in SCHEMA_TYPES or {"enum", "anyOf", "$ref"} & described.keys(), name
            assert described.get("description"), name

    def test_invalid_arguments_raise_a_tool_error(self, tool: Tool, context: ToolContext) -> None:
        """A tool may accept unexpected arguments. If it rejects them, it must raise ToolError."""
        for text in RUBBISH:
            try:
                assert tool.prepare(text, context).actions, text
            except ToolError as error:
                reason = str(error)
            else:
                continue
            assert len(reason) > 10, text

    def test_a_call_has_actions_and_a_description(self, tool: Tool, context: ToolContext, good: str) -> None:
        invocation = tool.prepare(good, context)
        assert invocation.actions
        assert all(action.text.startswith(f"tool:{tool.spec.name}:") for action in invocation.actions)
        assert any(not action.whole for action in invocation.actions)
        assert invocation.shown.strip()

    def test_the_canonical_form_is_stable_json(self, tool: Tool, context: ToolContext, good: str) -> None:
        """The order of keys and the spaces in the model's JSON do not matter."""
        arguments = json.loads(good)
        turned = json.dumps(dict(reversed(arguments.items())), indent=2)
        first, second = tool.prepare(good, context), tool.prepare(turned, context)
        assert first.canonical == second.canonical
        assert first.actions == second.actions
        assert msgspec.json.encode(json.loads(first.canonical), order="sorted").decode() == first.canonical

    def test_preparing_changes_nothing(self, tool: Tool, context: ToolContext, good: str) -> None:
        """Shoal prepares a call before anyone approves it."""
        before = _everything(context.home.root)
        tool.prepare(good, context)
        assert _everything(context.home.root) == before


def _everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        for path in sorted(folder.rglob("*"))
    }
