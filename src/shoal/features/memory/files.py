"""Memory files and daily notes on disk.

Concurrent writers, including those in other processes, never lose a line. A reader sees a file as it was either before
or after a change.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.kernel.errors import Conflict, InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.memory_files import (
    FILE_BYTES_MAX,
    MEMORY_BYTES_MAX,
    MEMORY_SCOPES,
    entry_key,
    is_known,
    lines_of,
    memory_path,
    note_files,
    only_for,
    owned_by,
    read_memory,
    shown_to,
    swapped,
)
from shoal.tools.openat import closing_file

_BULLETS = ("- ", "* ", "+ ")
_REOPENS_MAX = 20
EVERYBODYS = "To change what everyone can see, write in a group or on the page, or use `shoal memory`."
"""Error shown to a person who tries to change shared memory in a private conversation with the agent."""


class MemoryEdit(msgspec.Struct, frozen=True):
    """Replacement of lines in a memory file.

    `removed`: lines to remove, at their occurrence nearest to `line`.
    `line`: line number, from 0. Negative means the end of the file.
    `person`: owner of private lines. Empty means shared lines.
    `once`: whether to skip the edit if the file already contains the lines.

    The other fields are recorded in the history.
    """

    path: Path
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    line: int = -1
    person: str = ""
    once: bool = False
    changed_by: str = ""
    agent: str = ""
    thread: str = ""
    tainted_by: str = ""


class MemoryEntry(NamedTuple):
    """An entry of a memory file or daily note.

    `label`: scope of the file, or day of the note as YYYYMMDD.
    `number`: line number, from 0.
    `words`: text without the list marker.
    `person`: owner of a private entry, or empty.
    `is_changeable`: whether the entry can be changed in the conversation for which it was read.
    `more`: lines that continue the entry.
    """

    label: str
    path: Path
    number: int
    raw: str
    words: str
    person: str
    is_changeable: bool
    more: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Short id for chats. It depends only on the text, so equal texts have equal ids."""
        return hashlib.sha256(entry_key(self.words).encode("utf-8", "replace")).hexdigest()[:6]


def memory_entries(home: Home, chat: ThreadId, person: str) -> list[MemoryEntry]:
    """Return the entries that a person may see in a conversation: memory first, then daily notes, newest first.

    An empty `person` means a group. In a private conversation, shared entries are not changeable, because other
    people's prompts contain them. Shared entries in the conversation's own channel memory are an exception. Raises
    OSError.
    """
    places = [(str(scope), memory_path(home, scope, chat)) for scope in MEMORY_SCOPES]
    places += [(f"{day:%Y%m%d}", path) for day, path in note_files(home)]
    entries: list[MemoryEntry] = []
    for label, path in places:
        changeable = "" if label == "channel" else person
        for number, raw in enumerate(lines_of(read_memory(path))):
            whose = next(
                (fromkey for fromkey in dict.fromkeys((person, "")) if owned_by(raw, fromkey) is not None), None
            )
            text_of_entry = owned_by(raw, whose) if whose is not None else None
            if (
                whose is not None
                and text_of_entry
                and text_of_entry.strip()
                and not text_of_entry.lstrip().startswith("#")
            ):
                words = " ".join(text_of_entry.split()).removeprefix("- ")
                last = entries[-1] if entries else None
                if (
                    text_of_entry.startswith("  ")
                    and not text_of_entry.lstrip().startswith(_BULLETS)
                    and last is not None
                    and (last.path, last.person, last.number + len(last.more) + 1) == (path, whose, number)
                ):
                    entries[-1] = last._replace(words=f"{last.words} {words}", more=(*last.more, raw))
                    continue
                entries.append(MemoryEntry(label, path, number, raw, words, whose, whose == changeable))
    return entries


def entries_saying(entries: Iterable[MemoryEntry], words: str) -> list[MemoryEntry]:
    """Return the entries with exactly these words, ignoring case.

    If no entry matches, return the entries that contain the words.
    """
    wanted, part = entry_key(words), " ".join(words.split()).casefold()
    matching: list[MemoryEntry] = []
    holding: list[MemoryEntry] = []
    for entry in entries:
        if wanted in (entry_key(entry.words), entry_key(_untimed(entry.words))):
            matching.append(entry)
        elif part in entry.words.casefold():
            holding.append(entry)
    return matching or holding


def edits_of(entries: Sequence[MemoryEntry], new: str) -> list[MemoryEdit]:
    """Return edits that replace entries with `new`, or remove them if `new` is empty. Notes keep their time of day."""
    edits: list[MemoryEdit] = []
    for entry in reversed(entries):
        time = entry.words[: len(entry.words) - len(_untimed(entry.words))]
        added = tuple(only_for(f"- {time}{new}", entry.person).split("\n")) if new else ()
        edits.append(MemoryEdit(entry.path, (entry.raw, *entry.more), added, entry.number, entry.person))
    return edits


def action_on(entry: MemoryEntry, new: str) -> str:
    """Return the action string that permission rules match for a change to an entry."""
    verb = f"amend to {' '.join(new.split())}:" if new else "forget"
    return f"tool:remember:{entry.label} {verb} {entry.words}"


def _untimed(words: str) -> str:
    return words[6:] if words[2:3] == ":" and words[:2].isdecimal() and words[3:5].isdecimal() else words


def apply_edit(edit: MemoryEdit) -> bool:
    """Apply an edit to its file, and create the file and its directories if needed. The change is durable (synced) on
    return.

    Return False if `edit.once` is set and the file already contains the text. This check uses only lines that
    `edit.person` may see, so it reveals nothing about other people's lines. Blocks while another writer locks the file,
    so call it in a thread.

    Raises InvalidInput if the file is full, Conflict if the lines to remove do not exist, and OSError.
    """
    path = edit.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing_file(_open_locked(path)) as file:
        size = os.fstat(file).st_size
        existing = os.pread(file, size, 0).decode("utf-8", "surrogateescape")
        shown, added = shown_to(existing, edit.person), "".join(f"{line}\n" for line in edit.added)
        more = len(added) - sum(len(line) + 1 for line in edit.removed)
        if more > 0 and (
            len(shown.encode("utf-8", "replace")) + more > MEMORY_BYTES_MAX or size + more > FILE_BYTES_MAX
        ):
            raise InvalidInput(f"{path.name} is full. Remove outdated entries first.")
        if edit.once and all(is_known(shown, shown_to(line, edit.person)) for line in edit.added):
            return False
        changed = swapped(existing, edit.removed, edit.added, edit.line)
        if changed is None:
            raise Conflict(f"{path.name} has changed. Read it again, then retry.")
        if changed.startswith(existing):  # an append does not need to replace the file
            _write(file, changed[len(existing) :])
        else:
            temporary = path.with_name(f".{secrets.token_hex(8)}")
            flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, os.fstat(file).st_mode & 0o777
            try:
                with closing_file(os.open(temporary, flags, mode)) as fresh:
                    _write(fresh, changed)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        return True


def _write(file: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "surrogateescape"))
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)


def _open_locked(path: Path) -> int:
    """Open a file for appending and lock it. Retry if another program replaces the file in between."""
    for _ in range(_REOPENS_MAX):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(file)):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise InvalidInput(f"Another program keeps replacing {path.name}. Try again later.")
