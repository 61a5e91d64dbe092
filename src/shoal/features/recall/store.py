"""Database rows of recall: passages of files and messages, with their vectors."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shoal.store.driver import (
    Batch,
    Query,
    Row,
    Script,
    StorePart,
    first_after,
    number,
    query,
    reader,
    reads,
    text,
    writes,
)

PIECES_MAX = 2_000
"""Maximum number of passages per source. Further passages are not searched."""
SOURCES_MAX = 5_000
PAGE_ROWS = 1_000


class Known(NamedTuple):
    """State of a source when it was last indexed.

    stamp: version of the file, or number of the last indexed event of a thread.
    problem: why the source is not searched completely, or empty.
    """

    stamp: str
    problem: str


class Passage(msgspec.Struct, frozen=True):
    """A passage of a source.

    place: position in the source. For a message, its number in the thread.
    text: empty for a message, because the journal has the text.
    person: owner of a private passage, otherwise empty.
    """

    id: int
    source: str
    place: str
    text: str
    person: str


_passage = reader(Passage)


class NewPassage(NamedTuple):
    place: str
    text: str
    person: str = ""


class StoredVector(NamedTuple):
    number: int
    piece: int
    source: str
    person: str
    vector: str


class RecallStore(StorePart):
    """Database access for recall. A source is a path below the home directory or `said:THREAD`."""

    @reads
    def sources(self, beginnings: Sequence[str]) -> Script[dict[str, Known]]:
        """Return the indexed sources with these names. A name that ends with a slash selects everything below it."""
        spans = [
            (beginning, f"{beginning[:-1]}0" if beginning.endswith("/") else first_after(beginning))
            for beginning in beginnings
        ]
        queries = [Query("recall_sources", {"low": low, "high": high, "limit": SOURCES_MAX}) for low, high in spans]
        results = yield Batch(queries)
        return {text(row[0]): Known(text(row[1]), text(row[2])) for rows in results for row in rows}

    async def stamp(self, source: str) -> str:
        rows = await self._read("recall_source", source=source)
        return text(rows[0][0]) if rows else ""

    @writes
    def put(self, source: str, known: Known, pieces: Sequence[NewPassage]) -> Script[None]:
        """Replace the passages of a source. Unchanged passages keep their vectors."""
        rows = yield from query("recall_pieces_of", source=source, limit=PIECES_MAX)
        left: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            left.setdefault((text(row[2]), text(row[3])), []).append(row)
        for piece in pieces[:PIECES_MAX]:
            same = left.get((piece.text, piece.person))
            if not same:
                params = {"place": piece.place, "text": piece.text, "person": piece.person}
                yield from query("recall_insert", source=source, **params)
            elif text((row := same.pop(0))[1]) != piece.place:
                yield from query("recall_move", id=number(row[0]), place=piece.place)
        for gone in left.values():
            yield from _delete(gone)
        yield from query("recall_source_put", source=source, stamp=known.stamp, problem=known.problem)

    @writes
    def add(self, source: str, stamp: str, places: Sequence[str]) -> Script[None]:
        for place in places:
            yield from query("recall_insert", source=source, place=place, text="", person="")
        yield from query("recall_source_put", source=source, stamp=stamp, problem="")

    @writes
    def drop(self, source: str) -> Script[None]:
        while rows := (yield from query("recall_pieces_of", source=source, limit=PIECES_MAX)):
            yield from _delete(rows)
        yield from query("recall_source_drop", source=source)

    @writes
    def drop_pieces(self, ids: Sequence[int]) -> Script[None]:
        for id in ids:
            yield from query("recall_vector_delete", id=id)
            yield from query("recall_delete", id=id)

    @reads
    def pieces(self, sources: Sequence[str]) -> Script[list[Passage]]:
        """Return the passages of these sources, in the order of the sources."""
        results = yield Batch(
            [Query("recall_pieces_of", {"source": source, "limit": PIECES_MAX}) for source in sources]
        )
        return [
            Passage(number(row[0]), source, text(row[1]), text(row[2]), text(row[3]))
            for source, rows in zip(sources, results, strict=True)
            for row in rows
        ]

    @reads
    def embedded(self, ids: Sequence[int]) -> Script[list[tuple[Passage, str]]]:
        """Return passages with their vectors. Skips passages that were deleted or have no vector."""
        results = yield Batch([Query("recall_piece", {"id": id}) for id in ids])
        return [(_passage(row[:5]), text(row[5])) for rows in results for row in rows]

    async def waiting(self, limit: int) -> list[Passage]:
        """Return passages without a vector, newest first."""
        return [_passage(row) for row in await self._read("recall_waiting", limit=limit)]

    @writes
    def embed(self, vectors: Sequence[tuple[int, str]]) -> Script[None]:
        """Store the vectors of passages. Skips deleted passages."""
        for id, vector in vectors:
            if (yield from query("recall_embedded", id=id)):
                yield from query("recall_vector_delete", id=id)
                yield from query("recall_vector_insert", id=id, vector=vector)

    async def vectors(self, after: int, limit: int = PAGE_ROWS) -> list[StoredVector]:
        rows = await self._read("recall_vectors", after=after, limit=limit)
        return [StoredVector(number(row[0]), number(row[1]), text(row[2]), text(row[3]), text(row[4])) for row in rows]

    async def reset(self) -> None:
        """Delete all vectors, one page per transaction."""
        after = 0
        while (after := await self.reset_page(after)) > 0:
            pass

    @writes
    def reset_page(self, after: int) -> Script[int]:
        """Delete the vectors of one page of passages with ids above `after`. Return the last id, or 0 if no passages
        are left.
        """
        rows = yield from query("recall_reset", after=after, limit=PAGE_ROWS)
        for row in rows:
            yield from query("recall_vector_delete", id=number(row[0]))
        return max((number(row[0]) for row in rows), default=0)


def _delete(rows: Sequence[Row]) -> Script[None]:
    for row in rows:
        yield from query("recall_vector_delete", id=number(row[0]))
        yield from query("recall_delete", id=number(row[0]))
