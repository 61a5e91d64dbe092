"""The tools by which an agent changes itself: its instructions, documents, skills, model and permission profile."""

from collections.abc import Callable
from typing import Annotated, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from shoal.domain.errors import ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.tools.changes import replace_text
from shoal.tools.typed import Prepared, TypedTool, canonical

DONE = "It counts from your next turn on, and `/agent undo` takes it back."


class Edit(NamedTuple):
    """A planned change of one file of the agent's directory: its name there, the content before and after, the diff."""

    name: str
    old: bytes | None
    new: bytes | None
    diff: str


class Editor(Protocol):
    """What the tools ask of whoever keeps agents' files."""

    def setting(self, key: str, value: str, context: ToolContext) -> Edit:
        """Plan a change of a setting. Raises ToolError."""
        ...

    def document(self, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> Edit:
        """Plan a change of a file below docs/; `change` is given its text, None for none. Raises ToolError."""
        ...

    def skill(self, name: str, text: str | None, context: ToolContext) -> Edit:
        """Plan a change of a skill; None deletes it. Raises ToolError."""
        ...

    async def apply(self, edit: Edit, what: str, context: ToolContext) -> None:
        """Make a planned change durable. Raises ToolError when the file is no more what it was."""
        ...


Text = Annotated[str, Meta(description="The whole new text.", max_length=200_000)]
DocPath = Annotated[str, Meta(description="Path below your docs/, e.g. guides/tides.md.", min_length=1)]
SkillName = Annotated[str, Meta(description="Name of the skill: small letters and digits with hyphens.", min_length=1)]


class PromptArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `set_system_prompt` takes."""

    text: Annotated[str, Meta(description="Your whole new system prompt.", max_length=50_000)]


class ModelArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `set_model` takes."""

    model: Annotated[str, Meta(description="PROVIDER/MODEL, one that is configured.", min_length=1)]


class ProfileArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `set_permissions` takes."""

    profile: Annotated[str, Meta(description="Name of a permission profile, e.g. standard or locked.", min_length=1)]


class WriteDocArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `write_doc` takes."""

    path: DocPath
    text: Text


class EditDocArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `edit_doc` takes."""

    path: DocPath
    old_string: Annotated[str, Meta(description="The text to replace, exactly as it stands there, once.")]
    new_string: Annotated[str, Meta(description="What takes its place.")]


class DeleteDocArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `delete_doc` takes."""

    path: DocPath


class WriteSkillArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `write_skill` takes."""

    name: SkillName
    text: Annotated[
        str, Meta(description="The whole SKILL.md: front matter with name and description, then what to do.")
    ]


class DeleteSkillArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `delete_skill` takes."""

    name: SkillName


_Arguments = TypeVar("_Arguments", bound=msgspec.Struct)


class _SelfEditTool(TypedTool[_Arguments]):
    """Plans a change, shows its diff, and makes it when it may."""

    def __init__(self, arguments: type[_Arguments], editor: Editor) -> None:
        super().__init__(arguments)
        self.editor = editor

    def prepared(self, edit: Edit, detail: str, context: ToolContext) -> Prepared:
        """The call of a planned change."""
        what = f"{self.name} {detail}".strip()

        async def work() -> ToolOutput:
            await self.editor.apply(edit, what, context)
            return ToolOutput(f"{edit.name} is changed. {DONE}")

        old = (edit.old or b"").hex() if edit.old is not None else None
        effect = canonical(self.name, file=edit.name, old=old, new=edit.new.hex() if edit.new is not None else None)
        return Prepared((Action(f"tool:{self.name}:{detail}"),), f"{what}\n\n{edit.diff}", effect, work)


class SetSystemPromptTool(_SelfEditTool[PromptArguments]):
    """Sets the agent's system prompt."""

    name: ClassVar[str] = "set_system_prompt"
    description: ClassVar[str] = "Change your own system prompt, for all your conversations."

    def plan(self, arguments: PromptArguments, context: ToolContext) -> Invocation:
        """Plan the change of agent.toml."""
        line = " ".join(arguments.text.split())[:200]
        return self.prepared(self.editor.setting("system_prompt", arguments.text, context), line, context)


class SetModelTool(_SelfEditTool[ModelArguments]):
    """Sets the agent's model."""

    name: ClassVar[str] = "set_model"
    description: ClassVar[str] = "Change the model that you run on, for all your conversations."

    def plan(self, arguments: ModelArguments, context: ToolContext) -> Invocation:
        """Check the model and plan the change."""
        return self.prepared(self.editor.setting("model", arguments.model, context), arguments.model, context)


class SetPermissionsTool(_SelfEditTool[ProfileArguments]):
    """Sets the agent's permission profile."""

    name: ClassVar[str] = "set_permissions"
    description: ClassVar[str] = (
        "Change your own permission profile. It can get wider only when the owner or an approver asks you to."
    )

    def plan(self, arguments: ProfileArguments, context: ToolContext) -> Invocation:
        """Check who asks and plan the change."""
        return self.prepared(self.editor.setting("profile", arguments.profile, context), arguments.profile, context)


class WriteDocTool(_SelfEditTool[WriteDocArguments]):
    """Writes a document."""

    name: ClassVar[str] = "write_doc"
    description: ClassVar[str] = "Write one of your documents in docs/, which are part of every prompt of yours."

    def plan(self, arguments: WriteDocArguments, context: ToolContext) -> Invocation:
        """Plan the new text."""
        edit = self.editor.document(arguments.path, lambda old: arguments.text, context)
        return self.prepared(edit, edit.name.removeprefix("docs/"), context)


class EditDocTool(_SelfEditTool[EditDocArguments]):
    """Replaces a text in a document."""

    name: ClassVar[str] = "edit_doc"
    description: ClassVar[str] = "Replace a text in one of your documents in docs/."

    def plan(self, arguments: EditDocArguments, context: ToolContext) -> Invocation:
        """Find the text."""

        def change(old: str | None) -> str:
            if old is None:
                raise ToolError(f"There is no document {arguments.path}.")
            found, new = arguments.old_string, arguments.new_string
            return replace_text(old, found, new, replace_all=False, shown=arguments.path).content

        edit = self.editor.document(arguments.path, change, context)
        return self.prepared(edit, edit.name.removeprefix("docs/"), context)


class DeleteDocTool(_SelfEditTool[DeleteDocArguments]):
    """Deletes a document."""

    name: ClassVar[str] = "delete_doc"
    description: ClassVar[str] = "Delete one of your documents in docs/."

    def plan(self, arguments: DeleteDocArguments, context: ToolContext) -> Invocation:
        """Find the document."""
        edit = self.editor.document(arguments.path, lambda old: None, context)
        return self.prepared(edit, edit.name.removeprefix("docs/"), context)


class WriteSkillTool(_SelfEditTool[WriteSkillArguments]):
    """Writes a skill of the agent."""

    name: ClassVar[str] = "write_skill"
    description: ClassVar[str] = "Write down how to do something as a skill of yours, for later conversations."

    def plan(self, arguments: WriteSkillArguments, context: ToolContext) -> Invocation:
        """Check the front matter."""
        return self.prepared(self.editor.skill(arguments.name, arguments.text, context), arguments.name, context)


class DeleteSkillTool(_SelfEditTool[DeleteSkillArguments]):
    """Deletes a skill of the agent."""

    name: ClassVar[str] = "delete_skill"
    description: ClassVar[str] = "Delete one of your own skills."

    def plan(self, arguments: DeleteSkillArguments, context: ToolContext) -> Invocation:
        """Find the skill."""
        return self.prepared(self.editor.skill(arguments.name, None, context), arguments.name, context)


def self_edit_tools(editor: Editor) -> tuple[Tool, ...]:
    """All of them."""
    return (
        SetSystemPromptTool(PromptArguments, editor),
        SetModelTool(ModelArguments, editor),
        SetPermissionsTool(ProfileArguments, editor),
        WriteDocTool(WriteDocArguments, editor),
        EditDocTool(EditDocArguments, editor),
        DeleteDocTool(DeleteDocArguments, editor),
        WriteSkillTool(WriteSkillArguments, editor),
        DeleteSkillTool(DeleteSkillArguments, editor),
    )
