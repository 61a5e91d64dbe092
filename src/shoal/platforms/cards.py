"""Extract the text of cards that other apps post. A card is a JSON tree with a different schema on each platform.

A form names the keys that contain text, not the known kinds of parts, because platforms often add new kinds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from shoal.kernel.untrusted import UNREADABLE
from shoal.platforms.http import Json

DEPTH_MAX = 60
PARTS_MAX = 10_000
WORDS_CHARS_MAX = 20_000
"""Maximum length of the text extracted from a card. Anyone can post a card, so its text may be arbitrarily long."""

Part: TypeAlias = Mapping[str, Json]


class CardForm(msgspec.Struct, frozen=True):
    """The keys that contain text in one platform's cards."""

    said: frozenset[str]
    """Keys whose values are text."""
    rows: frozenset[str] = frozenset()
    """Keys whose values are lists of table rows. Each row becomes one line."""
    inline: frozenset[str] = frozenset()
    """Types of parts whose text is joined into one line."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Pairs of keys that contain a name and its value. A pair becomes the line `name: value`."""
    links: tuple[tuple[str, str], ...] = ()
    """Pairs of keys that contain the text and the URL of a link."""
    leaf: Callable[[Part], str | None] = lambda part: None
    """Function that returns the text of a special part, or None to apply the general rules."""


def words_of(card: msgspec.Raw | Json, form: CardForm) -> str:
    """Return a card's text, one line per part. Returns an empty string if the card cannot be decoded. Long text is cut
    at WORDS_CHARS_MAX characters.
    """
    if isinstance(card, msgspec.Raw):
        card = json_in(card)
    reading = _CardReading(form)
    lines = list[str]()
    chars = 0
    for line in reading.lines(card, 0):
        text = line.strip()[: WORDS_CHARS_MAX - chars]
        if text:
            lines.append(text)
            chars += len(text)
        if chars >= WORDS_CHARS_MAX:
            lines.append("…")
            break
    return "\n".join(lines)


def json_in(encoded: msgspec.Raw) -> Json:
    """Decode a card's JSON, which may itself be encoded as a JSON string. Returns None if it is invalid."""
    try:
        content: Json = msgspec.json.decode(encoded)
        decoded: Json = msgspec.json.decode(content) if isinstance(content, str) else content
    except UNREADABLE:
        return None
    return decoded


class _CardReading:
    """Reads one card, up to DEPTH_MAX levels and PARTS_MAX parts."""

    def __init__(self, form: CardForm) -> None:
        self._form = form
        self._left = PARTS_MAX

    def lines(self, part: Json, depth: int) -> Iterator[str]:
        self._left -= 1
        if depth > DEPTH_MAX or self._left < 0:
            return
        if isinstance(part, list):
            for item in part:
                if not isinstance(item, str):
                    yield from self.lines(item, depth + 1)
        elif isinstance(part, Mapping):
            text = self._form.leaf(part)
            if text is not None:
                yield text
            elif str(part.get("type")) in self._form.inline:
                yield "".join(self._inside(part, depth))
            else:
                yield from self._inside(part, depth)

    def _inside(self, part: Part, depth: int) -> Iterator[str]:
        pair = next((pair for pair in self._form.pairs if all(isinstance(part.get(key), str) for key in pair)), ())
        if pair:
            yield ": ".join(str(part[key]) for key in pair)
        for key, value in part.items():
            if key in pair:
                continue
            if key in self._form.said and isinstance(value, str):
                url = next((part.get(address) for words, address in self._form.links if words == key), None)
                yield f"{value} ({url})" if value and url and isinstance(url, str) else value
            elif key in self._form.said and isinstance(value, list):
                for item in value:
                    yield from (item,) if isinstance(item, str) else self.lines(item, depth + 1)
            elif key in self._form.rows and isinstance(value, list):
                for row in value:
                    yield " | ".join(filter(None, (cell.strip() for cell in self._cells(row, depth + 1))))
            else:
                yield from self.lines(value, depth + 1)

    def _cells(self, row: Json, depth: int) -> Iterator[str]:
        cells = row.get("cells") if isinstance(row, Mapping) else row
        for cell in cells if isinstance(cells, list) else ():
            yield " ".join(self.lines(cell, depth + 1))
