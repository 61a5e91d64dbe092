"""Parse Telegram's message entities and validate them as the Bot API does.

Offsets count UTF-16 code units. An entity that starts or ends inside a character is an error. Empty entities and
entities that extend beyond the text are dropped without an error. Of several overlapping entities, only one takes
effect. Code may be inside a quote, but a quote may not be inside another quote. A message has at most 100 entities.

Sources: core.telegram.org/bots/api#messageentity and #formatting-options; tdlib/td, td/telegram/MessageEntity.cpp
(`clean_input_string_with_entities`, `fix_entities`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.testing.platforms.wire import Json

ENTITIES_MAX = 100
_SPLIT = frozenset({"bold", "italic", "underline", "strikethrough", "spoiler"})
_QUOTES = frozenset({"blockquote", "expandable_blockquote"})
_PRIORITY = {"blockquote": 0, "expandable_blockquote": 0, "pre": 11, "code": 20, "text_link": 49, "text_mention": 49}
_KINDS = _SPLIT | _QUOTES | {"code", "pre", "text_link", "text_mention", "custom_emoji"}


class BadMarkup(Exception):
    """Raised with Telegram's error message if the entities do not fit the text."""


class Entity(NamedTuple):
    """A message entity. `text` is the part that it covers. `detail` is the URL of a link or the language of a code
    block.
    """

    kind: str
    text: str
    detail: str = ""


def checked_entities(text: str, given: Json) -> list[Entity]:
    """Return the entities that take effect. Raises BadMarkup."""
    units = text.encode("utf-16-le")
    counted: list[tuple[int, int, Entity]] = []
    for item in given if isinstance(given, list) else []:
        if not isinstance(item, dict) or item.get("type") not in _KINDS:
            raise BadMarkup("Can't parse MessageEntity: unsupported type of an entity")
        kind, start, length = str(item["type"]), item.get("offset"), item.get("length")
        if not isinstance(start, int) or not isinstance(length, int):
            raise BadMarkup('Can\'t parse MessageEntity: Field "offset" must be of type Number')
        if kind == "text_link" and not str(item.get("url", "")).startswith(
            ("http://", "https://", "tg://", "mailto:", "tel:")
        ):
            continue
        end = start + length
        if start < 0 or length <= 0 or end * 2 > len(units):
            continue
        for side, at in (("begins", start), ("ends", end)):
            if b"\xdc" <= units[at * 2 + 1 : at * 2 + 2] <= b"\xdf":
                raise BadMarkup(f"Entity {side} in a middle of a UTF-16 symbol at byte offset {at * 2}")
        detail = str(item.get("url", "") or item.get("language", ""))
        counted.append((start, end, Entity(kind, units[start * 2 : end * 2].decode("utf-16-le"), detail)))
    counted.sort(key=lambda item: (item[0], -item[1], _PRIORITY.get(item[2].kind, 90)))
    entities: list[tuple[int, int, Entity]] = []
    for start, end, entity in counted:
        if all(_goes_with(entity.kind, (start, end), other.kind, (since, until)) for since, until, other in entities):
            entities.append((start, end, entity))
    return [entity for _, _, entity in entities[:ENTITIES_MAX]]


def _goes_with(kind: str, place: tuple[int, int], other: str, there: tuple[int, int]) -> bool:
    if place[0] >= there[1]:
        return True
    is_within = place[1] <= there[1]
    if {kind, other} & {"code", "pre"}:
        return other in _QUOTES and is_within
    if kind in _QUOTES or other in _QUOTES:
        return not (kind in _QUOTES and other in _QUOTES) and is_within
    return (is_within or kind in _SPLIT) and (kind in _SPLIT or other in _SPLIT)


def shown_styles(entities: Sequence[Entity]) -> set[tuple[str, str]]:
    return {(entity.kind, entity.text) for entity in entities}
