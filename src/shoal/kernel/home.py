"""Paths under the home directory, and the format of memory files. This module reads and writes no other file.

Memory from a direct conversation is private to its person, also in a shared file. Such a line ends with a comment,
`<!-- only PERSON -->`, and appears in no other person's prompt.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import ThreadId
from shoal.kernel.regular_files import read_regular

RESTORED_BYTES_MAX = 64


class Home:
    """The layout of a home directory (see docs/contract.md)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_file = root / "shoal.toml"
        database = root / "shoal.db"
        # where a link leads: SQLite, too, keeps the files that belong to it there
        self.database_file = Path(os.path.realpath(database)) if database.is_symlink() else database
        self.lock_file = root / "shoal.lock"  # held while a process works here; its text tells who
        self.token_file = root / "token"  # the HTTP token, mode 0600
        self.secrets = root / "secrets"  # a file for each secret that `shoal setup` keeps, mode 0600
        self.models_file = root / "available_models.json"
        self.quirks_file = root / "learned_quirks.json"  # learned from models' refusals
        self.restored_file = root / "restored"  # time at which this home was restored from a backup
        self.template = root / "template"  # what a new agent is made from
        self.data = root / "data"  # memory, skills, events and the threads' files
        self.events = self.data / "events"  # event files that start turns
        self.artifacts = self.data / "artifacts"  # large results and attachments, by digest

    def make_folders(self) -> None:
        """Make the home directory where it does not exist, and the folders that Shoal writes to at its start."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        with suppress(OSError):  # a link to a disk that was taken away, say
            self.events.mkdir(exist_ok=True)  # before the first turn, which may put a file there

    def restored_at(self) -> datetime | None:
        """Return the time of the last restore from a backup, or None."""
        try:
            return datetime.fromisoformat(read_regular(self.restored_file, RESTORED_BYTES_MAX).decode())
        except (OSError, ValueError):
            return None

    def agent(self, name: str) -> Path:
        return self.root / "agents" / name

    def platform(self, thread: ThreadId) -> Path:
        return self.data / thread.split(":")[0]

    def channel(self, thread: ThreadId) -> Path:
        return self.data.joinpath(*thread.split(":")[:2])

    def thread(self, thread: ThreadId) -> Path:
        """`data/{platform}/{channel}/{thread}/`; the id's parts are safe as file names as they stand."""
        return self.data.joinpath(*thread.split(":"))

    def scratch(self, thread: ThreadId) -> Path:
        """The thread's `scratch/`: large outputs and temporary work."""
        return self.thread(thread) / "scratch"

    def attachments(self, thread: ThreadId) -> Path:
        return self.thread(thread) / "attachments"

    def shown_artifacts(self, thread: ThreadId) -> Path:
        """Where a thread's stored results are written for its commands to read."""
        return self.thread(thread) / "artifacts"

    def is_shown_artifact(self, path: Path) -> bool:
        """Whether a path is in such a directory."""
        parts = path.parts[len(self.data.parts) :]
        return len(parts) > 4 and parts[3] == "artifacts" and path.is_relative_to(self.data)


MemoryScope: TypeAlias = Literal["global", "platform", "channel"]

MEMORY_SCOPES: tuple[MemoryScope, ...] = ("global", "platform", "channel")
"""Broadest first."""
MEMORY_FILE = "MEMORY.md"
ENTRY_CHARS_MAX = 2000
MEMORY_BYTES_MAX = 262_144
"""Most that one person may see of a memory file or daily note that entries are added to."""
FILE_BYTES_MAX = 16 * MEMORY_BYTES_MAX
"""Longest such file, with what is for others alone."""
_ONLY = lazy_re.compile(r"(?<![ \t])[ \t]*+<!-- only (\S++) -->[ \t]*+$")
_MARK = "<!-- only "


def memory_path(home: Home, scope: MemoryScope, thread: ThreadId) -> Path:
    """The MEMORY.md of a scope as this thread sees it; threads themselves have none."""
    folders = {"global": home.data, "platform": home.platform(thread), "channel": home.channel(thread)}
    return folders[scope] / MEMORY_FILE


