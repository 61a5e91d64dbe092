"""The memory section of the system prompt: the MEMORY.md of three scopes, and recent daily notes."""

from collections.abc import Sequence
from datetime import date, timedelta

from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, thread_address
from shoal.kernel.memory_files import FILE_BYTES_MAX, MEMORY_SCOPES, memory_path, note_path, shown_to
from shoal.turn.prompt import PromptFile, PromptPart

EMPTY = "(no memory yet)"
SCOPE_BYTES_MAX = 32_768
NOTE_BYTES_MAX = 8_192


def memory_part(home: Home, notes_days: int) -> PromptPart:
    """Return the memory section of the prompt, with the notes of the last `notes_days` days, oldest first."""

    def files(thread: ThreadId, today: date) -> Sequence[PromptFile]:
        platform = thread_address(thread).platform
        titles = {"global": "Global memory", "platform": f"Memory for {platform}", "channel": "Memory for this channel"}
        named = [
            (f"memory {scope}", titles[scope], memory_path(home, scope, thread), SCOPE_BYTES_MAX)
            for scope in MEMORY_SCOPES
        ]
        days = [today - timedelta(days=back) for back in range(notes_days - 1, -1, -1)]
        named += [(f"notes {day}", f"Notes of {day}", note_path(home, day), NOTE_BYTES_MAX) for day in days]
        return [
            PromptFile(name, f"## {title}\n", str(path), bytes_max, live=True, label=title, forgets=True)
            for name, title, path, bytes_max in named
        ]

    return PromptPart("memory", "# Memory", EMPTY, FILE_BYTES_MAX, files, shown_to)
