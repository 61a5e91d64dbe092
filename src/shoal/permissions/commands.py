"""Simple commands: their one spelling, whether they are opaque, and what deny patterns see of them besides."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from shoal.permissions.opaque import ALWAYS, RESERVED, base_name, harmless_variable, opaque_until
from shoal.permissions.words import Word, quote

SUFFIXES_MAX = 32
_MAY_BE_A_COMMAND = re.compile(r"[\s;|&<>$`()]")


class Part(msgspec.Struct, frozen=True):
    """One thing a command does, as the detail of an action (without `tool:NAME:`).

    A `view` is for deny patterns only. A redirection has its `operator` and `target`, and `moves`: how many times the
    command may have changed its directory before (a negative number: nobody knows where it is).
    """

    text: str
    opaque: bool = False
    naming: str = ""
    view: bool = False
    operator: str = ""
    target: str | None = None
    moves: int = 0


class Assignment(msgspec.Struct, frozen=True):
    """`NAME=VALUE` before a command or alone; `text` is its canonical spelling."""

    name: str
    text: str
    value: str | None


def spell(words: Sequence[Word]) -> str:
    """The words in canonical spelling. A first word that would mean something else unquoted is quoted."""
    first, *others = words
    text = first.text
    if first.value is not None and not first.bare and ("=" in first.value or first.value in RESERVED):
        text = quote(first.value, force=True)
    return " ".join([text, *(word.text for word in others)])


def command_parts(assignments: Sequence[Assignment], words: Sequence[Word]) -> list[Part]:
    """The action of a simple command, then the views of it."""
    before = "".join(f"{item.text} " for item in assignments)
    text = before + spell(words)
    until = opaque_until(words)
    if until is None and not all(harmless_variable(item.name) and item.value is not None for item in assignments):
        until = 1
    if until is None:
        parts = [Part(text)]
    else:
        named = before + spell(words[:until])
        parts = [Part(text, opaque=True, naming=named if words[0].value is not None else "")]
    return parts + _views(text, words, opaque=until is not None)


def _views(text: str, words: Sequence[Word], *, opaque: bool) -> list[Part]:
    """What else a deny pattern may mean: the command by its other names, and what may run inside an opaque one."""
    found: list[str] = [spell(words), *_by_other_names(words)]
    name = words[0].value or ""
    if base_name(name) != name.rsplit("/", 1)[-1]:
        found.append(spell([_plain(base_name(name)), *words[1:]]))
    if opaque:
        rests = [words[number:] for number in range(1, min(len(words), SUFFIXES_MAX))]
        found += [spell(rest) for rest in rests]
        found += [view for rest in rests for view in _by_other_names(rest)]
    return [Part(view, view=True) for view in dict.fromkeys(found) if view != text]


def _by_other_names(words: Sequence[Word]) -> Iterator[str]:
    """A program without its directory, and one of git's own as git's subcommand."""
    name = words[0].value or ""
    base = name.rsplit("/", 1)[-1]
    if base and base != name:
        yield spell([_plain(base), *words[1:]])
    if base.startswith("git-"):
        yield spell([_plain("git"), _plain(base.removeprefix("git-")), *words[1:]])


def _plain(value: str) -> Word:
    return Word(quote(value), value, value)


def inner_commands(words: Sequence[Word]) -> list[str]:
    """Texts among the words that the command may run as a command of their own, as `sh -c TEXT` does."""
    values = [word.value for word in words[1:] if word.value is not None]
    texts = [value for value in values if _MAY_BE_A_COMMAND.search(value)]
    if base_name(words[0].value or "") in ALWAYS and len(values) > 1:
        texts.append(" ".join(values))
    return texts
