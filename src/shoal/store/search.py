"""What journals are searched for: what was said, and the results that threads keep whole.

The full text index, FTS5 in SQLite and a tsvector column in PostgreSQL, is filled with the events, and so are the rows
of results.
"""

import re
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from shoal.kernel.events import Event
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.records import Artifact
from shoal.store.appends import event
from shoal.store.driver import Script, StorePart, first_after, query, reader, text, writes

WORDS_MAX = 32
PLACES_MAX = 1024
"""Threads whose places are kept at hand."""
_WORD = re.compile(r"\w+")
_UNSPACED = (
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])"
)
"""Characters of scripts that are written without spaces; the first migrations know the same. Compiling it takes 3 ms,
which is left to the first text that needs it."""
_artifact = reader(Artifact)
_HEX = frozenset("0123456789abcdef")


class SearchIndex(StorePart):
    """Full text search over the journals."""

    async def said(self, words: str, *, within: str = "", limit: int = 20, prefix: bool = False) -> list[Event]:
        """What people and agents said with all of these words, newest first; with `prefix` the last may be unfinished.

        `within` is a thread, or `platform:channel:` for all of a channel; empty is everywhere.
        """
        wanted = _WORD.findall(words)[:WORDS_MAX]
        if not wanted:
            return []
        phrases = [spread(word).split() for word in wanted]
        quoted, anything = " AND ".join(f'"{" ".join(phrase)}"' for phrase in phrases), ":*" if prefix else ""
        rows = await self._read(
            "search_said",
            quoted=f"words : ({quoted}{' *' if prefix else ''})"
            + (f" AND places : {_place(within)}" if within else ""),
            words=" & ".join(" <-> ".join(f"'{word}'" for word in phrase) for phrase in phrases) + anything,
            low=within,
            high=first_after(within),
            limit=limit,
        )
        return [event(ThreadId(text(row[0])), row[1:]) for row in rows]


class ExpiredArtifacts(NamedTuple):
    """The rows that were forgotten, and the digests that no thread keeps any more."""

    forgotten: list[tuple[ThreadId, str]]
    unkept: list[str]


class ArtifactStore(StorePart):
    """Which results threads keep whole; a row is made by the `tool_result` event that names it."""

    async def of_thread(self, thread: ThreadId, limit: int = 1000) -> list[Artifact]:
        """Those of a thread, newest first."""
        return [_artifact(row) for row in await self._read("artifacts_of", thread=thread, limit=limit)]

    async def find(self, thread: ThreadId, name: str) -> Artifact | None:
        """The thread's newest one whose digest begins with `name`, or None."""
        if not name or not _HEX.issuperset(name):
            return None
        return await self._one(_artifact, "artifact_find", thread=thread, low=name, high=name + "g")

    @writes
    def expire(self, before: datetime) -> Script[ExpiredArtifacts]:
        """Forget those made before this time."""
        gone = yield from query("artifacts_expire", before=before)
        forgotten = sorted((ThreadId(text(row[0])), text(row[1])) for row in gone)
        unkept = {digest for _, digest in forgotten}
        for digest in sorted(unkept):
            if (yield from query("artifact_kept", digest=digest)):
                unkept.discard(digest)
        return ExpiredArtifacts(forgotten, sorted(unkept))


@lru_cache(PLACES_MAX)
def places(thread: str) -> str:
    """The words by which a search finds a thread, and its channel, in SQLite's index."""
    return f"{_place(channel_of(ThreadId(thread)))} {_place(thread)}"


def _place(within: str) -> str:
    """A thread or a channel as one word, which begins with a letter. That two have the same is made up for: what
    is found is compared with the id."""
    return f"x{blake2b(within.encode(), digest_size=8).hexdigest()}"


def spread(said: str | None) -> str:
    """The text with a space around each character of a script that is written without."""
    if said is None or said.isascii():
        return said or ""
    return re.sub(_UNSPACED, r" \1 ", said)
