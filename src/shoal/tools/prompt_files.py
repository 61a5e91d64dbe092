"""Taint of the home's files that enter prompts, by spans of time for the whole home.

What an append, an edit or a copy leaves of a tainted file keeps its taint.

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
    """The marks of the home's files."""

    def __init__(self, marks: MarkedFiles, home: Home) -> None:
        self.marks = marks
        self.home = home

    async def sources(self, person: str | None = None) -> Callable[[str | Path], str]:
        """What tells the source of a file, of what this person may see of it (None: of all of it), empty when there is
        none, by what is known now. Raises StoreError."""
        return await self.marks.sources([self.home.root], person)

    async def source_of(self, *files: Path) -> str:
        """What had a hand in the first marked one of these files; empty when none is. Raises StoreError."""
        source_of = await self.sources()
        return next((source for file in files if (source := source_of(file))), "")

    @asynccontextmanager
    async def amending(
        self, files: Sequence[Path], source: str, seconds_max: float, person: str = ""
    ) -> AsyncGenerator[None]:
        """While the block runs, at most so long, changes are marked with the source, and with what marks these files.

        With a person, only lines that are for them alone are written, so that the source marks nobody else's prompt.
        Raises StoreError.
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
        """While the block runs, at most AMEND_SECONDS_MAX, changes are marked; nothing without a source."""
        return self.marks.during([self.home.root], source, AMEND_SECONDS_MAX)


def may_change(name: str, traits: Traits, actions: Sequence[Action], *, isolated: bool) -> bool:
    """Whether a call may change files of the home outside of the agent's workspace; `isolated`: commands cannot."""
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
    """The files whose text stays in what a call writes, by what its tool keeps."""
    home, agent = context.home, context.agent.home
    match keeps:
        case "memory":
            scopes = {action.detail.partition(" ")[0] for action in actions}
            if "person" in scopes:
                scopes.add("global")  # where it stands
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
