"""History of memory changes. Changes are deleted after `bookkeeping_days`, so forgotten text does not remain stored."""

from datetime import datetime

import msgspec

from shoal.store.driver import LAST, StorePart, dump, reader
from shoal.store.retention import Walk


class MemoryChange(msgspec.Struct, frozen=True):
    """Replacement of lines in a memory file.

    `file`: path relative to the home directory.
    `line`: line number, from 0.
    `person`: owner of private lines. Empty means shared lines.
    `tainted_by`: untrusted content that influenced the change, or empty.
    """

    id: str
    at: datetime
    file: str
    line: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed_by: str
    person: str = ""
    agent: str = ""
    thread: str = ""
    tainted_by: str = ""
    undone: bool = False


CHANGES = Walk("memory", ("",), is_by_time=True)

_decode_lines = msgspec.json.Decoder(tuple[str, ...]).decode
_change = reader(
    MemoryChange,
    "id at file line removed added person changed_by agent thread tainted_by undone",
    removed=_decode_lines,
    added=_decode_lines,
)


class MemoryHistory(StorePart):
    """Database access for memory changes. The ids of changes sort by time."""

    async def note(self, change: MemoryChange) -> None:
        """Record a change. Call this before making the change."""
        row = msgspec.structs.asdict(change) | {"removed": dump(change.removed), "added": dump(change.added)}
        del row["undone"]
        await self._write("memory_insert", **row)

    async def drop(self, change: MemoryChange) -> None:
        await self._write("memory_drop", id=change.id)

    async def get(self, id: str) -> MemoryChange | None:
        return await self._one(_change, "memory_one", id=id)

    async def newest(self, limit: int, below: str = "") -> list[MemoryChange]:
        """Return changes, newest first. If `below` is given, return only changes with smaller ids, which are older."""
        return [_change(row) for row in await self._read("memory_changes", below=below or LAST, limit=limit)]

    async def note_undone(self, change: MemoryChange) -> None:
        await self._write("memory_undone", id=change.id)
