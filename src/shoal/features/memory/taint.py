"""Find the memory files in which untrusted text may remain after a tool call changes them."""

from collections.abc import Collection

from shoal.kernel.memory_files import MEMORY_SCOPES, memory_path, note_path
from shoal.kernel.permissions import Action
from shoal.kernel.ports import ToolContext
from shoal.tools.prompt_files import RetainedText


def retained_memory(actions: Collection[Action], context: ToolContext) -> RetainedText:
    """Return the files that `remember` changes, and the owner of the changed lines. Edits to /memory pages use the same
    actions.
    """
    home, scopes = context.home, {action.detail.partition(" ")[0] for action in actions}
    person = context.purpose.audience.speaker if scopes == {"person"} else context.purpose.audience.person
    if "person" in scopes:
        scopes.add("global")  # the global file contains the person's lines
    files = [memory_path(home, scope, context.chat) for scope in MEMORY_SCOPES if scope in scopes]
    days = [scope for scope in scopes if scope.isdecimal()]
    return RetainedText([*files, *(home.data / "memory" / day[:6] / f"{day}.md" for day in days)], person)


def retained_note(actions: Collection[Action], context: ToolContext) -> RetainedText:
    return RetainedText([note_path(context.home, context.clock.local().date())])
