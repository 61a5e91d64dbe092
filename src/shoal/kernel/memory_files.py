"""Read memory files and daily notes. `shoal.kernel.home` has their places and their format."""

from collections import Counter
from datetime import date, datetime
from pathlib import Path

from shoal.kernel.home import Home, lines_of, note_path, owner_of
from shoal.kernel.regular_files import read_regular

NOTES_MAX = 400
"""Days whose notes are looked through, the newest first."""


def note_files(home: Home) -> list[tuple[date, Path]]:
    """The daily notes there are, the newest first, at most NOTES_MAX."""
    paths = sorted((home.data / "memory").glob("[0-9]*/[0-9]*.md"), reverse=True)[:NOTES_MAX]
    found = [(day, path) for path in paths if (day := note_day(path.stem)) is not None]
    return [(day, path) for day, path in found if note_path(home, day) == path]


def note_day(digits: str) -> date | None:
    """The day of YYYYMMDD; None where it is none."""
    try:
        return datetime.strptime(digits, "%Y%m%d").date()  # noqa: DTZ007 (a day has no zone)
    except ValueError:
        return None


def entry_lines(path: Path) -> list[tuple[str, str, str]]:
    """The lines of a memory file or note that say something: where they stand, what they say, and whose alone they are.

    Lines are numbered among those of the same person, or for all: no number tells how much is for somebody else alone.
    Raises OSError.
    """
    found: list[tuple[str, str, str]] = []
    numbers = Counter[str]()
    for line in lines_of(read_memory(path)):
        person, said = owner_of(line) or (None, "")
        if person is None:
            continue
        numbers[person] += 1
        if any(map(str.isalnum, said)) and not said.startswith("#"):
            found.append((f"line {numbers[person]}", said.strip().removeprefix("- "), person))
    return found


def read_memory(path: Path) -> str:
    """The file's text; empty where there is none. Bytes that are not UTF-8 survive a change. Raises OSError."""
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
