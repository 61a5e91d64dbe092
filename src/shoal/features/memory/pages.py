"""Expose each scope's memory to the file tools as `/memory/SCOPE/MEMORY.md`.

A page contains the lines that the turn may see. Editing a page works like calling `remember` for each changed line,
with the same permission checks, taint and history. Other people's lines are unaffected.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from posixpath import normpath
from typing import Literal, NamedTuple

from shoal.features.memory.book import ChangeMemory, change_in_turn
from shoal.features.memory.files import EVERYBODYS, MemoryEdit
from shoal.kernel.errors import ToolError, system_words
from shoal.kernel.memory_files import (
    MEMORY_FILE,
    MEMORY_SCOPES,
    MemoryScope,
    lines_of,
    memory_path,
    only_for,
    owned_by,
    read_memory,
)
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Invocation, ToolContext, ToolOutput, VirtualFile, VirtualFolder
from shoal.tools.functions import Prepared, canonical

ROOT = "/memory"
_NOT_MEMORY = "This is an ordinary file. Your memory is below /memory, where `remember` also writes."
LINES_CHANGED_MAX = 400
"""Maximum number of lines that one call may change, because each needs a permission check."""


class _PageLine(NamedTuple):
    """A visible line of a page. `raw` and `number` are the line's original form and position in the file."""

    text: str
    raw: str
    number: int
    is_changeable: bool


class MemoryPage(NamedTuple):
    """A scope's memory as a turn sees it. Added lines are private to `person`, or shared if `person` is empty."""

    scope: MemoryScope | Literal["person"]
    path: Path
    person: str
    lines: tuple[_PageLine, ...]

    @property
    def shown(self) -> str:
        return f"{ROOT}/{self.scope}/{MEMORY_FILE}"

    @property
    def text(self) -> str:
        return "".join(f"{line.text}\n" for line in self.lines)


def memory_names(context: ToolContext) -> list[str]:
    scopes = [*MEMORY_SCOPES, *(["person"] if context.purpose.audience.person else [])]
    return [f"{ROOT}/{scope}/{MEMORY_FILE}" for scope in scopes]


def memory_page(context: ToolContext, path: str) -> MemoryPage:
    """Return the page for a path below /memory. Also accepts a path relative to data/. Raises ToolError."""
    plain = normpath(path).removeprefix(f"{ROOT}/")
    platform, channel, _ = context.chat.split(":")
    scopes: dict[str, MemoryScope | Literal["person"]] = {
        MEMORY_FILE: "global",
        f"{platform}/{MEMORY_FILE}": "platform",
        f"{platform}/{channel}/{MEMORY_FILE}": "channel",
        f"person/{MEMORY_FILE}": "person",
        **{f"{scope}/{MEMORY_FILE}": scope for scope in MEMORY_SCOPES},
    }
    scope, person = scopes.get(plain), context.purpose.audience.person
    if scope is None or (scope == "person" and not person):
        raise ToolError(f"{path[:200]} does not exist here. Your memory files: {', '.join(memory_names(context))}.")
    file = memory_path(context.home, "global" if scope == "person" else scope, context.chat)
    changeable = "" if scope == "channel" else person
    visible = (person,) if scope == "person" else tuple(dict.fromkeys((person, "")))
    try:
        text = read_memory(file)
    except OSError as error:
        raise ToolError(f"Shoal could not read the memory file: {system_words(error)}.") from error
    lines: list[_PageLine] = []
    for number, raw in enumerate(lines_of(text)):
        whose = next((person for person in visible if owned_by(raw, person) is not None), None)
        if whose is not None:
            lines.append(_PageLine(owned_by(raw, whose) or "", raw, number, whose == changeable))
    return MemoryPage(scope, file, changeable, tuple(lines))


