"""The contract of `domain.ports.Tool`, for built-in tools and those of extensions.

class TestMine(ToolContract):
    @pytest.fixture
    def tool(self): return MyTool()
    @pytest.fixture
    def good(self): return '{"path": "x"}'  # arguments that can be prepared
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

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
    """Records what tools request from Shoal."""

    def __init__(self, artifacts: Files) -> None:
        self.artifacts: Files = artifacts
        self.posts: list[NewPost] = []
        self.virtual_folders: list[VirtualFolder] = []

    async def post(self, post: NewPost) -> None:
        """Record a post."""
        self.posts.append(post)


class FakeSandbox:
    """Records commands without running them, and returns the given results, then empty ones."""

    name = "fake"
    isolated = True

    def __init__(self, *results: CommandResult) -> None:
        self.commands: list[Command] = []
        self._results = list(results)

    async def run(self, command: Command) -> CommandResult:
        """Return the next result."""
        self.commands.append(command)
        return self._results.pop(0) if self._results else CommandResult(b"", b"", 0)

    def inside(self, path: Path, mounts: Sequence[Mount]) -> str:
        """Return the inside name of a path below a mount."""
        for mount in mounts:
            if path.is_relative_to(mount.host):
                return f"{mount.inside}/{path.relative_to(mount.host)}".removesuffix("/.")
        return str(path)

    def outside(self, path: str, mounts: Sequence[Mount]) -> Path:
        """Return the host path of an inside name."""
        for mount in mounts:
            if Path(path).is_relative_to(mount.inside):
                return mount.host / Path(path).relative_to(mount.inside)
        return Path(path)

    async def close(self) -> None:
        """Do nothing."""


def tool_context(folder: Path, sandbox: Sandbox | None = None) -> ToolContext:
    """Build a call's context in a home directory under `folder`: agent `main`, all four mounts, a manual clock and
    fakes."""
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


class ToolContract:
    """Every rule of a tool. A subclass gives the fixtures `tool` and `good`."""

    @pytest.fixture
    def context(self, tmp_path: Path) -> ToolContext:
        """An empty home directory."""
        return tool_context(tmp_path)

    def test_the_name_suits_every_provider(self, tool: Tool) -> None:
        """It has at most 64 letters, digits, _ and -, and a description."""
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.spec.name)
        assert len(tool.spec.description) >= 10
        assert tool.spec is tool.spec

    def test_the_schema_is_one_of_an_object_without_further_properties(self, tool: Tool) -> None:
        """Required properties exist, and each has a type and a description."""
        schema = json.loads(tool.spec.parameters)
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= schema["properties"].keys()
        for name, described in schema["properties"].items():
            assert described.get("type") in SCHEMA_TYPES or {"enum", "anyOf", "$ref"} & described.keys(), name
            assert described.get("description"), name

    def test_rubbish_is_a_tool_error(self, tool: Tool, context: ToolContext) -> None:
        """Otherwise it is understood. Nothing else is raised, and the error has a message."""
        for text in RUBBISH:
            try:
                assert tool.prepare(text, context).actions, text
            except ToolError as error:
                reason = str(error)
            else:
                continue
            assert len(reason) > 10, text

    def test_a_call_states_what_it_will_do(self, tool: Tool, context: ToolContext, good: str) -> None:
        """It has actions with the tool's own name, and a text for people."""
        invocation = tool.prepare(good, context)
        assert invocation.actions
        assert all(action.text.startswith(f"tool:{tool.spec.name}:") for action in invocation.actions)
        assert any(not action.whole for action in invocation.actions)
        assert invocation.shown.strip()

    def test_the_canonical_form_is_json_and_repeats(self, tool: Tool, context: ToolContext, good: str) -> None:
        """The order of keys and the spaces in the model's JSON do not matter."""
        arguments = json.loads(good)
        turned = json.dumps(dict(reversed(arguments.items())), indent=2)
        first, second = tool.prepare(good, context), tool.prepare(turned, context)
        assert first.canonical == second.canonical
        assert first.actions == second.actions
        assert msgspec.json.encode(json.loads(first.canonical), order="sorted").decode() == first.canonical

    def test_preparing_changes_nothing(self, tool: Tool, context: ToolContext, good: str) -> None:
        """Nothing has been allowed at that point."""
        before = _everything(context.home.root)
        tool.prepare(good, context)
        assert _everything(context.home.root) == before


def _everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        for path in sorted(folder.rglob("*"))
    }
