"""API endpoints for memory: read, write, forget and undo."""

import hashlib
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from shoal.features.memory.book import MemoryBook
from shoal.features.memory.files import MemoryEdit
from shoal.features.memory.store import MemoryChange
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.files import in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id, parse_thread_id
from shoal.kernel.memory_files import (
    FILE_BYTES_MAX,
    MEMORY_SCOPES,
    NOTES_MAX,
    entry_key,
    lines_of,
    memory_path,
    note_files,
    note_path,
    read_memory,
)
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes, Text64
from shoal.threads.principals import Principal

routes = Routes()

NOWHERE = make_thread_id("terminal", "local", "main")

FileScope = Literal["global", "platform", "channel", "note"]
ThreadText = Annotated[str, msgspec.Meta(max_length=542)]
EntryText = Annotated[str, msgspec.Meta(max_length=4000)]
NoteCount = Annotated[int, msgspec.Meta(ge=0, le=NOTES_MAX)]
Day = Annotated[str, msgspec.Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$", description="a date such as 2026-01-31")]


class MemoryFile(msgspec.Struct, frozen=True):
    """A memory file or daily note, including private lines.

    `day`: date of a daily note, otherwise empty.
    `digest`: SHA-256 of the text.
    """

    scope: FileScope
    path: str
    day: str
    text: str
    digest: str


class MemoryText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Complete new text of a memory file or daily note.

    `thread`: thread that selects the platform or channel.
    `day`: date of the daily note.
    `digest`: digest of the text that was read. If set, the write fails if the file has changed since.
    """

    scope: FileScope
    text: Annotated[str, msgspec.Meta(max_length=FILE_BYTES_MAX)]
    thread: ThreadText = ""
    day: Day = ""
    digest: Text64 = ""


@routes("GET /api/memory", READERS)
async def memory(home: Home, *, thread: ThreadText = "", day: Day = "", notes: NoteCount = 3) -> list[MemoryFile]:
    """Return memory files, broadest scope first, then daily notes, oldest first. `thread` adds the memory of its
    platform and channel. `notes` is the number of newest notes to return. With `day`, returns only the note of that
    day.
    """
    where = parse_thread_id(thread) if thread else NOWHERE
    if day:
        return [await _shown("note", note_path(home, _day(day)), day)]
    scopes = MEMORY_SCOPES if thread else MEMORY_SCOPES[:1]
    files = [await _shown(scope, memory_path(home, scope, where)) for scope in scopes]
    newest = (await in_thread(lambda: note_files(home)))[:notes]
    return files + [await _shown("note", path, written.isoformat()) for written, path in reversed(newest)]


@routes("PUT /api/memory", ADMINS)
async def write(home: Home, book: MemoryBook, by: Principal, body: MemoryText) -> MemoryFile:
    """Replace a memory file or note. The change takes effect on the next turn and can be undone. Returns 409 if
    `digest` is given and the file has changed since.
    """
    path = _place(home, body.scope, body.thread, body.day)
    was = await in_thread(lambda: read_memory(path))
    if body.digest and body.digest != _digest(was):
        raise Conflict(f"{path.name} has changed since it was read. Read it again.")
    old, new = lines_of(was), lines_of(body.text.replace("\r\n", "\n").replace("\0", ""))
    first = next(
        (at for at, (line, other) in enumerate(zip(old, new, strict=False)) if line != other), min(len(old), len(new))
    )
    left = min(len(old), len(new)) - first
    last = next((at for at in range(left) if old[-1 - at] != new[-1 - at]), left)
    removed, added = old[first : len(old) - last], new[first : len(new) - last]
    if removed or added:
        edit = MemoryEdit(path, tuple(removed), tuple(added), first, changed_by=by.person)
        await book.change(edit)
    return await _shown(body.scope, path, body.day)


@routes("DELETE /api/memory", ADMINS)
async def forget(
    home: Home,
    book: MemoryBook,
    by: Principal,
    *,
    scope: FileScope,
    thread: ThreadText = "",
    day: Day = "",
    entry: EntryText = "",
) -> MemoryFile:
    """Forget an entry, or all entries if `entry` is empty. Case and spacing are ignored. Returns 404 if the file has no
    such entry. The deletion can be undone.
    """
    path = _place(home, scope, thread, day)
    lines = lines_of(await in_thread(lambda: read_memory(path)))
    if not entry:
        if lines:
            await book.change(MemoryEdit(path, tuple(lines), (), 0, changed_by=by.person))
        return await _shown(scope, path, day)
    wanted = entry_key(entry)
    numbered = [(at, line) for at, line in enumerate(lines) if entry_key(line.partition("<!-- only ")[0]) == wanted]
    if not numbered:
        raise NotFound(f"{path.name} has no entry {entry[:200]!r}. `shoal memory show` shows its entries.")
    for at, line in reversed(numbered):
        await book.amend(MemoryEdit(path, (line,), (), at, changed_by=by.person))
    return await _shown(scope, path, day)


@routes("GET /api/memory/changes", READERS)
async def changes(
    book: MemoryBook, *, limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50, below: Text64 = ""
) -> list[MemoryChange]:
    """List changes to memory and their authors, newest first. If `below` is given, lists only changes with smaller ids,
    which are older.
    """
    return await book.history.newest(limit, below)


@routes("POST /api/memory/changes/{id}/undo", ADMINS)
async def undo(book: MemoryBook, by: Principal, id: str) -> MemoryChange:
    """Undo a change. Returns 409 if it was already undone or its lines have changed since."""
    return await book.undo(id, by.person)


def _place(home: Home, scope: FileScope, thread: str, day: str) -> Path:
    if scope == "note":
        if not day:
            raise InvalidInput("For a note, specify `day` as YYYY-MM-DD.")
        return note_path(home, _day(day))
    if scope == "global":
        return memory_path(home, scope, NOWHERE)
    if not thread:
        raise InvalidInput(f"For the memory of a {scope}, specify one of the {scope}'s threads as `thread`.")
    return memory_path(home, scope, parse_thread_id(thread))


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"{text} is not a date. Use the format YYYY-MM-DD.") from error


async def _shown(scope: FileScope, path: Path, day: str = "") -> MemoryFile:
    text = (await in_thread(lambda: read_memory(path))).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return MemoryFile(scope, str(path), day, text, _digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
