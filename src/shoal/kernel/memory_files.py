"""Read memory files and daily notes. `shoal.kernel.home` defines their paths and format."""

from collections import Counter
from datetime import date, datetime
from pathlib import Path

from shoal.kernel.home import Home, lines_of, note_path, owner_of
from shoal.kernel.regular_files import read_regular

NOTES_MAX = 400
"""Days whose notes are searched, newest first."""


def note_files(home: Home) -> list[tuple[date, Path]]:
    """Return the existing daily notes, newest first, at most NOTES_MAX."""
    paths = sorted((home.data / "memory").glob("[0-9]*/[0-9]*.md"), reverse=True)[:NOTES_MAX]
    notes = [(day, path) for path in paths if (day := note_day(path.stem)) is not None]
    return [(day, path) for day, path in notes if note_path(home, day) == path]


def note_day(digits: str) -> date | None:
    """Parse YYYYMMDD as a day, or return None."""
    try:
        return datetime.strptime(digits, "%Y%m%d").date()  # noqa: DTZ007 (a day has no zone)
    except ValueError:
        return None


def entry_lines(path: Path) -> list[tuple[str, str, str]]:
    """Return the entries of a memory file or note: line, text and owner.

    Lines are numbered separately for each owner, so a number reveals nothing about other people's private lines. Raises
    OSError.
    """
    entries: list[tuple[str, str, str]] = []
    numbers = Counter[str]()
    for line in lines_of(read_memory(path)):
        person, entry = owner_of(line) or (None, "")
        if person is None:
            continue
        numbers[person] += 1
        if any(map(str.isalnum, entry)) and not entry.startswith("#"):
            entries.append((f"line {numbers[person]}", entry.strip().removeprefix("- "), person))
    return entries


def read_memory(path: Path) -> str:
    """Return the file's text, or an empty string if missing. Invalid UTF-8 survives a change. Raises OSError."""
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
