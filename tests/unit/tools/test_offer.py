"""Deferred tools can be found by search, and hidden tools never appear."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shoal.extensions import extension_tools
from shoal.features.mcp.kinds import UNCONFIRMED
from shoal.features.memory.files import MemoryEdit
from shoal.features.memory.tools import note_tool, remember_tool
from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.tools import remind_tool
from shoal.kernel.errors import ToolError
from shoal.kernel.ids import CallId
from shoal.kernel.messages import MORE_TOOLS, ToolCall, ToolSpec
from shoal.kernel.settings import SandboxSettings, ToolsSettings
from shoal.testing.contracts.tool import tool_context
from shoal.tools.functions import tool
from shoal.tools.offer import (
    ADDED_MAX,
    FOUND_CHARS_MAX,
    FOUND_MAX,
    NAMED_CHARS_MAX,
    Offer,
    fitting,
    more_tools,
    unwrapped,
)
from shoal.tools.registry import Registry, standard_tools


def offered(registry: Registry, *wanted: str, hidden: str = "") -> Offer:
    return registry.offer(wanted, lambda name: name == hidden)


def names(specs: tuple[ToolSpec, ...]) -> list[str]:
    return [one.name for one in specs]


@pytest.fixture
def registry() -> Registry:
    settings = ToolsSettings(hardware=True)
    made = Registry([*standard_tools(SandboxSettings(), settings), *extension_tools(settings)])
    for one in (remember_tool(nothing_changes), note_tool(nothing_changes), remind_tool(nothing_is_added)):
        made.add(one)
    for number in range(3):
        made.add(tool(name=f"process_{number}")(lambda: ""))
    return made


async def nothing_changes(edit: MemoryEdit) -> None:
    """Return None, which means that the file already has the line."""


async def nothing_is_added(trigger: NewTrigger) -> Trigger:
    raise NotImplementedError


def server(registry: Registry, count: int, name: str = "tracker", description: str = "Do it.") -> Registry:
    for number in range(count):
        registry.add(tool(UNCONFIRMED, name=f"mcp_{name}_{number}")(described(description)))
    return registry


def described(text: str) -> Callable[[], str]:
    def work() -> str:
        return ""

    work.__doc__ = text
    return work


def test_core_tools_are_listed_and_other_tools_are_named_and_found(registry: Registry) -> None:
    found = offered(registry)
    core = registry.traits.names(lambda one: one.offered == "always")
    assert set(names(found.listed)) - {MORE_TOOLS} <= {*core, "process_0", "process_1", "process_2"}
    assert found.deferred
    told = found.listed[-1]
    assert told.name == MORE_TOOLS
    for one in found.deferred:
        assert one.name in told.description
        assert fitting(one.name, found.all)[0] is one
    assert set(names(found.all)) == {*names(found.listed), *names(found.deferred)} - {MORE_TOOLS}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("what is the current date", "time"),
        ("scan the I2C bus", "i2c_scan"),
        ("send a file to the person", "upload"),
        ("write a daily note", "note_today"),
        ("remind me later", "remind"),
    ],
)
def test_tools_are_found_by_topic(registry: Registry, words: str, name: str) -> None:
    assert name in [one.name for one in fitting(words, offered(registry).all)[:FOUND_MAX]]


def test_a_hidden_tool_is_neither_listed_nor_found(registry: Registry) -> None:
    found = offered(registry, hidden="spi_transfer")
    assert "spi_transfer" not in found.listed[-1].description
    assert "spi_transfer" not in names(found.all)
    assert "spi_transfer" not in [one.name for one in fitting("spi_transfer", found.all)]


def test_an_agents_own_tools_are_listed_as_configured(registry: Registry) -> None:
    assert names(offered(registry, "time", "bash", "upload").listed) == ["bash", "time", "upload"]


def test_all_tools_are_listed_if_the_more_tools_tool_is_hidden(registry: Registry) -> None:
    found = offered(registry, hidden=MORE_TOOLS)
    assert not found.deferred
    assert {"time", "upload", "spi_transfer"} <= set(names(found.listed))


def test_a_short_list_of_tools_is_listed_whole() -> None:
    registry = Registry(standard_tools(SandboxSettings(), ToolsSettings()))
    assert {"time", "upload"} <= set(names(offered(registry).listed))
    assert MORE_TOOLS not in names(offered(registry).listed)


@pytest.mark.parametrize("count", [ADDED_MAX, ADDED_MAX + 1])
def test_up_to_ten_mcp_tools_are_listed(registry: Registry, count: int) -> None:
    told = [name for name in names(offered(server(registry, count)).listed) if name.startswith("mcp_")]
    assert len(told) == (count if count <= ADDED_MAX else 0)


def test_with_very_many_tools_only_their_servers_are_named(registry: Registry) -> None:
    found = offered(server(server(registry, 128), 100, "mail"))
    text = found.listed[-1].description
    assert "mcp_tracker_… (128 tools)" in text
    assert "mcp_mail_… (100 tools)" in text
    assert len(text) < NAMED_CHARS_MAX + 400


async def found_by(registry: Registry, folder: Path, words: str) -> tuple[ToolSpec, ...]:
    all_tools = offered(registry).all
    given = msgspec.structs.replace(tool_context(folder), tools=lambda: all_tools)
    return (await more_tools.prepare(json.dumps({"find": words}), given).run()).found


def test_a_search_result_has_few_bounded_definitions(registry: Registry, tmp_path: Path) -> None:
    server(registry, 50, description="Count boats. " + "x" * 5_000)
    found = asyncio.run(found_by(registry, tmp_path, "count boats"))
    assert 1 <= len(found) <= FOUND_MAX
    assert sum(len(one.description) for one in found) <= FOUND_CHARS_MAX


def test_unmatched_words_find_nothing(registry: Registry, tmp_path: Path) -> None:
    assert asyncio.run(found_by(registry, tmp_path, "zzz")) == ()


def call(arguments: str) -> ToolCall:
    return ToolCall(CallId("c1"), MORE_TOOLS, arguments)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"call":"time","arguments":{"timezone":"UTC"}}', '{"timezone":"UTC"}'),
        ('{"call":"time","arguments":"{\\"timezone\\":\\"UTC\\"}"}', '{"timezone":"UTC"}'),
        ('{"call":"time"}', "{}"),
        ('{"call":"time","arguments":null}', "{}"),
        ('{"call":"time","find":"x","arguments":{bad'[:-4] + "{}}", "{}"),
    ],
)
def test_a_wrapped_call_becomes_the_tools_own_call(written: str, meant: str) -> None:
    found = unwrapped(call(written))
    assert (found.name, found.arguments, found.wrapped) == ("time", meant, True)
    assert found.written_name == MORE_TOOLS
    assert json.loads(found.written_arguments) == {"call": "time", "arguments": json.loads(meant)}


@pytest.mark.parametrize(
    "written",
    ['{"find":"time"}', '{"call":"more_tools"}', '{"call":"no such name"}', '{"call":5}', '{"call":"time"', "", "[]"],
)
def test_an_unknown_tool_name_is_unchanged(written: str) -> None:
    assert unwrapped(call(written)) == call(written)


def test_a_malformed_wrapped_call_is_answered_with_the_correct_form(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="pass its name as `call`"):
        more_tools.prepare('{"call":"more_tools"}', tool_context(tmp_path))
