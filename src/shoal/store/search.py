"""Full-text search over messages, and the full tool results of threads.

The index is FTS5 in SQLite and a tsvector column in PostgreSQL. The index and the rows of results are written when
events are appended.
"""

import re
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from shoal.kernel import lazy_re
from shoal.kernel.events import Event
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.records import Artifact
from shoal.store.appends import event
from shoal.store.driver import Script, StorePart, first_after, query, reader, text, writes

WORDS_MAX = 32
PLACES_MAX = 1024
_WORD = lazy_re.compile(r"\w+")
_UNSPACED = (
    "\u0e00-\u0eff",
    "\u1000-\u109f",
    "\u1780-\u17ff",
    "\u3040-\u30ff",
    "\u3400-\u4dbf",
    "\u4e00-\u9fff",
    "\uac00-\ud7af",
    "\uf900-\ufaff",
)
"""Character ranges of scripts that do not separate words with spaces. Must match the ranges in the first migrations."""
_artifact = reader(Artifact)
_HEX = frozenset("0123456789abcdef")


class SearchIndex(StorePart):
    async def messages(self, words: str, *, within: str = "", limit: int = 20, prefix: bool = False) -> list[Event]:
        """Return messages from people and agents that contain all of these words, newest first. Uses at most WORDS_MAX
        words.

        With `prefix`, the last word may be incomplete. `within` is a thread, `PLATFORM:CHANNEL:` for a whole channel,
        or empty for all threads.
        """
        wanted = _WORD.findall(words)[:WORDS_MAX]
        if not wanted:
            return []
        phrases = [spread(word).split() for word in wanted]
        quoted, anything = " AND ".join(f'"{" ".join(phrase)}"' for phrase in phrases), ":*" if prefix else ""
        rows = await self._read(
            "search_said",
            quoted=f"words : ({quoted}{' *' if prefix else ''})"
            + (f" AND places : {_scope_word(within)}" if within else ""),
            words=" & ".join(" <-> ".join(f"'{word}'" for word in phrase) for phrase in phrases) + anything,
            low=within,
            high=first_after(within),
            limit=limit,
        )
        return [event(ThreadId(text(row[0])), row[1:]) for row in rows]


class ExpiredArtifacts(NamedTuple):
    """The result of deleting old tool results.

    - `forgotten`: the thread and digest of each deleted row.
    - `unkept`: the digests to which no thread refers anymore.
    """

    forgotten: list[tuple[ThreadId, str]]
    unkept: list[str]


class ArtifactStore(StorePart):
    """Full tool results of threads. A row is created when the `tool_result` event that refers to the result is
    appended.
    """

    async def of_thread(self, thread: ThreadId, limit: int = 1000) -> list[Artifact]:
        return [_artifact(row) for row in await self._read("artifacts_of", thread=thread, limit=limit)]

    async def find(self, thread: ThreadId, name: str) -> Artifact | None:
        """Return the thread's newest result whose digest begins with `name`, or None."""
        if not name or not _HEX.issuperset(name):
            return None
        return await self._one(_artifact, "artifact_find", thread=thread, low=name, high=name + "g")

    @writes
    def expire(self, before: datetime) -> Script[ExpiredArtifacts]:
        """Delete the rows created before this time. The caller must delete the content."""
        gone = yield from query("artifacts_expire", before=before)
        forgotten = sorted((ThreadId(text(row[0])), text(row[1])) for row in gone)
        unkept = {digest for _, digest in forgotten}
        for digest in sorted(unkept):
            if (yield from query("artifact_kept", digest=digest)):
                unkept.discard(digest)
        return ExpiredArtifacts(forgotten, sorted(unkept))


@lru_cache(PLACES_MAX)
def places(thread: str) -> str:
    """Return the two words that represent a thread and its channel in SQLite's index."""
    return f"{_scope_word(channel_of(ThreadId(thread)))} {_scope_word(thread)}"


def _scope_word(within: str) -> str:
    """Encode a thread or a channel as one word that begins with a letter.

    Collisions are harmless, because search results are also compared with the id.
    """
    return f"x{blake2b(within.encode(), digest_size=8).hexdigest()}"


def spread(spoken: str | None) -> str:
    """Put spaces around each character of scripts without spaces, such as Chinese, so each one is indexed as a word."""
    if spoken is None or spoken.isascii() or not any(map(_is_unspaced, set(spoken))):
        return spoken or ""
    return re.sub(f"([{''.join(_UNSPACED)}])", r" \1 ", spoken)  # not compiled at import, because that takes 3 ms


def _is_unspaced(character: str) -> bool:
    return any(first <= character <= last for first, _, last in _UNSPACED)
