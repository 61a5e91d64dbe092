"""The size of a first request, and stable prefixes while the model finds and calls further tools."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.features.mcp.kinds import UNCONFIRMED
from shoal.kernel.events import ApprovalRequested, AssistantSaid, ToolFinished, ToolStarted
from shoal.kernel.messages import MORE_TOOLS, ModelRequest
from shoal.kernel.traits import Traits
from shoal.models.anthropic import AnthropicMessages
from shoal.models.api_protocol import ApiProtocol, Quirks
from shoal.models.gemini import GeminiContents
from shoal.models.openai import OpenAiChat, OpenAiResponses
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.model.tokens import shared_prefix_bytes
from shoal.testing.scenario import World, scenario
from shoal.tools.functions import tool
from shoal.tools.registry import Registry

ALIASES = {"view", "create_file", "str_replace", "search_history", "brave_search"}
FIRST_BYTES_MAX = 14_000
SHARED_MIN = 0.95
WIRES = (
    (OpenAiChat, False),
    (GeminiContents, False),
    (AnthropicMessages, False),
    (AnthropicMessages, True),
    (OpenAiResponses, False),
    (OpenAiResponses, True),
)


def call(name: str, **arguments: object) -> Reply:
    return Reply(calls=(Call(name, json.dumps(arguments)),))


def wrapped(name: str, **arguments: object) -> Reply:
    return call(MORE_TOOLS, call=name, arguments=arguments)


@pytest.mark.parametrize(("wire", "native"), WIRES)
async def test_the_first_request_is_small_and_no_tool_is_lost(
    tmp_path: Path, wire: type[ApiProtocol], native: bool
) -> None:
    async with scenario(tmp_path, FakeModel("hello")) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        registered = set(world.app[Registry].names()) - ALIASES
    first = world.model.requests[0]
    assert len(wire().encode(first, Quirks(tool_search=native), {}).content) <= FIRST_BYTES_MAX
    assert {one.name for one in (*first.tools, *first.further)} == registered


async def test_a_call_through_more_tools_becomes_the_tools_own_call(tmp_path: Path) -> None:
    model = FakeModel(call(MORE_TOOLS, find="time"), wrapped("time", timezone="Europe/Berlin"), "It is late.")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("what time is it in Berlin?")
        await world.ada.sees("It is late.")
        journal = [event.data for event in await world.journal()]
    found, told = (one for one in journal if isinstance(one, ToolFinished))
    assert found.found[0].name == "time"
    assert (told.name, told.is_error, "Europe/Berlin" in told.text) == ("time", False, True)
    assert [one.name for one in journal if isinstance(one, ToolStarted)] == [MORE_TOOLS, "time"]
    said = [one.tool_calls[0] for one in journal if isinstance(one, AssistantSaid) and one.tool_calls]
    assert [(one.name, one.wrapped) for one in said] == [(MORE_TOOLS, False), ("time", True)]
    assert '"name":"time"' in model.requests[1].messages[-1].text


async def test_rules_and_approvals_apply_to_the_wrapped_tool(tmp_path: Path) -> None:
    model = FakeModel(wrapped("process_start", command="sleep 9"), "Asked.")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("start it")
        asked = await world.ada.is_asked()
        event = next(one.data for one in await world.journal() if isinstance(one.data, ApprovalRequested))
        await world.ada.decides(asked.id, allow=False)
        await world.ada.sees("Asked.")
    assert (asked.tool, asked.actions) == ("process_start", ("tool:process_start:sleep 9",))
    assert event.tool == "process_start"


@pytest.mark.parametrize("profile", ["open", "locked"])
async def test_a_hidden_tool_cannot_be_found_or_called(tmp_path: Path, profile: str) -> None:
    model = FakeModel(call(MORE_TOOLS, find="spawn"), wrapped("spawn", task="row"), call("spawn", task="row"), "Over.")
    async with scenario(tmp_path, model, profile=profile) as world:
        if profile == "open":  # the agent's own list of tools also excludes it
            (tmp_path / "agents" / "main").mkdir(parents=True, exist_ok=True)
            (tmp_path / "agents" / "main" / "agent.toml").write_text('tools = ["bash"]\n')
        await world.ada.says("row")
        await world.ada.sees("Over.")
        results = [one.data for one in await world.journal() if isinstance(one.data, ToolFinished)]
    assert "spawn" not in {tool.name for one in results for tool in one.found}
    assert [one.is_error for one in results[1:]] == [True, True]


async def test_a_deferred_tool_can_be_called_directly_by_name(tmp_path: Path) -> None:
    model = FakeModel(call("time"), "Done.")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("time?")
        await world.ada.sees("Done.")
        result = (await world.happens(world.ada.thread, "tool_result")).data
    assert "time" not in {one.name for one in model.requests[0].tools}
    assert isinstance(result, ToolFinished)
    assert not result.is_error


STEPS = st.lists(
    st.sampled_from(
        [
            call(MORE_TOOLS, find="time"),
            call(MORE_TOOLS, find="start a process, read its log"),
            call(MORE_TOOLS, find="nothing like this zzz"),
            call(MORE_TOOLS, find="mcp_tracker_7"),
            wrapped("time"),
            wrapped("mcp_tracker_7", text="boat"),
            wrapped("process_list", nonsense=1),
            call("time"),
            call("list"),
        ]
    ),
    min_size=1,
    max_size=5,
)


def kept(wire: type[ApiProtocol], body: bytes) -> bytes:
    """Return the part of a request that a provider compares with the previous one to use its cache.

    Anthropic compares tools, system and messages in this order, and ignores deferred tools and cache marks.
    """
    if wire is not AnthropicMessages:
        return body
    document = json.loads(body.replace(b',"cache_control":{"type":"ephemeral"}', b""))
    tools = [one for one in document["tools"] if not one.get("defer_loading")]
    return json.dumps([tools, document["system"], document["messages"]]).encode()


def tail(body: bytes) -> bytes:
    """Return the body without its closing brackets, because the next request continues the last list."""
    return body.rstrip(b"]}")


async def requests_of(folder: Path, turns: list[list[Reply]]) -> list[ModelRequest]:
    def mark(text: str = "") -> str:
        """Mark an issue in the tracker."""
        return text

    model = FakeModel(*(step for turn in turns for step in (*turn, "over")))
    tools = [tool(Traits(group="mcp", origin="own"), name=f"mcp_tracker_{number}")(mark) for number in range(30)]
    async with scenario(folder, model, tools=tools) as world:
        for number, _ in enumerate(turns, 1):
            await world.ada.says(f"go {number}")
            await world.happens(world.ada.thread, "turn_finished", number)
    return [*model.requests]


@settings(max_examples=8, deadline=None)
@given(turns=st.lists(STEPS, min_size=1, max_size=3))
def test_the_prefix_is_stable_after_tools_are_found(turns: list[list[Reply]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sent = asyncio.run(requests_of(Path(folder), turns))
    assert len(sent) == sum(len(turn) + 1 for turn in turns)
    for wire, native in WIRES:
        protocol, before = wire(), b""
        for one in sent:
            body = kept(wire, protocol.encode(one, Quirks(tool_search=native), {}).content)
            assert shared_prefix_bytes(tail(before), body) >= SHARED_MIN * len(tail(before))
            before = body


async def test_found_tools_keep_their_definition(tmp_path: Path) -> None:
    def weigh(grams: int = 1) -> str:
        """Weigh the boat."""
        return str(grams)

    model = FakeModel(call(MORE_TOOLS, find="weigh the boat"), "found", "again")
    many = [tool(UNCONFIRMED, name=f"mcp_scale_{number}")(weigh) for number in range(20)]
    async with scenario(tmp_path, model, tools=many, changes=("tools",)) as world:
        await _say(world, "weigh it", "found")
        for one in many:
            world.app[Registry].remove(one.spec.name)
        await _say(world, "and now?", "again")
    before, after = model.requests[1], model.requests[2]
    assert [id(message) for message in after.messages[: len(before.messages)]] == [id(one) for one in before.messages]
    body = json.loads(AnthropicMessages().encode(after, Quirks(tool_search=True), {}).content)
    assert any(one["name"].startswith("mcp_scale") and one["defer_loading"] for one in body["tools"])


async def _say(world: World, text: str, answer: str) -> None:
    await world.ada.says(text)
    await world.ada.sees(answer)
