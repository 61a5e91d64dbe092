"""Full text search over what was said: FTS5 in SQLite, a tsvector column in PostgreSQL, filled with the events."""

import re
from functools import lru_cache
from hashlib import blake2b

from shoal.domain.events import Event
from shoal.domain.ids import ThreadId, channel_of
from shoal.store import rows as convert
from shoal.store.script import Driver, query, text

WORDS_MAX = 32
PLACES_MAX = 1024
"""Threads whose places are kept at hand."""
_WORD = re.compile(r"\w+")
_UNSPACED = (
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])"
)
"""Characters of scripts that are written without spaces; the first migrations know the same. Compiling it takes 3 ms,
which is left to the first text that needs it."""
_LAST = "\U0010ffff"


class SearchView:
    """Implements `domain.store.Search`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def said(self, words: str, *, within: str = "", limit: int = 20) -> list[Event]:
        """What people and agents said with all of these words, newest first."""
        wanted = _WORD.findall(words)[:WORDS_MAX]
        if not wanted:
            return []
        phrases = [spread(word).split() for word in wanted]
        quoted = " AND ".join(f'"{" ".join(phrase)}"' for phrase in phrases)
        script = query(
            "search_said",
            quoted=f"words : ({quoted})" + (f" AND places : {_place(within)}" if within else ""),
            words=" & ".join(" <-> ".join(f"'{word}'" for word in phrase) for phrase in phrases),
            low=within,
            high=first_after(within),
            limit=limit,
        )
        return [convert.event(ThreadId(text(row[0])), row[1:]) for row in await self._driver.read(script)]


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


def first_after(within: str) -> str:
    """The first thread id after all that are or begin with `within`."""
    if not within:
        return _LAST
    if within.endswith(":"):
        return f"{within[:-1]};"
    return f"{within}\x01"
