"""What was changed of memory: rows that `bookkeeping_days` forgets, so that forgotten words do not stay for ever."""

import msgspec

from shoal.domain.records import MemoryChange
from shoal.store.driver import StorePart, dump, reader

_LAST = "~"
_decode_lines = msgspec.json.Decoder(tuple[str, ...]).decode
_change = reader(
    MemoryChange,
    "id at file line removed added person changed_by agent thread tainted_by undone",
    removed=_decode_lines,
    added=_decode_lines,
)


class MemoryHistory(StorePart):
    """Changes of memory files, by ids that sort by time."""

    async def note(self, change: MemoryChange) -> None:
        """Note one before it is made."""
        row = msgspec.structs.asdict(change) | {"removed": dump(change.removed), "added": dump(change.added)}
        del row["undone"]
        await self._write("memory_insert", **row)

    async def drop(self, change: MemoryChange) -> None:
        """It was not made after all."""
        await self._write("memory_drop", id=change.id)

    async def get(self, id: str) -> MemoryChange | None:
        return await self._one(_change, "memory_one", id=id)

    async def newest(self, limit: int, below: str = "") -> list[MemoryChange]:
        """The newest first, below an id."""
        return [_change(row) for row in await self._read("memory_changes", below=below or _LAST, limit=limit)]

    async def note_undone(self, change: MemoryChange) -> None:
        """It was taken back."""
        await self._write("memory_undone", id=change.id)
