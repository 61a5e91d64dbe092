"""Long-term memory in the prompt: the MEMORY.md of three scopes and the last daily notes, as live sections."""

from collections.abc import Iterator
from datetime import date, timedelta

from shoal.domain.foreign import enclosed
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.memory import MEMORY_SCOPES, MemoryScope, memory_path, note_path
from shoal.turn.files import FileCache
from shoal.turn.sections import Section

NO_MEMORY = "(no memory yet)"


class MemoryFiles:
    """The memory files that a channel's threads see; reading them costs a stat each."""

    __slots__ = ("_bytes_max", "_days", "_home", "_note_bytes_max", "_note_paths", "_paths", "_titles")

    def __init__(self, home: Home, thread: ThreadId, *, days: int, bytes_max: int, note_bytes_max: int) -> None:
        self._home = home
        self._days = days
        self._bytes_max = bytes_max
        self._note_bytes_max = note_bytes_max
        self._paths = [str(memory_path(home, scope, thread)) for scope in MEMORY_SCOPES]
        self._titles = [_title(scope, thread) for scope in MEMORY_SCOPES]
        self._note_paths: tuple[date, tuple[tuple[str, str], ...]] | None = None

    def read(self, files: FileCache, today: date) -> tuple[str, ...]:
        """The texts as they are now: one a scope, then one a day with the oldest first; empty where there is none."""
        scopes = [files.read(path, self._bytes_max) for path in self._paths]
        return (*scopes, *(files.read(path, self._note_bytes_max) for _, path in self._notes(today)))

    def sections(self, texts: tuple[str, ...], today: date) -> Iterator[Section]:
        """The sections for what `read` returned on the same day."""
        is_empty = not any(texts)
        yield Section("memory", f"# Memory\n{NO_MEMORY}" if is_empty else "# Memory", live=True)
        for scope, title, text in zip(MEMORY_SCOPES, self._titles, texts, strict=False):
            yield Section(f"memory {scope}", f"## {title}\n{enclosed(text)}" if text else "", live=True, label=title)
        for (day, _), text in zip(self._notes(today), texts[len(MEMORY_SCOPES) :], strict=True):
            title = f"Notes of {day}"
            yield Section(f"notes {day}", f"## {title}\n{enclosed(text)}" if text else "", live=True, label=title)

    def _notes(self, today: date) -> tuple[tuple[str, str], ...]:
        if self._note_paths is None or self._note_paths[0] != today:
            days = [today - timedelta(days=back) for back in range(self._days - 1, -1, -1)]
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
