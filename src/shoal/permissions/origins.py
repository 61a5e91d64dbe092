"""Find the origin of the values in a call: the asker's own words, or only text that others wrote.

Complete words and complete arguments are compared verbatim. The result is a hint for the person who decides, and
permits nothing: "13" also occurs in "June 13", and a value that the model has rewritten is not found. Runs in time
linear in the text, whose length is limited. The newest texts are compared first.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.events import Event, Revised, Steered, ToolFinished, UserSaid
from shoal.kernel.permissions import ValueOrigin
from shoal.kernel.untrusted import UNREADABLE
from shoal.permissions.taint import source_of

OWN_CHARS_MAX = 200_000
FOREIGN_CHARS_MAX = 600_000
"""Maximum number of characters in other people's text that are searched for the origin of a value."""
VALUES_MAX = 64
VALUE_CHARS_MAX = 120
ARGUMENT_CHARS_MAX = 20_000
ORIGINS_MAX = 6
COMMAND_WORD_CHARS_MIN = 4
DIGITS_MIN = 8
"""Minimum number of digits in a value for which spaces in the text are ignored, for example in an account number."""
_WORD = lazy_re.compile(r"""[^\s"'`<>()\[\]{},;|&=“”„«»]+""")
_TELLING = lazy_re.compile(r"[\d@/\\:]|\w\.\w")
_END = ".:!?…"


class Words(msgspec.Struct, frozen=True):
    """The texts of a conversation, newest first.

    own: authors and texts of messages by trusted people.
    foreign: sources and texts of untrusted content.
    """

    own: tuple[tuple[str, str], ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()


def words_of(events: Sequence[Event], asker: str) -> Words:
    """Split the events of a conversation, oldest first, into own and foreign texts.

    `asker` is the id of the person whom the approval card calls "you".
    """
    own, foreign = list[tuple[str, str]](), list[tuple[str, str]]()
    for event in reversed(events):
        source = source_of(event)
        match event.data:
            case UserSaid() | Steered() | Revised() as said if said.author.trusted:
                name = "you" if said.author.id == asker else said.author.name or said.author.id
                parts = (*said.refers_to, *said.attachments) if isinstance(said, UserSaid) else ()
                tainted = said.tainted_by if isinstance(said, UserSaid) else ""
                by_person = not isinstance(said, UserSaid) or (said.origin == "person" and said.caller is None)
                if tainted and all(part.tainted_by != tainted for part in parts):
                    foreign.append((tainted, said.text))
                elif by_person:
                    own.append((name, said.text))
                if isinstance(said, UserSaid):
                    foreign += [
                        (reference.tainted_by, reference.text) for reference in said.refers_to if reference.tainted_by
                    ]
            case UserSaid() | Steered() | Revised() as said:
                foreign.append((source, said.text))
            case ToolFinished(text=text) if source:
                foreign.append((source, text))
            case _:
                pass
    return Words(tuple(own), tuple(foreign))


def values_of(arguments: str, *, commands: bool) -> tuple[str, ...]:
    """Return the values in the JSON arguments of a call.

    The values are short arguments in full, and significant words from longer arguments, such as URLs, numbers and
    paths. If `commands` is true, every word with at least COMMAND_WORD_CHARS_MIN letters and digits counts.
    """
    try:
        decoded: object = msgspec.json.decode(arguments or "{}")
    except UNREADABLE:
        return ()
    values: dict[str, None] = {}
    for leaf in _leaves(decoded):
        text = leaf.strip()
        if 2 < len(text) <= VALUE_CHARS_MAX and "\n" not in text and (" " in text or _tells(text, commands=commands)):
            values[" ".join(text.split())] = None
        for match in _WORD.finditer(text[:ARGUMENT_CHARS_MAX]):
            word = match[0].rstrip(_END)
            if len(values) >= VALUES_MAX:
                return tuple(values)
            if 2 < len(word) <= VALUE_CHARS_MAX and not word.startswith("-") and _tells(word, commands=commands):
                values[word] = None
    return tuple(values)


def origins_of(values: Sequence[str], words: Words) -> tuple[ValueOrigin, ...]:
    """Return the origins of at most ORIGINS_MAX values. Values that only others wrote come first. Values without
    an origin are omitted.
    """
    own, foreign = _Index(words.own, OWN_CHARS_MAX), _Index(words.foreign, FOREIGN_CHARS_MAX)
    named, brought = list[ValueOrigin](), list[ValueOrigin]()
    for value in values:
        if any(value in origin.value for origin in (*named, *brought)):  # it is part of a value that is already listed
            continue
        if name := own.who_wrote(value):
            named.append(ValueOrigin(value, named_by=name))
        elif source := foreign.who_wrote(value):
            brought.append(ValueOrigin(value, source=source))
    return tuple((brought + named)[:ORIGINS_MAX])


def _leaves(decoded: object) -> Iterator[str]:
    waiting = [decoded]
    while waiting:
        part = waiting.pop()
        match part:
            case str() as text:
                yield text
            case bool() | None:
                pass
            case int() | float() as number:
                yield str(number)
            case list():
                waiting += reversed(cast("list[object]", part))
            case dict():
                waiting += reversed(cast("dict[str, object]", part).values())
            case _:
                pass


def _tells(word: str, *, commands: bool) -> bool:
    return bool(_TELLING.search(word)) or (commands and len(word) >= COMMAND_WORD_CHARS_MIN and word.isalnum())


class _Index:
    """The words of texts, with the latest author of each word."""

    def __init__(self, texts: Iterable[tuple[str, str]], chars_max: int) -> None:
        self._by_word: dict[str, str] = {}
        self._texts: list[tuple[str, str, str]] = []
        for name, text in texts:
            if chars_max <= 0:
                return
            part = " ".join(text[:chars_max].split())
            chars_max -= len(text)
            self._texts.append((name, f" {part} ", "".join(part.split())))
            for match in _WORD.finditer(part):
                self._by_word.setdefault(match[0], name)
                self._by_word.setdefault(match[0].rstrip(_END), name)

    def who_wrote(self, value: str) -> str:
        if name := self._by_word.get(value):
            return name
        if " " in value:
            return next((name for name, text, _ in self._texts if value in text), "")
        if sum(char.isdigit() for char in value) >= DIGITS_MIN:
            return next((name for name, _, dense in self._texts if value in dense), "")
        return ""
