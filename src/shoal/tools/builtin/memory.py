"""The tools `remember` and `note_today`: what an agent keeps beyond a conversation."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from shoal.domain.errors import InvalidInput, ToolError
from shoal.domain.memory import MemoryScope, entry_line, memory_path, note_path
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.tools.notebook import append_entry
from shoal.tools.threads import in_thread
from shoal.tools.typed import Prepared, TypedTool, canonical

_Writing: TypeAlias = Callable[[], bool]


class RememberArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `remember` takes."""

    text: Annotated[str, Meta(description="One fact or preference, in one sentence that stands by itself.")]
    scope: Annotated[
        MemoryScope,
        Meta(description="Where it holds: this channel, all of this platform, or everywhere. Take the narrowest."),
    ] = "channel"


class RememberTool(TypedTool[RememberArguments]):
    """Adds a line to a scope's MEMORY.md."""

    name: ClassVar[str] = "remember"
    description: ClassVar[str] = (
        "Keep something for later conversations: add a line to your long-term memory, which you see in every prompt. "
        "What you keep in a direct conversation only stands in the prompts of that person's own."
    )

    def __init__(self) -> None:
        super().__init__(RememberArguments)

    def plan(self, arguments: RememberArguments, context: ToolContext) -> Invocation:
        """Make the line and find the file. Raises ToolError when there is nothing or too much to keep."""
        line = _line(arguments.text)
        path = memory_path(context.home, arguments.scope, context.chat)
        person = "" if arguments.scope == "channel" else context.purpose.audience.person

        async def work() -> ToolOutput:
            if await _append(path, line, person, once=True):
                return ToolOutput(f"Remembered for scope {arguments.scope}: {line.removeprefix('- ')}")
            return ToolOutput(f"The memory of scope {arguments.scope} has that already. Nothing was added.")

        action = Action(f"tool:{self.name}:{arguments.scope} {line.removeprefix('- ')}")
        shown = f"{self.name} ({arguments.scope})\n\n{line}"
        effect = canonical(self.name, scope=arguments.scope, file=str(path), line=line, person=person)
        return Prepared((action,), shown, effect, work)


class NoteArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `note_today` takes."""

    text: Annotated[str, Meta(description="What happened or was decided, in one line.")]


class NoteTool(TypedTool[NoteArguments]):
    """Adds a line to the daily note."""

    name: ClassVar[str] = "note_today"
    description: ClassVar[str] = "Write a line into today's note. You see the notes of the last days in every prompt."

    def __init__(self) -> None:
        super().__init__(NoteArguments)

    def plan(self, arguments: NoteArguments, context: ToolContext) -> Invocation:
        """Make the line. Raises ToolError when there is nothing or too much to write."""
        words = _line(arguments.text).removeprefix("- ")

        async def work() -> ToolOutput:
            now = context.clock.now()
            line, person = f"- {now:%H:%M} {words}", context.purpose.audience.person
            await _append(note_path(context.home, now.date()), line, person, once=False)
            return ToolOutput(f"Noted: {words}")

        action = Action(f"tool:{self.name}:{words}")
        return Prepared((action,), f"{self.name}\n\n{words}", canonical(self.name, text=words), work)


def _line(text: str) -> str:
    try:
        return entry_line(text)
    except InvalidInput as error:
        raise ToolError(str(error)) from error


async def _append(path: Path, line: str, person: str, *, once: bool) -> bool:
    try:
        return await in_thread(lambda: append_entry(path, line, once=once, person=person))
    except InvalidInput as error:
        raise ToolError(str(error)) from error
    except OSError as error:
        raise ToolError(f"The memory file could not be written: {error.strerror or error}.") from error