def note_path(home: Home, day: date) -> Path:
    """The daily note `data/memory/YYYYMM/YYYYMMDD.md`."""
    return home.data / "memory" / f"{day:%Y%m}" / f"{day:%Y%m%d}.md"


def entry_line(text: str) -> str:
    """Return an entry as `- text`, with further lines indented and blank lines dropped.

    Raises InvalidInput when it is empty or longer than ENTRY_CHARS_MAX.
    """
    lines = [line for line in text.strip().replace("\r", "\n").split("\n") if line.strip()]
    first = " ".join(lines[0].split()).removeprefix("- ").strip() if lines else ""
    further = [f"{' ' * (2 + len(line) - len(line.lstrip(' ')))}{' '.join(line.split())}" for line in lines[1:]]
    words = "\n".join((first, *further))
    if not words:
        raise InvalidInput("There is nothing to remember: the text is empty.")
    if len(words) > ENTRY_CHARS_MAX:
        raise InvalidInput(
            f"An entry holds at most {ENTRY_CHARS_MAX} characters; this one has {len(words)}. Shorten it."
        )
    return f"- {words.replace('<!--', '‹!--')}"


def only_for(line: str, person: str) -> str:
    """Mark each line as private to this person (PLATFORM:USER). Without a person, the text is unchanged."""
    if not person:
        return line
    mark = f" {_MARK}{quote(person, safe=':@._')} -->"
    return "\n".join(f"{one}{mark}" for one in line.split("\n"))


def shown_to(text: str, person: str) -> str:
    """What of a file's text this person may see, without the comments that say so; nobody sees only what is for all.

    The same object where that is all of it. A line whose comment cannot be read is for nobody.
    """
    if _MARK not in text:
        return text
    wanted = quote(person, safe=":@._")
    kept: list[str] = []
    for line in text.split("\n"):
        found = _ONLY.search(line)
        if found is not None and found[1] == wanted and _MARK not in line[: found.start()]:
            kept.append(line[: found.start()])
        elif _MARK not in line:
            kept.append(line)
    return "\n".join(kept)


def owner_of(line: str) -> tuple[str, str] | None:
    """Whose alone a line is (empty: for all), and what it says; None for one whose comment cannot be read."""
    if _MARK not in line:
        return "", line
    found = _ONLY.search(line)
    if found is None or _MARK in line[: found.start()]:
        return None
    return unquote(found[1]), line[: found.start()]


def owned_by(line: str, person: str) -> str | None:
    """What a line says, where it is for this person alone; for nobody in particular: where it is for all."""
    owned = owner_of(line)
    return owned[1] if owned is not None and owned[0] == person else None


def lines_of(text: str) -> list[str]:
    """The lines of a file's text, without an empty one after the last."""
    return text.removesuffix("\n").split("\n") if text else []


def swapped(text: str, removed: Sequence[str], added: Sequence[str], line: int) -> str | None:
    """The text with lines in the place of others, the nearest to `line` if these stand several times; None where they
    do not stand. Lines that take nobody's place come at `line`, below 0 at the end."""
    lines, size = lines_of(text), len(removed)
    if removed:
        places = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == [*removed]]
        if not places:
            return None
        at = min(places, key=lambda place: abs(place - line))
    else:
        at = min(line, len(lines)) if line >= 0 else len(lines)
    lines[at : at + size] = added
    return "".join(f"{one}\n" for one in lines)


def is_known(existing: str, entry: str) -> bool:
    """Whether a file's text has this entry already, but for case, spaces, list marks and the full stop at its end."""
    wanted = entry_key(entry)
    return any(entry_key(line) == wanted for line in existing.splitlines())


def entry_key(line: str) -> str:
    """What is the same of an entry in any spelling: without case, spaces, list marks and the full stop at its end."""
    return " ".join(line.split()).lstrip("-*+ ").rstrip(".!; ").casefold()
