"""The registry of all tools: built-in tools, tools of extensions, and tools that a host program adds at run time."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType

from shoal.kernel.errors import InvalidInput
from shoal.kernel.files import Files
from shoal.kernel.messages import MORE_TOOLS, Judge, ToolSpec
from shoal.kernel.permissions import Action
from shoal.kernel.ports import ChatAdapter, Tool, ToolContext
from shoal.kernel.settings import SandboxSettings, ToolsSettings
from shoal.kernel.traits import Traits, TraitsByName
from shoal.net.addresses import Fetcher
from shoal.net.fetch import GuardedFetcher
from shoal.permissions.taint import taint_of
from shoal.store.store import Store
from shoal.tools import builtin
from shoal.tools.builtin.files import CREATE_FILE, VIEW, edit_tool, read_tool, str_replace_tool, write_tool
from shoal.tools.builtin.lookup import read_artifact_tool, search_channel_tool
from shoal.tools.builtin.message import message_tool
from shoal.tools.builtin.overview import Agenda, overview_tool
from shoal.tools.builtin.shell import bash_tool
from shoal.tools.builtin.web import BRAVE_SEARCH, read_url_tool, web_search_tool
from shoal.tools.functions import NAME, FunctionTool, ToolDecorator
from shoal.tools.locks import PathLocks
from shoal.tools.offer import Offer, more_tools, offer, split

SELECTIONS_MAX = 256
"""Maximum number of cached tool selections. Because of the cache, equal selections are the same object."""


class Registry:
    """Registered tools, with their `traits` by name. `away` returns name patterns of tools that are unavailable
    now but may be registered again.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self.traits = TraitsByName()
        self.away: Callable[[], Iterable[str]] = tuple
        self._selections: dict[tuple[bool, bool, tuple[str, ...]], Offer] = {}
        self._offers: dict[tuple[tuple[str, ...], Callable[[str], bool]], Offer] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Register a tool. Raises InvalidInput if the name is taken or if some providers would reject it."""
        name = tool.spec.name
        if name in self._tools:
            raise InvalidInput(
                f"A tool named {name} already exists. Remove the existing tool first, or choose another name."
            )
        if not NAME.fullmatch(name):
            raise InvalidInput(f"A tool cannot be named {name!r}: use 1 to 64 letters, digits, '_' and '-'.")
        self._tools[name] = tool
        self.traits.add(name, tool.traits)
        self._forget()

    def remove(self, name: str) -> None:
        if self._tools.pop(name, None) is not None:
            self.traits.remove(name)
            self._forget()

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))

    def every(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def offer(self, wanted: tuple[str, ...], is_hidden: Callable[[str], bool]) -> Offer:
        """Return the `wanted` tools, sorted by name and without hidden ones. If `wanted` is empty, return all tools
        except those that an agent must name.

        Requests define all of these tools if `wanted` is set or `more_tools` is hidden. The same selection returns
        the same object, so callers can cache its encoding. `is_hidden` must be deterministic.
        """
        if (offer_cached := self._offers.get((wanted, is_hidden))) is not None:
            return offer_cached
        candidates = wanted or self.traits.names(lambda tool: tool.offered != "by_name")
        names = tuple(sorted({name for name in candidates if name in self._tools and not is_hidden(name)}))
        may_find = MORE_TOOLS in self._tools and not is_hidden(MORE_TOOLS)
        may_defer = may_find and not wanted
        selection = self._selections.get((may_defer, may_find, names))
        if selection is None:
            specs = tuple(self._tools[name].spec for name in names if name != MORE_TOOLS)
            selection = split(specs, self.traits) if may_defer else offer(specs, (), may_find=may_find)
            self._selections[may_defer, may_find, names] = selection
        if len(self._offers) >= SELECTIONS_MAX:
            self._forget()
        self._offers[wanted, is_hidden] = selection
        return selection

    def _forget(self) -> None:
        self._selections.clear()
        self._offers.clear()


def built_in_modules() -> list[ModuleType]:
    files = {file for folder in builtin.__path__ for file in os.listdir(folder) if file.endswith(".py")}
    names = sorted(file.removesuffix(".py") for file in files if not file.startswith("_"))
    return [import_module(f"{builtin.__name__}.{name}") for name in names]


def traits_in(module: ModuleType) -> Iterator[tuple[str, Traits]]:
    for value in vars(module).values():
        if isinstance(value, FunctionTool):
            yield value.spec.name, value.traits
        elif isinstance(value, ToolDecorator) and value.name:
            yield value.name, value.traits


def standard_tools(sandbox: SandboxSettings, settings: ToolsSettings, fetcher: Fetcher | None = None) -> list[Tool]:
    fetcher, locks, key = fetcher or GuardedFetcher(), PathLocks(), settings.brave_api_key.reveal
    functions = (value for module in built_in_modules() for value in vars(module).values())
    return [
        more_tools,
        *(value for value in functions if isinstance(value, FunctionTool)),
        bash_tool(command_actions, sandbox),
        read_tool(),
        read_tool(VIEW),
        write_tool(locks),
        write_tool(locks, CREATE_FILE),
        edit_tool(locks),
        str_replace_tool(locks),
        read_url_tool(fetcher),
        web_search_tool(fetcher, key),
        web_search_tool(fetcher, key, BRAVE_SEARCH),
    ]


def lookup_tools(
    store: Store, files: Files, adapters: Mapping[str, ChatAdapter], judge: Judge, agenda: Agenda
) -> tuple[Tool, ...]:
    return (
        read_artifact_tool(store.artifacts, files, store.journal, store.windows),
        search_channel_tool(store.search, adapters, judge),
        message_tool(adapters),
        overview_tool(store, agenda, taint_of),
    )


def command_actions(tool: str, command: str, context: ToolContext) -> tuple[Action, ...]:
    cwd = context.mounts[0].host
    from shoal.permissions.actions import shell_actions  # imported here because it is slow

    return shell_actions(tool, command, cwd=cwd, mounts=context.mounts, isolated=context.sandbox.isolated)
