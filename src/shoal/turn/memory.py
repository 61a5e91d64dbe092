"""Long-term memory in the prompt: the MEMORY.md of three scopes and the last daily notes, as live sections."""

from collections.abc import Iterator, Mapping
from datetime import date, timedelta

from shoal.domain.foreign import enclosed
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.memory import FILE_BYTES_MAX, MEMORY_SCOPES, MemoryScope, memory_path, note_path, shown_to
from shoal.turn.files import FileCache, cut_bytes
from shoal.turn.sections import Section, file_section

NO_MEMORY = "(no memory yet)"


class MemoryFiles:
    """What a channel's threads see of the memory files, with what is for `person` alone; reading costs a stat each."""

    __slots__ = (
        "_bytes_max",
        "_days",
        "_home",
        "_note_bytes_max",
        "_note_paths",
        "_paths",
        "_person",
        "_read",
        "_titles",
    )

    def __init__(
        self, home: Home, thread: ThreadId, person: str, *, days: int, bytes_max: int, note_bytes_max: int
    ) -> None:
        self._home = home
        self._person = person
        self._read: dict[str, tuple[str, str]] = {}
        self._days = days
        self._bytes_max = bytes_max
        self._note_bytes_max = note_bytes_max
        self._paths = [str(memory_path(home, scope, thread)) for scope in MEMORY_SCOPES]
        self._titles = [_title(scope, thread) for scope in MEMORY_SCOPES]
        self._note_paths: tuple[date, tuple[tuple[str, str], ...]] | None = None

    def read(self, files: FileCache, today: date) -> tuple[str, ...]:
        """The texts as they are now: one a scope, then one a day with the oldest first; empty where there is none."""
        scopes = [self._shown(files, path, self._bytes_max) for path in self._paths]
        return (*scopes, *(self._shown(files, path, self._note_bytes_max) for _, path in self._notes(today)))

    def paths(self, today: date) -> tuple[str, ...]:
        """The files that `read` reads, in the same order."""
        return (*self._paths, *(path for _, path in self._notes(today)))

    def sections(self, texts: tuple[str, ...], today: date, sources: Mapping[str, str]) -> Iterator[Section]:
        """The sections for what `read` returned on the same day; `sources` says by path what marks a file."""
        names = [f"memory {scope}" for scope in MEMORY_SCOPES] + [f"notes {day}" for day, _ in self._notes(today)]
        titles = [*self._titles, *(f"Notes of {day}" for day, _ in self._notes(today))]
        yield Section("memory", "# Memory" if any(texts) else f"# Memory\n{NO_MEMORY}", live=True)
        for name, title, text, path in zip(names, titles, texts, self.paths(today), strict=True):
            yield file_section(name, f"## {title}\n", enclosed(text), sources.get(path, ""), live=True, label=title)

    def _shown(self, files: FileCache, path: str, bytes_max: int) -> str:
        """What the person may see of a file; the same object while the file stays the same."""
        text = files.read(path, FILE_BYTES_MAX)
        known = self._read.get(path)
        if known is None or known[0] is not text:
            known = self._read[path] = text, cut_bytes(shown_to(text, self._person).rstrip(), bytes_max, path)
        return known[1]

    def _notes(self, today: date) -> tuple[tuple[str, str], ...]:
        if self._note_paths is None or self._note_paths[0] != today:
            days = [today - timedelta(days=back) for back in range(self._days - 1, -1, -1)]
            self._read.clear()
            self._note_paths = today, tuple((day.isoformat(), str(note_path(self._home, day))) for day in days)
        return self._note_paths[1]


def _title(scope: MemoryScope, thread: ThreadId) -> str:
    address = thread_address(thread)
    match scope:
        case "global":
            return "Global memory"
        case "platform":
            return f"Memory for {address.platform}"
        case "channel":
            return "Memory for this channel"
