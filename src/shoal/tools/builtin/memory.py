"""The tools `remember` and `note_today`: what an agent keeps beyond a conversation, corrects, and forgets again."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from shoal.domain.errors import Conflict, InvalidInput, ToolError
from shoal.domain.home import (
    MEMORY_SCOPES,
    MemoryScope,
    entry_key,
    entry_line,
    lines_of,
    memory_path,
    note_path,
    only_for,
    owned_by,
)
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, ToolContext, ToolOutput
from shoal.domain.records import MemoryEdit
from shoal.tools.functions import Prepared, canonical, planned, tool
from shoal.tools.memory_files import note_files, read_memory

SHOWN_MAX = 5
"""Entries that are named when it is not clear which one is meant."""


class _Entry(NamedTuple):
    """A line of a memory file or daily note: its scope or day, and its words without the mark of a list."""

    label: str
    path: Path
    number: int
    raw: str
    words: str
    person: str


@tool
def remember(
    context: ToolContext,
    text: Annotated[
        str, Meta(description="One fact or preference, in one sentence that stands by itself. Empty to forget.")
    ],
    scope: Annotated[
        MemoryScope | Literal["person"],
        Meta(
            description="Where it holds: this channel; wherever the person who asks is alone with you; all of this "
            "platform; or everywhere. Take the narrowest."
        ),
    ] = "channel",
    replaces: Annotated[
        str, Meta(description="What you remember or noted so far that this corrects, or that is to be forgotten.")
    ] = "",
) -> Invocation:
    """Keep something for later conversations: add a line to your long-term memory, which you see in every prompt.
    Correct or forget an entry, or a line of any day's note, with `replaces`. What you keep in a direct conversation
    only stands in the prompts of that person's own, and so does scope `person` from anywhere."""
    if replaces.strip():
        return _replace(context, text, replaces)
    line = _entry_line(text)
    words = line.removeprefix("- ")
    audience = context.purpose.audience
    path = memory_path(context.home, "global" if scope == "person" else scope, context.chat)
    person = {"channel": "", "person": audience.speaker}.get(scope, audience.person)
    if scope == "person" and not person:
        raise ToolError("Nobody in particular asks here. Take another scope.")

    async def work() -> ToolOutput:
        is_new = await _change(context, MemoryEdit(path, added=(only_for(line, person),), person=person, once=True))
        if is_new or person != audience.person:  # who reads along is not told of what somebody's own memory has
            return ToolOutput(f"Remembered for scope {scope}: {words}")
        return ToolOutput(f"The memory of scope {scope} has that already. Nothing was added.")

    effect = {"scope": scope, "file": str(path), "line": line, "person": person}
    return planned("remember", f"{scope} {words}", work, f"remember ({scope})\n\n{line}", **effect)


@tool
def note_today(
    context: ToolContext, text: Annotated[str, Meta(description="What happened or was decided, in one line.")]
) -> Invocation:
    """Write a line into today's note. You see the notes of the last days in every prompt."""
    words = _entry_line(text).removeprefix("- ")

    async def work() -> ToolOutput:
        now = context.clock.now()
        line, person = f"- {now:%H:%M} {words}", context.purpose.audience.person
        path = note_path(context.home, now.date())
        await _change(context, MemoryEdit(path, added=(only_for(line, person),), person=person))
        return ToolOutput(f"Noted: {words}")

    return planned("note_today", words, work, f"note_today\n\n{words}", text=words)


