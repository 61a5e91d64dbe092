"""The files of the home that enter prompts: which of them untrusted content had a hand in.

file                                             how it enters a prompt
----------------------------------------------   --------------------------------------------------------------------
data/**/MEMORY.md, data/memory/                  memory and daily notes, in every prompt of their scope
agents/NAME/{agent.toml,*.md}, docs/, skills/    who the agent is, its documents, the list of its skills
agents/NAME/sessions/                            a saved conversation, once it is restored
data/events/, data/HEARTBEAT.md                  a message that starts a turn
template/                                        what the files of a new agent are made from

What a call changes there while untrusted content may steer it is marked, as in a workspace (`tools/marked.py`), by
spans of time for the whole home. What an append, an edit or a copy leaves of a marked file keeps its mark.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from shoal.domain.files import FolderMarks
from shoal.domain.home import Home
from shoal.domain.memory import MEMORY_SCOPES, memory_path, note_path
from shoal.domain.messages import ToolSpec
from shoal.domain.permissions import Action
from shoal.domain.ports import ToolContext

AMEND_SECONDS_MAX = 60.0
_ELSEWHERE = frozenset(("message", "upload", "remind", "schedule", "subagent", "spawn", "ask_agent", "process_kill"))
"""Tools that change something, but no file of the home outside of the agent's workspace."""
KEPT_FOR_PERSON = frozenset({"remember", "note_today"})
"""Tools that change nothing in a direct conversation that anybody but its person may see."""
_INSIDE = ("/workspace/", "/scratch/")


class PromptFiles:
    """The marks of the home's files."""

    def __init__(self, marks: FolderMarks, home: Home) -> None:
        self._marks = marks
        self._home = home

    async def sources(self, person: str | None = None) -> Callable[[Path], str]:
        """What tells the source of a file, of what this person may see of it (None: of all of it), empty when there is
        none, by what is known now. Raises StoreError."""
        return await self._marks.sources([self._home.root], person)

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
        root, sources = self._home.root, dict[str, str]()
        for file in files:
            sources = {**await self._marks.sources_by_person(root, file), **sources}
        if source:
            sources[person] = source
        async with AsyncExitStack() as stack:
            for whose, one in sources.items():
                await stack.enter_async_context(self._marks.during([root], one, seconds_max, whose))
            yield

    def marking(self, source: str) -> AbstractAsyncContextManager[None]:
        """While the block runs, at most AMEND_SECONDS_MAX, changes are marked; nothing without a source."""
        return self._marks.during([self._home.root], source, AMEND_SECONDS_MAX)


def may_change(spec: ToolSpec, actions: Sequence[Action], *, isolated: bool) -> bool:
    """Whether a call may change files of the home outside of the agent's workspace; `isolated`: commands cannot."""
    if spec.read_only or spec.name in _ELSEWHERE or (spec.runs_commands and isolated):
        return False
    return any(not action.text.startswith(_written_inside(spec.name)) for action in actions)


def amended(name: str, actions: Collection[Action], context: ToolContext) -> list[Path]:
    """The files whose text stays in what a call of this tool writes."""
    home, agent = context.home, context.agent.home
    match name:
        case "remember":
            scopes = {action.text.removeprefix("tool:remember:").partition(" ")[0] for action in actions}
            return [memory_path(home, scope, context.chat) for scope in MEMORY_SCOPES if scope in scopes]
        case "note_today":
            return [note_path(home, context.clock.now().date())]
        case "edit_doc":
            return [agent / "docs" / action.text.removeprefix("tool:edit_doc:") for action in actions]
        case "set_system_prompt" | "set_model" | "set_permissions":
            return [agent / "agent.toml"]
        case _:
            return []


def _written_inside(name: str) -> tuple[str, ...]:
    return tuple(f"tool:{name}:{folder}" for folder in _INSIDE)
