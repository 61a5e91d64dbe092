"""Taint of files in the home directory that enter prompts. It is stored as time spans for the complete directory
(`tainted_files`).

A file stays tainted after an append, an edit or a copy that retains tainted text.

file                                             how it enters a prompt
----------------------------------------------   --------------------------------------------------------------------
data/**/MEMORY.md, data/memory/                  as memory, in every prompt of its scope
agents/NAME/{agent.toml,*.md}, docs/, skills/    as the agent's identity, its documents and its list of skills
data/{IDENTITY,SYSTEM}.md                        as the identity of all agents, and as changes to their environment
agents/NAME/sessions/                            as a conversation, when a saved conversation is restored
data/events/, data/HEARTBEAT.md                  as a message that starts a turn
template/                                        through the files of new agents, which are copied from it
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from shoal.kernel.home import Home
from shoal.kernel.permissions import Action
from shoal.kernel.ports import ToolContext
from shoal.kernel.traits import Traits, TraitsByName
from shoal.tools.tainted_files import MarkedFiles

AMEND_SECONDS_MAX = 60.0
_INSIDE = ("/workspace/", "/scratch/")


class RetainedText(NamedTuple):
    """Files whose current text remains in the files that a call writes.

    `person` is the person for whom the call writes private lines, or an empty string if the lines are for everyone.
    If it is None, the trait `for_person` of the tool decides.
    """

    files: Sequence[Path] = ()
    person: str | None = None


Keeps: TypeAlias = Callable[[Collection[Action], ToolContext], RetainedText]


class PromptFiles:
    """Taint of the home directory's files.

    `keeps` maps the trait `keeps` of a tool to a function that returns the text that a call retains. Features add
    entries.
    """

    def __init__(self, marks: MarkedFiles, home: Home) -> None:
        self.marks = marks
        self.home = home
        self.keeps: dict[str, Keeps] = {}

    def retained_text(self, actions: Collection[Action], context: ToolContext, traits: TraitsByName) -> RetainedText:
        kinds = {traits.of(action.tool).keeps for action in actions}
        keeps = self.keeps.get(kinds.pop()) if len(kinds) == 1 else None
        return RetainedText() if keeps is None else keeps(actions, context)

    async def sources(self, person: str | None = None) -> Callable[[str | Path], str]:
        """Return a function that maps a file to its taint source, or to an empty string. The taint spans are read now,
        not when that function is called.

        If `person` is set, only sources that this person may see are returned. Raises StoreError.
        """
        return await self.marks.sources([self.home.root], person)

    async def source_of(self, *files: Path) -> str:
        source_of = await self.sources()
        return next((source for file in files if (source := source_of(file))), "")

    @asynccontextmanager
    async def amending(
        self, files: Sequence[Path], source: str, seconds_max: float, person: str = ""
    ) -> AsyncGenerator[None]:
        """Taint changes with `source` and with the sources of `files` while the block runs, for at most `seconds_max`.

        If `person` is set, the call writes only lines for that person, so `source` taints nobody else's prompt.
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
        return self.marks.during([self.home.root], source, AMEND_SECONDS_MAX)


def may_change(name: str, traits: Traits, actions: Sequence[Action], *, isolated: bool) -> bool:
    """Return True if a call may change files of the home directory outside the agent's workspace. Commands in an
    isolating sandbox cannot.
    """
    if traits.read_only or traits.changes in ("nothing", "workspace") or (traits.runs_commands and isolated):
        return False
    inside = tuple(f"tool:{name}:{folder}" for folder in _INSIDE)
    return any(not action.text.startswith(inside) for action in actions)
