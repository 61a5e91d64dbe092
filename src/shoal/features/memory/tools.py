"""Tools `remember` and `note_today`, which agents use to remember, correct and forget facts across conversations."""

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec.structs import replace

from shoal.features.memory.book import ChangeMemory, MemoryBook, change_in_turn
from shoal.features.memory.files import (
    EVERYBODYS,
    MemoryEdit,
    MemoryEntry,
    action_on,
    edits_of,
    entries_saying,
    memory_entries,
)
from shoal.kernel.errors import InvalidInput, ToolError, system_words
from shoal.kernel.memory_files import MemoryScope, entry_key, entry_line, memory_path, note_path, only_for
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import KEEPS, Traits
from shoal.tools.functions import FunctionTool, Prepared, as_tool_error, canonical, planned, tool

if TYPE_CHECKING:
    from shoal.services import Services

SHOWN_MAX = 5


_NOTE = Traits(
    group="memory",
    offered="deferred",
    effect="lasting",
    origin="own",
    harm="lasting",
    changes="home",
    keeps="note",
    for_person=True,
    guidance="- Use `note_today` for what was done or decided today and may matter tomorrow.",
    treatments=KEEPS,
)
_FACT = replace(
    _NOTE,
    offered="always",
    rank=9,
    keeps="memory",
    guidance="- Use `remember` for lasting facts. Set a scope (channel, person, platform, global) only if the "
    "default does not fit. Never keep passwords, keys or other secrets.",
)


REMEMBER = tool(_FACT, name="remember", example={"text": "likes tea", "scope": "global"})
NOTE = tool(_NOTE, name="note_today", example={"text": "met at noon"})


def memory_tools(services: "Services") -> list[Tool]:
    change = services[MemoryBook].change
    return [remember_tool(change), note_tool(change)]


def remember_tool(change: ChangeMemory) -> FunctionTool[Invocation]:
    @REMEMBER
    def remember(
        context: ToolContext,
        text: Annotated[
            str, "One fact or preference that makes sense on its own. May have several lines. Empty to forget."
        ],
        scope: Annotated[
            MemoryScope | Literal["person"] | None,
            "Where it applies: in this channel; in all direct conversations with the person who asks; on this "
            "platform; or everywhere. Default: `person` in a direct conversation, otherwise `channel`.",
        ] = None,
        replaces: Annotated[str, "The existing memory or note to correct or forget."] = "",
    ) -> Invocation:
        """Keep something for later conversations: add a line to your long-term memory, which you see in every prompt.
        With `replaces`, correct or forget an entry or a line of any daily note. What a person tells you in a direct
        conversation applies in all their direct conversations, unless you set the scope `channel`. To add headings or
        change many lines, edit /memory/SCOPE/MEMORY.md as a file.
        """
        if replaces.strip():
            return _replace(change, context, text, replaces)
        line = _entry_line(text)
        words = line.removeprefix("- ")
        audience = context.purpose.audience
        if scope is None:  # the entry must also apply when the person writes in another channel
            scope = "person" if audience.person else "channel"
        path = memory_path(context.home, "global" if scope == "person" else scope, context.chat)
        person = {"channel": "", "person": audience.speaker}.get(scope, audience.person)
        if scope == "person" and not person:
            raise ToolError("No particular person is asking here. Use another scope.")

        async def work() -> ToolOutput:
            added = tuple(only_for(line, person).split("\n"))
            is_new = await change_in_turn(change, context, MemoryEdit(path, added=added, person=person, once=True))
            if is_new or person != audience.person:  # other readers must not learn what a private memory contains
                return ToolOutput(f"Remembered for scope {scope}: {words}")
            return ToolOutput(f"The memory of scope {scope} already contains this text, so nothing changed.")

        effect = {"scope": scope, "file": str(path), "line": line, "person": person}
        return planned(
            "remember", f"{scope} {' '.join(words.split())}", work, f"remember ({scope})\n\n{line}", **effect
        )

    return remember


def note_tool(change: ChangeMemory) -> FunctionTool[Invocation]:
    @NOTE
    def note_today(
        context: ToolContext, text: Annotated[str, "What happened or was decided, in one line."]
    ) -> Invocation:
        """Add a line to today's note. Every prompt contains the notes of the last few days."""
        words = _entry_line(" ".join(text.split())).removeprefix("- ")

        async def work() -> ToolOutput:
            now = context.clock.local()
            line, person = f"- {now:%H:%M} {words}", context.purpose.audience.person
            path = note_path(context.home, now.date())
            await change_in_turn(change, context, MemoryEdit(path, added=(only_for(line, person),), person=person))
            return ToolOutput(f"Noted: {words}")

        return planned("note_today", words, work, f"note_today\n\n{words}", text=words)

    return note_today


def _replace(change: ChangeMemory, context: ToolContext, text: str, replaces: str) -> Prepared:
    """Prepare the replacement or removal of an entry in every file that contains it."""
    new = _entry_line(text).removeprefix("- ") if text.strip() else ""
    entries = _entries(context, replaces)
    edits = edits_of(entries, new)

    async def work() -> ToolOutput:
        for edit in edits:
            await change_in_turn(change, context, edit)
        where = ", ".join(dict.fromkeys(entry.label for entry in entries))
        old = entries[0].words
        text = f"Forgotten ({where}): {old}" if not new else f"Corrected ({where}): {old}\nNew text: {new}"
        return ToolOutput(text, quotes=tuple(entry.path for entry in entries))

    actions = tuple(dict.fromkeys(Action(action_on(entry, new)) for entry in entries))
    shown = "\n".join(f"-{entry.raw}" for entry in entries) + (f"\n+- {new}" if new else "")
    effect = canonical("remember", edits=[(str(edit.path), edit.removed, edit.added) for edit in reversed(edits)])
    return Prepared(actions, f"remember ({'amend' if new else 'forget'})\n\n{shown}", effect, work)


def _entries(context: ToolContext, words: str) -> list[MemoryEntry]:
    """Return the changeable entries that match `words`. Raises ToolError if none match, or if entries with different
    texts match.
    """
    try:
        known = memory_entries(context.home, context.chat, context.purpose.audience.person)
    except OSError as error:
        raise ToolError(f"Shoal could not read the memory file: {system_words(error)}.") from error
    entries = entries_saying((entry for entry in known if entry.is_changeable), words)
    if not entries:
        more = f" {EVERYBODYS}" if entries_saying(known, words) else ""
        raise ToolError(f"Nothing that you remember here contains {words[:200]!r}.{more}")
    if len({entry_key(entry.words) for entry in entries}) > 1:
        shown = "\n".join(f"- {entry.words} ({entry.label})" for entry in entries[:SHOWN_MAX])
        quotes = [entry.path for entry in entries[:SHOWN_MAX]]
        raise ToolError(f"Several entries match. Pass the full text of one of them:\n{shown}", quotes=quotes)
    return entries


def _entry_line(text: str) -> str:
    with as_tool_error(InvalidInput):
        return entry_line(text)
