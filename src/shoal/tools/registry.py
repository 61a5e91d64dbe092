"""All tools by name: the built-in ones, those of extensions, and those a host program adds while it runs."""

from collections.abc import Callable, Mapping

from shoal.domain.errors import InvalidInput
from shoal.domain.files import Files
from shoal.domain.messages import MORE_TOOLS, Judge, ToolSpec
from shoal.domain.permissions import Action
from shoal.domain.ports import ChatAdapter, Tool, ToolContext
from shoal.domain.settings import SandboxSettings, ToolsSettings
from shoal.domain.triggers import first_time
from shoal.domain.web import Fetcher
from shoal.permissions.taint import taint_of
from shoal.store.store import Store
from shoal.tools.builtin.files import edit_tool, list_directory, read_tool, str_replace_tool, write_tool
from shoal.tools.builtin.lookup import read_artifact_tool, search_channel_tool
from shoal.tools.builtin.memory import note_today, remember
from shoal.tools.builtin.message import message_tool, upload
from shoal.tools.builtin.overview import overview_tool
from shoal.tools.builtin.schedule import remind, schedule_tool, time
from shoal.tools.builtin.shell import bash_tool
from shoal.tools.builtin.web import read_url_tool, web_search_tool
from shoal.tools.fetch import GuardedFetcher
from shoal.tools.functions import NAME
from shoal.tools.locks import PathLocks
from shoal.tools.offer import Offer, more_tools, offer, split

SELECTIONS_MAX = 256
"""How many different selections of tools are kept, so that the same selection is the same object."""


class Registry:
    """The tools. An unlisted one (an alias) is shown only to agents that name it."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._unlisted: set[str] = set()
        self._selections: dict[tuple[bool, bool, tuple[str, ...]], Offer] = {}
        self._offers: dict[tuple[tuple[str, ...], Callable[[str], bool]], Offer] = {}

    def add(self, tool: Tool, *, listed: bool = True) -> None:
        """Register a tool. Raises InvalidInput when its name is taken or no provider would take it."""
        name = tool.spec.name
        if name in self._tools:
            raise InvalidInput(f"There is a tool called {name} already; remove it first or take another name.")
        if not NAME.fullmatch(name):
            raise InvalidInput(f"A tool cannot be called {name!r}: use 1 to 64 letters, digits, '_' and '-'.")
        self._tools[name] = tool
        if not listed:
            self._unlisted.add(name)
        self._forget()

    def remove(self, name: str) -> None:
        """Take a tool away; nothing happens when there is none of that name."""
        if self._tools.pop(name, None) is not None:
            self._unlisted.discard(name)
            self._forget()

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))

    def every(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def offer(self, wanted: tuple[str, ...], is_hidden: Callable[[str], bool]) -> Offer:
        """What an agent is told of: the `wanted` tools (empty: all listed ones) that are not hidden, sorted by name.

        Wanted ones are all told from the start, and so are all where `more_tools` is hidden. The same selection of the
        same tools is the same object, so that its encoding can be kept beside it. One `is_hidden` always says the same.
        """
        if (kept := self._offers.get((wanted, is_hidden))) is not None:
            return kept
        candidates = set(wanted) if wanted else self._tools.keys() - self._unlisted
        names = tuple(sorted(name for name in candidates & self._tools.keys() if not is_hidden(name)))
        may_find = MORE_TOOLS in self._tools and not is_hidden(MORE_TOOLS)
        may_defer = may_find and not wanted
        found = self._selections.get((may_defer, may_find, names))
        if found is None:
            specs = tuple(self._tools[name].spec for name in names if name != MORE_TOOLS)
            found = split(specs) if may_defer else offer(specs, (), may_find=may_find)
            self._selections[may_defer, may_find, names] = found
        if len(self._offers) >= SELECTIONS_MAX:
            self._forget()
        self._offers[wanted, is_hidden] = found
        return found

    def _forget(self) -> None:
        self._selections.clear()
        self._offers.clear()


def standard_tools(sandbox: SandboxSettings, settings: ToolsSettings, fetcher: Fetcher | None = None) -> Registry:
    """A registry with the built-in tools; other names for the same (`view`, `create_file`, `str_replace`,
    `brave_search`) unlisted.

    `fetcher` opens what the web tools ask for, a guarded client unless told. With `tools.hardware`, those for the
    machine's I2C and SPI buses are among them.
    """
    fetcher = fetcher or GuardedFetcher()
    registry = Registry()
    locks = PathLocks()
    tools: list[Tool] = [
        bash_tool(command_actions, sandbox),
        read_tool(),
        write_tool(locks),
        edit_tool(locks),
        list_directory,
        upload,
        time,
        more_tools,
        remember,
        note_today,
        remind,
        read_url_tool(fetcher),
        web_search_tool(fetcher, settings.brave_api_key.reveal),
    ]
    if settings.hardware:
        from shoal.tools.builtin.hardware import hardware_tools

        tools += hardware_tools()
    for one in tools:
        registry.add(one)
    searches = web_search_tool(fetcher, settings.brave_api_key.reveal, name="brave_search")
    for alias in (read_tool("view"), write_tool(locks, "create_file"), str_replace_tool(locks), searches):
        registry.add(alias, listed=False)
    return registry


def lookup_tools(store: Store, files: Files, adapters: Mapping[str, ChatAdapter], judge: Judge) -> tuple[Tool, ...]:
    """What an agent can look up beyond its prompt, and say beside its answer.

    `judge` says whom of the platforms' people to trust.
    """
    return (
        read_artifact_tool(store.artifacts, files, store.journal, store.snapshots),
        search_channel_tool(store.search, adapters, judge),
        message_tool(adapters),
        overview_tool(store, taint_of),
        schedule_tool(store.triggers, first_time),
    )


def command_actions(tool: str, command: str, context: ToolContext) -> tuple[Action, ...]:
    """What a command of a tool will do, in the first of the call's mounts."""
    cwd = context.mounts[0].host
    from shoal.permissions.actions import shell_actions  # not loaded before the first command is judged

    return shell_actions(tool, command, cwd=cwd, mounts=context.mounts, isolated=context.sandbox.isolated)
