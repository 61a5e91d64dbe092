"""The tool's contract over every built-in tool and over a function with the decorator."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import jsonschema
import pytest

from shoal.features.memory.files import MemoryEdit
from shoal.features.memory.tools import note_tool, remember_tool
from shoal.features.processes.service import ProcessService, ProcessSettings, ProcessTable
from shoal.features.processes.store import ProcessStore
from shoal.features.processes.tools import process_tools
from shoal.features.recall.settings import RecallSettings
from shoal.features.recall.tools import RECALL, SEARCH_HISTORY, Library, recall_tool
from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.store import TriggerStore
from shoal.features.triggers.tools import remind_tool, schedule_tool
from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Author, Inbound, Receipt
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Mount, Tool, ToolContext
from shoal.kernel.settings import SandboxSettings, ToolsSettings
from shoal.kernel.traits import Traits
from shoal.sandbox import processes as host
from shoal.store.files import LocalFiles
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.chat import FakeChat
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.tool import ToolContract, tool_context
from shoal.testing.database import empty_database
from shoal.tools.builtin.overview import Agenda
from shoal.tools.functions import tool as make_tool
from shoal.tools.registry import Registry, command_actions, lookup_tools, standard_tools
from shoal.tools.tainted_files import MarkedFiles

RECALLS = (RECALL, SEARCH_HISTORY)


async def plain(actions: Sequence[Action], mounts: Sequence[Mount]) -> str:
    """Nobody else had a hand in anything."""
    return ""


GOOD = {
    "bash": {"command": "echo hello > file.txt"},
    "read": {"path": "notes.txt", "offset": 1},
    "view": {"path": "/workspace/notes.txt", "limit": 3},
    "write": {"path": "new/file.txt", "content": "x"},
    "create_file": {"path": "/scratch/file.txt", "content": "x\n"},
    "edit": {"path": "notes.txt", "old_string": "two", "new_string": "2"},
    "str_replace": {"path": "notes.txt", "old_str": "two", "new_str": "2"},
    "list": {"path": "/docs"},
    "upload": {"path": "notes.txt", "comment": "here"},
    "time": {"timezone": "Europe/Berlin"},
    "remember": {"text": "likes tea", "scope": "global"},
    "note_today": {"text": "met at noon"},
    "remind": {"when": "in 10 minutes", "text": "tea", "timezone": "Europe/Berlin"},
    "schedule": {"do": "create", "when": "0 9 * * 1-5", "text": "tea", "timezone": "Europe/Berlin"},
    "process_start": {"command": "make all", "name": "build", "hooks": [{"on": "output", "pattern": "error: .*"}]},
    "process_list": {"running": True},
    "process_logs": {"process": "01ABC", "tail": 20},
    "process_kill": {"process": "01ABC"},
    "read_url": {"url": "https://example.org/page"},
    "web_search": {"query": "tides", "count": 3},
    "brave_search": {"query": "tides", "count": 3},
    "read_artifact": {"artifact": "0123456789abcdef", "grep": "error"},
    "recall": {"query": "green tea", "limit": 3},
    "search_history": {"query": "green tea", "limit": 3},
    "search_channel": {"query": "tea"},
    "message": {"text": "hello", "to": "here"},
    "overview": {"hours": 24, "timezone": "Europe/Berlin"},
    "more_tools": {"find": "run in the background"},
    "weigh": {"name": "apple", "grams": 7},
}


@make_tool(Traits(effect="read"))
def weigh(name: Annotated[str, "What is weighed."], grams: Annotated[int, "Its weight."] = 1) -> str:
    """Weigh a thing."""
    return f"{name}: {grams} g"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """The built-in tools and a function, over one database."""
    folder = tmp_path_factory.mktemp("store")
    registry = Registry(standard_tools(SandboxSettings(), ToolsSettings()))
    clock = ManualClock()
    driver = SqliteDriver(empty_database(folder / "shoal.db"), synchronous="OFF")
    adapters = {"web": FakeChat("web")}
    for tool in lookup_tools(Store(driver, clock), LocalFiles(folder / "artifacts"), adapters, as_they_say, Agenda()):
        registry.add(tool)
    registry.add(weigh)
    for tool in (remember_tool(nothing_changes), note_tool(nothing_changes)):
        registry.add(tool)
    store, home = Store(driver, clock), Home(folder)
    table = ProcessTable(host.identity_of, host.is_alive, host.kill_leftovers)
    service = ProcessService(
        ProcessStore(store.driver, clock), home, clock, nowhere, str, table, ProcessSettings("host 1 2 3")
    )
    library = Library(home, store, clock, RecallSettings(), None)
    recalls = [recall_tool(library, store.search, MarkedFiles(store.settings, home), one) for one in RECALLS]
    triggers = TriggerStore(driver, clock)
    reminders = (remind_tool(never_added), schedule_tool(triggers, never_added))
    for tool in (*process_tools(service, command_actions, nothing), *recalls, *reminders):
        registry.add(tool)
    yield registry
    asyncio.run(driver.close())


async def nothing_changes(edit: MemoryEdit) -> None:
    """Has everything already."""


async def never_added(spec: NewTrigger) -> Trigger:
    """Stores nothing."""
    raise InvalidInput(f"{spec.schedule} never fires.")


async def as_they_say(_: ThreadId, author: Author) -> Author:
    """Trusts whom the platform trusts."""
    return author


async def nowhere(_: Inbound) -> Receipt:
    """Takes no message."""
    return Receipt("dropped")


def test_every_tool_has_an_example(tools: Registry) -> None:
    assert sorted(GOOD) == sorted(tools.names())


@pytest.mark.parametrize("name", sorted(GOOD))
class TestTools(ToolContract):
    """One tool after the other."""

    @pytest.fixture
    def tool(self, name: str, tools: Registry) -> Tool:
        """The tool."""
        found = tools.get(name)
        assert found is not None
        return found

    @pytest.fixture
    def good(self, name: str) -> str:
        """Its example."""
        return json.dumps(GOOD[name])

    @pytest.fixture
    def context(self, tmp_path: Path) -> ToolContext:
        """With a file to read and edit."""
        context = tool_context(tmp_path)
        (context.agent.workspace / "notes.txt").write_text("one\ntwo\nthree\n")
        return context

    def test_the_schema_is_valid_and_takes_the_example(self, tool: Tool, good: str) -> None:
        """By the JSON Schema standard."""
        schema = json.loads(tool.spec.parameters)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(good), schema)

    def test_an_unknown_argument_is_named(self, tool: Tool, context: ToolContext, good: str) -> None:
        """So that the model can correct itself."""
        with pytest.raises(ToolError, match=r"`surplus`.*It takes"):
            tool.prepare(json.dumps({**json.loads(good), "surplus": 1}), context)

    def test_read_only_tools_are_idempotent(self, tool: Tool) -> None:
        """What changes nothing may be repeated."""
        assert tool.traits.idempotent or not tool.traits.read_only or tool.spec.name == "weigh"


def test_flags_are_as_documented(tools: Registry) -> None:
    looks = {"more_tools", "overview", "process_list", "process_logs", "read_url", "web_search", "brave_search"}
    read_only = {"list", "read", "read_artifact", "recall", "search_channel", "search_history", "time", "view"}
    read_only |= {"weigh"}
    assert set(tools.traits.names(lambda tool: tool.read_only)) == read_only | looks
    again = {
        "create_file",
        "list",
        "message",
        "read",
        "read_artifact",
        "search_channel",
        "recall",
        "search_history",
        "time",
        "view",
        "write",
    } | looks
    assert set(tools.traits.names(lambda tool: tool.idempotent)) == again | {"process_kill"}
    assert tools.traits.names(lambda tool: tool.runs_commands) == ("bash", "process_start")


async def nothing(_: Sequence[Action], __: Sequence[Mount]) -> str:
    """No command brings anything in that others wrote."""
    return ""
