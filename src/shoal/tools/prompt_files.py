"""Taint of the home's files that enter prompts, recorded as time spans for the whole home.

Text of a tainted file that remains after an append, an edit or a copy stays tainted.

file                                             how it enters a prompt
----------------------------------------------   --------------------------------------------------------------------
data/**/MEMORY.md, data/memory/                  memory and daily notes, in every prompt of their scope
agents/NAME/{agent.toml,*.md}, docs/, skills/    who the agent is, its documents, the list of its skills
data/{IDENTITY,SYSTEM}.md                        who all agents are, what was changed in their environment
agents/NAME/sessions/                            a saved conversation, once it is restored
data/events/, data/HEARTBEAT.md                  a message that starts a turn
template/                                        what the files of a new agent are made from
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from shoal.kernel.home import MEMORY_FILE, MEMORY_SCOPES, Home, MemoryScope, memory_path, note_path
from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import Action
from shoal.kernel.ports import ToolContext
from shoal.kernel.traits import Keeps, Traits, TraitsByName
from shoal.tools.read_files import MEMORY_PAGES
from shoal.tools.tainted_files import MarkedFiles

AMEND_SECONDS_MAX = 60.0
_INSIDE = ("/workspace/", "/scratch/")


class PromptFiles:
    """The taint marks of the home's files."""

    def __init__(self, marks: MarkedFiles, home: Home) -> None:
        self.marks = marks
        self.home = home

    async def sources(self, person: str | None = None) -> Callable[[str | Path], str]:
        """Return a function from a file to its source, as far as this person may see it (None: all), or an empty
        string. Based on the marks at the time of the call. Raises StoreError."""
        return await self.marks.sources([self.home.root], person)

    async def source_of(self, *files: Path) -> str:
        """Return the source of the first marked file among these, or an empty string. Raises StoreError."""
        source_of = await self.sources()
        return next((source for file in files if (source := source_of(file))), "")

    @asynccontextmanager
    async def amending(
        self, files: Sequence[Path], source: str, seconds_max: float, person: str = ""
    ) -> AsyncGenerator[None]:
        """While the block runs, at most this long, mark changes with the source and with the marks of these files.

        With a person, only lines for them alone are written, so the source marks nobody else's prompt. Raises
        StoreError.
        """
        root, sources = self.home.root, dict[str, str]()
        for file in files:
            sources = {**await self.marks.sources_by_person(root, file), **sources}
        if source:
            sources[person] = source
        async with AsyncExitStack() as stack:
            for whose, one in sources.items():
                await stack.enter_async_context(self.marks.during([root], one, seconds_max, whose))
            yield

    def marking(self, source: str) -> AbstractAsyncContextManager[None]:
        """Mark changes while the block runs, at most AMEND_SECONDS_MAX. Does nothing without a source."""
        return self.marks.during([self.home.root], source, AMEND_SECONDS_MAX)


def may_change(name: str, traits: Traits, actions: Sequence[Action], *, isolated: bool) -> bool:
    """Whether a call may change files of the home outside the agent's workspace. Commands cannot if they are
    `isolated`."""
    if traits.read_only or traits.changes in ("nothing", "workspace") or (traits.runs_commands and isolated):
        return False
    inside = tuple(f"tool:{name}:{folder}" for folder in _INSIDE)
    return any(not action.text.startswith(inside) for action in actions)


def memory_read(actions: Sequence[Action], home: Home, chat: ThreadId, traits: TraitsByName) -> list[Path]:
    """Return the memory files that a file-reading tool call reads, by the names of their pages."""
    scopes: list[tuple[str, MemoryScope]] = [("person", "global"), *((scope, scope) for scope in MEMORY_SCOPES)]
    named: dict[str, MemoryScope] = {f"{MEMORY_PAGES}{name}/{MEMORY_FILE}": scope for name, scope in scopes}
    return [
        memory_path(home, named[action.detail], chat)
        for action in actions
        if action.detail in named and traits.of(action.tool).shows_file
    ]


def amended(keeps: Keeps, actions: Collection[Action], context: ToolContext) -> list[Path]:
    """Return the files whose text remains in what a call writes, according to its tool."""
    home, agent = context.home, context.agent.home
    match keeps:
        case "memory":
            scopes = {action.detail.partition(" ")[0] for action in actions}
            if "person" in scopes:
                scopes.add("global")  # in its present place
            files = [memory_path(home, scope, context.chat) for scope in MEMORY_SCOPES if scope in scopes]
            days = [scope for scope in scopes if scope.isdecimal()]
            return [*files, *(home.data / "memory" / day[:6] / f"{day}.md" for day in days)]
        case "note":
            return [note_path(home, context.clock.local().date())]
        case "document":
            return [agent / "docs" / action.detail for action in actions]
        case "settings":
            return [agent / "agent.toml"]
        case "":
            return []
