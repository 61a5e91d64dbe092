"""All tools by name: the built-in ones, those of extensions, and those a host program adds while it runs."""

from collections.abc import Callable

from shoal.domain.errors import InvalidInput
from shoal.domain.messages import ToolSpec
from shoal.domain.ports import Tool
from shoal.tools.functions import NAME

SELECTIONS_MAX = 256
"""How many different selections of tools are kept, so that the same selection is the same object."""


class Registry:
    """The tools. An unlisted one (an alias) is shown only to agents that name it."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._unlisted: set[str] = set()
        self._selections: dict[tuple[str, ...], tuple[ToolSpec, ...]] = {}

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
        self._selections.clear()

    def remove(self, name: str) -> None:
        """Take a tool away; nothing happens when there is none of that name."""
        if self._tools.pop(name, None) is not None:
            self._unlisted.discard(name)
            self._selections.clear()

    def get(self, name: str) -> Tool | None:
        """The tool of that name; None when there is none."""
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._tools))

    def specs(self, wanted: tuple[str, ...], is_hidden: Callable[[str], bool]) -> tuple[ToolSpec, ...]:
        """What an agent is told of: the `wanted` tools (empty: all listed ones) that are not hidden, sorted by name.

        The same selection of the same tools is the same tuple object, so that its encoding can be kept beside it.
        """
        candidates = set(wanted) if wanted else self._tools.keys() - self._unlisted
        names = tuple(sorted(name for name in candidates & self._tools.keys() if not is_hidden(name)))
        found = self._selections.get(names)
        if found is None:
            if len(self._selections) >= SELECTIONS_MAX:
                self._selections.clear()
            found = self._selections[names] = tuple(self._tools[name].spec for name in names)
        return found