def _replace(context: ToolContext, text: str, replaces: str) -> Prepared:
    """Plan to put other words in the place of an entry, or nothing, wherever it stands."""
    new = _entry_line(text).removeprefix("- ") if text.strip() else ""
    found = _entries(context, replaces)
    edits: list[MemoryEdit] = []
    for entry in found:
        time = entry.words[: len(entry.words) - len(_untimed(entry.words))]  # a note keeps its time
        added = (only_for(f"- {time}{new}", entry.person),) if new else ()
        edits.append(MemoryEdit(entry.path, (entry.raw,), added, entry.number, entry.person))

    async def work() -> ToolOutput:
        for edit in reversed(edits):
            await _change(context, edit)
        where = ", ".join(dict.fromkeys(entry.label for entry in found))
        old = found[0].words
        return ToolOutput(
            f"Forgotten ({where}): {old}" if not new else f"Corrected ({where}): {old}\nIt says now: {new}"
        )

    verb = f"amend to {new}:" if new else "forget"
    actions = tuple(dict.fromkeys(Action(f"tool:remember:{entry.label} {verb} {entry.words}") for entry in found))
    shown = "\n".join(f"-{entry.raw}" for entry in found) + (f"\n+- {new}" if new else "")
    effect = canonical("remember", edits=[(str(edit.path), edit.removed, edit.added) for edit in edits])
    return Prepared(actions, f"remember ({'amend' if new else 'forget'})\n\n{shown}", effect, work)


def _entries(context: ToolContext, words: str) -> list[_Entry]:
    """The entries that say these words, or else the one that contains them, of those that the turn may change: where
    somebody speaks alone with the agent those kept for them alone, so that nobody else's prompt tells of it.

    Raises ToolError when there is none, or which one is meant is not clear.
    """
    person, wanted, part = context.purpose.audience.person, entry_key(words), " ".join(words.split()).casefold()
    places = [(str(scope), memory_path(context.home, scope, context.chat)) for scope in MEMORY_SCOPES]
    places += [(f"{day:%Y%m%d}", path) for day, path in note_files(context.home)]
    said: list[_Entry] = []
    holding: list[_Entry] = []
    elsewhere = False
    for label, path in places:
        whose = "" if label == "channel" else person
        try:
            lines = lines_of(read_memory(path))
        except OSError as error:
            raise ToolError(f"The memory file could not be read: {error.strerror or error}.") from error
        for number, raw in enumerate(lines):
            own = owned_by(raw, whose)
            if own is None or not own.strip() or own.lstrip().startswith("#"):
                elsewhere = elsewhere or bool(whose and own is None and part in (owned_by(raw, "") or "").casefold())
                continue
            entry = _Entry(label, path, number, raw, " ".join(own.split()).removeprefix("- "), whose)
            if wanted in (entry_key(entry.words), entry_key(_untimed(entry.words))):
                said.append(entry)
            elif part in entry.words.casefold():
                holding.append(entry)
    found = said or holding
    if not found:
        more = (
            " What everybody may see is changed in a group, on the page, or with `shoal memory`." if elsewhere else ""
        )
        raise ToolError(f"Nothing that you remember here says {words[:200]!r}.{more}")
    if len({entry_key(entry.words) for entry in found}) > 1:
        shown = "\n".join(f"- {entry.words} ({entry.label})" for entry in found[:SHOWN_MAX])
        raise ToolError(f"Several entries say that; give one of them word for word:\n{shown}")
    return found


def _untimed(words: str) -> str:
    """A note's words without the time before them."""
    return words[6:] if words[2:3] == ":" and words[:2].isdecimal() and words[3:5].isdecimal() else words


def _entry_line(text: str) -> str:
    try:
        return entry_line(text)
    except InvalidInput as error:
        raise ToolError(str(error)) from error


async def _change(context: ToolContext, edit: MemoryEdit) -> bool:
    who, agent, taint = context.asker.identity, context.agent.name, context.purpose.tainted_by
    edit = msgspec.structs.replace(edit, changed_by=who, agent=agent, thread=context.thread, tainted_by=taint)
    try:
        return await context.services.change_memory(edit)
    except (InvalidInput, Conflict) as error:
        raise ToolError(str(error)) from error
    except OSError as error:
        raise ToolError(f"The memory file could not be written: {error.strerror or error}.") from error
