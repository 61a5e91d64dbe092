"""Memory files and daily notes: their paths and their format.

Memory from a direct conversation is private to the person in that conversation, even in a shared file. A private line
ends with the comment `<!-- only PERSON -->` and never appears in another person's prompt.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.regular_files import read_regular

MemoryScope: TypeAlias = Literal["global", "platform", "channel"]

MEMORY_SCOPES: tuple[MemoryScope, ...] = ("global", "platform", "channel")
MEMORY_FILE = "MEMORY.md"
ENTRY_CHARS_MAX = 2000
MEMORY_BYTES_MAX = 262_144
"""Maximum size of the part of a memory file or daily note that one person can see, in bytes of UTF-8. Larger files
accept no new entries.
"""
FILE_BYTES_MAX = 16 * MEMORY_BYTES_MAX
"""Maximum size of a memory file or daily note in bytes, including all private lines."""
_ONLY = lazy_re.compile(r"(?<![ \t])[ \t]*+<!-- only (\S++) -->[ \t]*+$")
_MARK = "<!-- only "


def memory_path(home: Home, scope: MemoryScope, thread: ThreadId) -> Path:
    folders = {"global": home.data, "platform": home.platform(thread), "channel": home.channel(thread)}
    return folders[scope] / MEMORY_FILE


def note_path(home: Home, day: date) -> Path:
    return home.data / "memory" / f"{day:%Y%m}" / f"{day:%Y%m%d}.md"


def entry_line(text: str) -> str:
    """Format a memory entry as `- text`. Indents further lines and drops blank lines.

    Raises InvalidInput if the text is empty or longer than ENTRY_CHARS_MAX characters.
    """
    lines = [line for line in text.strip().replace("\r", "\n").split("\n") if line.strip()]
    first = " ".join(lines[0].split()).removeprefix("- ").strip() if lines else ""
    further = [f"{' ' * (2 + len(line) - len(line.lstrip(' ')))}{' '.join(line.split())}" for line in lines[1:]]
    words = "\n".join((first, *further))
    if not words:
        raise InvalidInput("The text to remember is empty. Write some text.")
    if len(words) > ENTRY_CHARS_MAX:
        raise InvalidInput(
            f"The entry has {len(words)} characters, more than the maximum of {ENTRY_CHARS_MAX}. Shorten the entry."
        )
    return f"- {words.replace('<!--', '‹!--')}"


def only_for(line: str, person: str) -> str:
    """Mark each line as private to a person (PLATFORM:USER). If `person` is empty, return the text unchanged."""
    if not person:
        return line
    mark = f" {_MARK}{quote(person, safe=':@._')} -->"
    return "\n".join(f"{part}{mark}" for part in line.split("\n"))


def shown_to(text: str, person: str) -> str:
    """Return the lines that a person may see, without the privacy comments.

    If `person` is empty, return only public lines. A line with an invalid comment is hidden from everyone. If the text
    has no private lines, return the same object.
    """
    if _MARK not in text:
        return text
    wanted = quote(person, safe=":@._")
    visible: list[str] = []
    for line in text.split("\n"):
        match = _ONLY.search(line)
        if match is not None and match[1] == wanted and _MARK not in line[: match.start()]:
            visible.append(line[: match.start()])
        elif _MARK not in line:
            visible.append(line)
    return "\n".join(visible)


def owner_of(line: str) -> tuple[str, str] | None:
    """Return a line's owner and its text. The owner of a public line is empty. Return None if the privacy comment
    is invalid.
    """
    if _MARK not in line:
        return "", line
    match = _ONLY.search(line)
    if match is None or _MARK in line[: match.start()]:
        return None
    return unquote(match[1]), line[: match.start()]


def owned_by(line: str, person: str) -> str | None:
    owned = owner_of(line)
    return owned[1] if owned is not None and owned[0] == person else None


def lines_of(text: str) -> list[str]:
    """Split a file's text into lines. A final line break does not add an empty line."""
    return text.removesuffix("\n").split("\n") if text else []


def swapped(text: str, removed: Sequence[str], added: Sequence[str], line: int) -> str | None:
    """Replace `removed` with `added` at the occurrence nearest to `line`. Return None if `removed` does not occur.

    If `removed` is empty, insert `added` at `line`, or at the end if `line` is negative.
    """
    lines, size = lines_of(text), len(removed)
    if removed:
        places = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == [*removed]]
        if not places:
            return None
        at = min(places, key=lambda place: abs(place - line))
    else:
        at = min(line, len(lines)) if line >= 0 else len(lines)
    lines[at : at + size] = added
    return "".join(f"{line}\n" for line in lines)


def is_known(existing: str, entry: str) -> bool:
    wanted = entry_key(entry)
    return any(entry_key(line) == wanted for line in existing.splitlines())


def entry_key(line: str) -> str:
    """Normalize an entry for comparison. Ignores case, extra spaces, list markers, and a final `.`, `!` or `;`."""
    return " ".join(line.split()).lstrip("-*+ ").rstrip(".!; ").casefold()


# ---- on disk ----

NOTES_MAX = 400
"""Maximum number of daily notes to search, starting with the newest."""


def note_files(home: Home) -> list[tuple[date, Path]]:
    """Return up to NOTES_MAX daily notes, newest first."""
    paths = sorted((home.data / "memory").glob("[0-9]*/[0-9]*.md"), reverse=True)[:NOTES_MAX]
    notes = [(day, path) for path in paths if (day := note_day(path.stem)) is not None]
    return [(day, path) for day, path in notes if note_path(home, day) == path]


def note_day(digits: str) -> date | None:
    try:
        return datetime.strptime(digits, "%Y%m%d").date()  # noqa: DTZ007 (a day has no zone)
    except ValueError:
        return None


def entry_lines(path: Path) -> list[tuple[str, str, str]]:
    """Return the entries of a memory file or note as (line number, text, owner).

    Lines are numbered separately for each owner, so the numbers reveal nothing about other people's private lines.
    Raises OSError.
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
    """Return a file's text, or an empty string if the file does not exist. Raises OSError.

    Invalid UTF-8 is preserved when the text is written back with `surrogateescape`.
    """
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