def change_page(change: ChangeMemory, context: ToolContext, tool: str, page: MemoryPage, new: str) -> Prepared:
    """Prepare the replacement of a page's text. Raises ToolError if the turn may not change one of the lines."""
    after = [line.rstrip().replace("<!-- only ", "‹!-- only ") for line in lines_of(new.replace("\r\n", "\n"))]
    before = [line.text.rstrip() for line in page.lines]
    changes = list(_changes(page, before, after))
    gone = [line for part in changes for line in page.lines[part.first : part.last]]
    if not all(line.is_changeable for line in gone):
        raise ToolError(f"Some of these lines are shared with everyone. {EVERYBODYS}")
    added = [line for part in changes for line in part.added]
    if len(gone) + len(added) > LINES_CHANGED_MAX:
        raise ToolError(f"This edit changes more than {LINES_CHANGED_MAX} lines. Change fewer lines at a time.")
    edits = [edit for part in reversed(changes) for edit in _edits(page, part)]
    texts = [f"forget {line.text.strip()}" for line in gone] + [line.strip() for line in added]
    actions = [Action(f"tool:remember:{page.scope} {text}") for text in texts if text.removeprefix("forget ")]
    diff = "\n".join(difflib.unified_diff(before, after, page.shown, page.shown, lineterm="", n=2))

    async def work() -> ToolOutput:
        for edit in edits:
            await change_in_turn(change, context, edit)
        return ToolOutput(f"Changed {page.shown}:\n{diff}" if edits else f"{page.shown} already has this text.")

    effect = canonical(tool, edits=[(str(edit.path), edit.line, edit.removed, edit.added) for edit in edits])
    unchanged = (Action(f"tool:remember:{page.scope} forget nothing"),)
    return Prepared(tuple(dict.fromkeys(actions)) or unchanged, f"{tool} {page.shown}\n\n{diff}", effect, work)


def memory_folder(change: ChangeMemory) -> VirtualFolder:
    def open_page(context: ToolContext, path: str) -> VirtualFile:
        page = memory_page(context, path)
        return VirtualFile(page.shown, page.text, page.path)

    def plan(context: ToolContext, tool: str, file: VirtualFile, text: str) -> Invocation:
        return change_page(change, context, tool, memory_page(context, file.shown), text)

    return VirtualFolder(ROOT, memory_names, open_page, plan, {f"/workspace/{MEMORY_FILE}": _NOT_MEMORY})


class _Change(NamedTuple):
    """Replacement of a page's lines from `first` up to, but not including, `last`."""

    first: int
    last: int
    added: tuple[str, ...]


def _changes(page: MemoryPage, before: Sequence[str], after: Sequence[str]) -> Iterator[_Change]:
    """Yield the changes from `before` to `after`.

    All changes are combined into one so that a single undo reverses them, unless other people's lines are in between.
    """
    codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    edits = [code for code in codes if code[0] != "equal"]
    if not edits:
        return
    (_, first, _, begin, _), (_, _, last, _, end) = edits[0], edits[-1]
    between = page.lines[first:last]
    if all(line.is_changeable for line in between) and _is_run(between):
        yield _Change(first, last, tuple(after[begin:end]))
        return
    for _, start, stop, new_start, new_stop in edits:
        yield _Change(start, stop, tuple(after[new_start:new_stop]))


def _is_run(lines: Sequence[_PageLine]) -> bool:
    return not lines or lines[-1].number - lines[0].number == len(lines) - 1


def _edits(page: MemoryPage, change: _Change) -> Iterator[MemoryEdit]:
    """Yield the edits of a change from the last line to the first, so line numbers stay valid."""
    gone = page.lines[change.first : change.last]
    added = tuple(only_for(line, page.person) for line in change.added)
    if not gone:
        at = page.lines[change.first].number if change.first < len(page.lines) else -1
        yield MemoryEdit(page.path, added=added, line=at, person=page.person)
    elif _is_run(gone):
        removed = tuple(line.raw for line in gone)
        yield MemoryEdit(page.path, removed, added, gone[0].number, page.person)
    else:  # other people's lines are in between
        for line in reversed(gone[1:]):
            yield MemoryEdit(page.path, (line.raw,), (), line.number, page.person)
        yield MemoryEdit(page.path, (gone[0].raw,), added, gone[0].number, page.person)
