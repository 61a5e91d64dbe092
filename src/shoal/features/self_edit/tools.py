"""Tools that show and change an agent's own settings, persona files, documents and skills."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from shoal.features.self_edit.editor import SelfEditor
from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import AGENT_ITSELF, LOOKUP, Traits, Treatment, Treatments
from shoal.tools.builtin.files import replace_text
from shoal.tools.functions import Prepared, planned, tool

if TYPE_CHECKING:
    from shoal.services import Services

Text = Annotated[str, Meta(description="The complete new text.", max_length=200_000)]
DocPath = Annotated[str, Meta(description="Path below your docs/, e.g. guides/tides.md.", min_length=1)]
SkillName = Annotated[str, Meta(description="Name of the skill: lowercase letters, digits and hyphens.", min_length=1)]


_EDIT = Traits(
    group="agent",
    offered="deferred",
    effect="lasting",
    origin="own",
    harm="agent",
    changes="home",
    undo="agent",
    treatments=Treatments(
        guarded=Treatment(otherwise="deny", others=AGENT_ITSELF),
    ),
)
_SETTING = replace(_EDIT, keeps="settings")
MY_SETTINGS = tool(replace(LOOKUP, group="agent", origin="own"), name="my_settings")
SET_SYSTEM_PROMPT = tool(_SETTING, name="set_system_prompt", example={"text": "You watch the harbour."})
SET_MODEL = tool(_SETTING, name="set_model", example={"model": "openai/gpt-5"})
SET_PERMISSIONS = tool(_SETTING, name="set_permissions", example={"profile": "locked"})
SET_TOOLS = tool(_SETTING, name="set_tools", example={"tools": ["bash", "read"]})
SET_PERSONA = tool(_EDIT, name="set_persona", example={"file": "SOUL.md", "text": "Calm."})
WRITE_DOC = tool(_EDIT, name="write_doc", example={"path": "tides.md", "text": "Low at six."})
EDIT_DOC = tool(
    replace(_EDIT, keeps="document"),
    name="edit_doc",
    example={"path": "tides.md", "old_string": "noon", "new_string": "one"},
)
DELETE_DOC = tool(_EDIT, name="delete_doc", example={"path": "tides.md"})
WRITE_SKILL = tool(
    _EDIT,
    name="write_skill",
    example={"name": "tide-table", "text": "---\nname: tide-table\ndescription: Looks up tides.\n---\nRead it twice."},
)
DELETE_SKILL = tool(_EDIT, name="delete_skill", example={"name": "tide-table"})


def self_edit_tools(services: "Services") -> tuple[Tool, ...]:
    editor = services[SelfEditor]
    return (*setting_tools(editor), *document_tools(editor))


def setting_tools(editor: SelfEditor) -> tuple[Tool, ...]:
    @SET_SYSTEM_PROMPT
    def set_system_prompt(
        context: ToolContext,
        text: Annotated[str, Meta(description="Your complete new system prompt.", max_length=50_000)],
    ) -> Invocation:
        """Change your own system prompt, for all your conversations."""
        line = " ".join(text.split())[:200]
        return editor.prepared("set_system_prompt", editor.setting("system_prompt", text, context), line, context)

    @SET_MODEL
    def set_model(
        context: ToolContext,
        model: Annotated[str, Meta(description="PROVIDER/MODEL of a configured provider.", min_length=1)],
    ) -> Invocation:
        """Change the model you run on, for all your conversations."""
        return editor.prepared("set_model", editor.setting("model", model, context), model, context)

    @SET_PERMISSIONS
    def set_permissions(
        context: ToolContext,
        profile: Annotated[
            str, Meta(description="Name of a permission profile, e.g. standard or locked.", min_length=1)
        ],
    ) -> Invocation:
        """Change your own permission profile. You can get a wider profile only if the owner or an approver asks you
        to."""
        return editor.prepared("set_permissions", editor.setting("profile", profile, context), profile, context)

    @SET_TOOLS
    def set_tools(
        context: ToolContext,
        tools: Annotated[
            tuple[str, ...],
            Meta(description="Names of all tools you should have. Empty means every tool.", max_length=200),
        ],
    ) -> Invocation:
        """Change which tools you have in all your conversations. You can get more tools only if the owner or an
        approver asks you to, and never a tool that your profile denies."""
        return editor.prepared("set_tools", editor.tools(tools, context), " ".join(tools) or "all", context)

    @SET_PERSONA
    def set_persona(
        context: ToolContext,
        file: Annotated[
            Literal["IDENTITY.md", "SOUL.md", "AGENTS.md", "USER.md", "SYSTEM.md"],
            Meta(
                description="IDENTITY.md: who you are. SOUL.md: your character. AGENTS.md: how you work. "
                "USER.md: the person you work for. SYSTEM.md, shared by all agents: changes to this "
                "environment."
            ),
        ],
        text: Annotated[str, Meta(description="The complete new text. Empty deletes the file.", max_length=32_768)],
    ) -> Invocation:
        """Write one of your persona files, which are part of all your prompts."""
        return editor.prepared("set_persona", editor.persona(file, text, context), file, context)

    @MY_SETTINGS
    def my_settings(context: ToolContext) -> Invocation:
        """Show your own settings: model, profile, tools, budget, bound channels."""

        async def work() -> ToolOutput:
            return ToolOutput(await editor.settings(context), is_piece=True)

        return planned("my_settings", context.agent.name, work)

    return my_settings, set_system_prompt, set_model, set_permissions, set_tools, set_persona


def document_tools(editor: SelfEditor) -> tuple[Tool, ...]:
    def document(name: str, path: str, change: Callable[[str | None], str | None], context: ToolContext) -> Prepared:
        edit = editor.document(path, change, context)
        return editor.prepared(name, edit, edit.name.removeprefix("docs/"), context)

    @WRITE_DOC
    def write_doc(context: ToolContext, path: DocPath, text: Text) -> Invocation:
        """Write one of your documents in docs/, which are part of all your prompts."""
        return document("write_doc", path, lambda _: text, context)

    @EDIT_DOC
    def edit_doc(
        context: ToolContext,
        path: DocPath,
        old_string: Annotated[str, Meta(description="The exact text to replace. It must occur once.")],
        new_string: Annotated[str, Meta(description="The new text.")],
    ) -> Invocation:
        """Replace text in one of your documents in docs/."""

        def change(old: str | None) -> str:
            if old is None:
                raise ToolError(f"Document {path} does not exist.")
            return replace_text(old, old_string, new_string, replace_all=False, shown=path).content

        return document("edit_doc", path, change, context)

    @DELETE_DOC
    def delete_doc(context: ToolContext, path: DocPath) -> Invocation:
        """Delete one of your documents in docs/."""
        return document("delete_doc", path, lambda _: None, context)

    @WRITE_SKILL
    def write_skill(
        context: ToolContext,
        name: SkillName,
        text: Annotated[
            str,
            Meta(description="The complete SKILL.md: front matter with name and description, then the instructions."),
        ],
    ) -> Invocation:
        """Save how to do something as a skill for later conversations."""
        return editor.prepared("write_skill", editor.skill(name, text, context), name, context)

    @DELETE_SKILL
    def delete_skill(context: ToolContext, name: SkillName) -> Invocation:
        """Delete one of your own skills."""
        return editor.prepared("delete_skill", editor.skill(name, None, context), name, context)

    return write_doc, edit_doc, delete_doc, write_skill, delete_skill
