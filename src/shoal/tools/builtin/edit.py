"""The tool `edit`, with `str_replace` as another name: what was shown for approval is exactly what is applied."""

import hashlib
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.tools.builtin.files import TEXT_BYTES_MAX, PathArgument
from shoal.tools.changes import Change, replace_text
from shoal.tools.jail import Jail, Place, jail_of, require_room
from shoal.tools.locks import PathLocks
from shoal.tools.threads import in_thread
from shoal.tools.typed import Prepared, TypedTool, canonical


class EditArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `edit` takes."""

    path: PathArgument
    old_string: Annotated[str, Meta(description="The text to replace, exactly as it is in the file.")]
    new_string: Annotated[str, Meta(description="The text to put in its place.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence instead of the only one.")] = False


class StrReplaceArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `str_replace` takes."""

    path: PathArgument
    old_str: Annotated[str, Meta(description="The text to replace, exactly as it is in the file, where it is unique.")]
    new_str: Annotated[str, Meta(description="The text to put in its place.")]


class _Edit(msgspec.Struct, frozen=True):
    """One edit of one file, which can be worked out again on what the file has become."""

    tool: str
    jail: Jail
    place: Place
    old: str
    new: str
    replace_all: bool

    def change(self) -> tuple[Change, str]:
        """What the edit does to the file as it is now, and the digest of that. Raises ToolError."""
        content = self.jail.read(self.place, TEXT_BYTES_MAX)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"{self.place.shown} is not UTF-8 text, so it cannot be edited as text.") from error
        change = replace_text(text, self.old, self.new, replace_all=self.replace_all, shown=self.place.shown)
        return change, hashlib.sha256(content).hexdigest()

    def apply(self, approved: Change) -> ToolOutput:
        """Make the change if it still reads as approved, at whatever lines. Raises ToolError when it does not."""
        change, _ = self.change()
        if change.body != approved.body:
            raise ToolError(
                f"{self.place.shown} has changed since this edit was prepared, and the edit would now do "
                "something else than was shown. Nothing was changed. Read the file again."
            )
        self.jail.write(self.place, change.content.encode())
        times = "" if change.times == 1 else f" {change.times} times"
        return ToolOutput(f"Edited {self.place.shown}{times}:\n{change.diff}")


class EditTool(TypedTool[EditArguments]):
    """Replaces a text in a file."""

    name: ClassVar[str] = "edit"
    description: ClassVar[str] = (
        "Replace text in a file. old_string must be in the file exactly once, white space included; give enough of the "
        "lines around it, or set replace_all. Read the file first."
    )

    def __init__(self, locks: PathLocks) -> None:
        super().__init__(EditArguments)
        self._locks = locks

    def plan(self, arguments: EditArguments, context: ToolContext) -> Invocation:
        """Read the file and work out the change."""
        return _planned(self.name, context, self._locks, arguments)


class StrReplaceTool(TypedTool[StrReplaceArguments]):
    """`edit` under another name, with the names of arguments that go with it."""

    name: ClassVar[str] = "str_replace"
    description: ClassVar[str] = "Replace text in a file: old_str, which must be in it exactly once, by new_str."

    def __init__(self, locks: PathLocks) -> None:
        super().__init__(StrReplaceArguments)
        self._locks = locks

    def plan(self, arguments: StrReplaceArguments, context: ToolContext) -> Invocation:
        """Read the file and work out the change."""
        same = EditArguments(arguments.path, arguments.old_str, arguments.new_str)
        return _planned(self.name, context, self._locks, same)


def _planned(tool: str, context: ToolContext, locks: PathLocks, arguments: EditArguments) -> Invocation:
    """The call. A problem with the content is told when it runs: until then nobody has allowed to read the file."""
    jail = jail_of(context)
    place = jail.resolve(arguments.path)
    jail.require_writable(place)
    edit = _Edit(tool, jail, place, arguments.old_string, arguments.new_string, arguments.replace_all)
    actions = (Action(f"tool:{tool}:{place.shown}"),)
    effect = {"path": place.shown, "old": edit.old, "new": edit.new, "replace_all": edit.replace_all}
    try:
        change, before = edit.change()
    except ToolError as error:
        problem = error

        async def fail() -> ToolOutput:
            raise problem

        shown = f"{tool} {place.shown}\n\nThis edit cannot be made, and running it only tells the agent why."
        return Prepared(actions, shown, canonical(tool, **effect, before=""), fail)

    async def work() -> ToolOutput:
        await require_room(context)
        async with locks.hold(place.host, place.shown):
            return await in_thread(lambda: edit.apply(change))

    return Prepared(actions, f"{tool} {place.shown}\n\n{change.diff}", canonical(tool, **effect, before=before), work)
