"""What a word may become once the shell has replaced what it replaces: braces, a tilde, variables, globs.

A result is text in which a few control characters stand for what only the file system knows. Values of variables are
known where every assignment of the command text gives one; whatever else there is makes the word unknown.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from shoal.permissions.words import Piece, Word, quote

ANY = "\0"
"""Any text within a path's component (`*` and `?`)."""
REST = "\1"
"""Any text up to the end of a path's component (from `[` on)."""
HOME, HERE = "\2", "\3"
"""The home and the working directory."""
SPLIT = "\4"
"""Stands before one of these two without quotes: a blank in it would make it several words."""
ALTERNATIVES_MAX = 64
DEPTH_MAX = 4

_CONTROL = re.compile(r"[\x00-\x04]")
_COUNTED = re.compile(r"(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})")


class Value(msgspec.Struct, frozen=True):
    """What a variable is set to; `listed` for a word of a `for` loop, where the shell fills in patterns."""

    word: Word
    listed: bool = False


Variables = Mapping[str, Sequence[Value] | None]
"""What variables are set to anywhere in a command; None for one that is set to what cannot be known."""

NONE: Variables = {}


def expand(word: Word, variables: Variables = NONE, depth: int = 0) -> tuple[str, ...] | None:
    """All that the word may become, one text for each word it may turn into; None when that is not known."""
    if word.value is not None:
        return None if _CONTROL.search(word.value) else (word.value,)
    if depth > DEPTH_MAX or any(piece.kind in ("unknown", "below") for piece in word.pieces):
        return None
    found: list[str] = []
    for alternative in _braces(word.pieces, bare=word.bare):
        texts = None if alternative is None else _filled(alternative, variables, depth)
        if texts is None or len(found) > ALTERNATIVES_MAX:
            return None
        found += texts
    return tuple(dict.fromkeys(found))


def may_be_option(word: Word, variables: Variables = NONE) -> bool:
    """Whether any of the words that an uncertain word becomes may begin with `-`."""
    texts = expand(word, variables)
    if texts is None:
        return word.splits or not word.begins or word.begins.startswith("-")
    return any(text[:1] in ("-", ANY, REST) or SPLIT in text for text in texts)


def single(word: Word) -> bool:
    """Whether it stays exactly one argument."""
    return word.value is not None or not (word.splits or any(piece.kind in ("glob", "brace") for piece in word.pieces))


def numeric(word: Word, variables: Variables) -> bool:
    """Whether it is a number, or nothing where a variable is not set."""
    pieces = (Piece("text", word.value),) if word.value is not None else word.pieces
    return bool(pieces) and all(
        piece.kind == "number"
        or (piece.kind == "text" and piece.text.isdecimal())
        or (piece.kind == "variable" and _holds_numbers(piece.text, variables))
        for piece in pieces
    )


def _holds_numbers(name: str, variables: Variables) -> bool:
    """Whether a variable is only ever set to numbers that are spelled out or calculated."""
    values = variables.get(name)
    return bool(values) and all(
        (value.word.value or "").isdecimal() or {piece.kind for piece in value.word.pieces} == {"number"}
        for value in values or ()
    )


def after(word: Word, count: int) -> Word:
    """The word without its first `count` characters, which are certain."""
    if word.value is not None:
        return Word(word.text, word.value[count:], word.value[count:])
    pieces = list(word.pieces)
    left = count
    while left and pieces and pieces[0].kind == "text":
        first = pieces.pop(0)
        if len(first.text) > left:
            pieces.insert(0, Piece("text", first.text[left:]))
        left = max(0, left - len(first.text))
    return Word(word.text, None, word.begins[count:], word.splits, word.bare, tuple(pieces))


def _braces(pieces: Sequence[Piece], *, bare: bool) -> Iterator[list[Piece] | None]:
    """The alternatives that braces make of a word; None where they cannot be told, as for a sequence in a word that is
    not `bare`, whose dots may be quoted."""
    opening = next((place for place, piece in enumerate(pieces) if piece.kind == "brace"), -1)
    if opening < 0:
        yield list(pieces)
        return
    depth, commas = 0, [opening]
    for place in range(opening, len(pieces)):
        mark = pieces[place].text if pieces[place].kind == "brace" else ""
        depth += (mark == "{") - (mark == "}")
        if mark == "," and depth == 1:
            commas.append(place)
        if depth == 0:
            commas.append(place)
            break
    else:
        yield None
        return
    head, tail = list(pieces[:opening]), list(pieces[commas[-1] + 1 :])
    options = [pieces[start + 1 : end] for start, end in pairwise(commas)]
    if len(options) == 1:
        options = list(_counted(options[0])) if bare else []
    if not options:
        yield None
    for option in options:
        yield from _braces([*head, *option, *tail], bare=bare)


def expanded_braces(words: Sequence[Word]) -> list[Word] | None:
    """The words with their braces expanded, which the shell does first; None where there are none, or they cannot be
    told."""
    if not any(piece.kind == "brace" for word in words for piece in word.pieces):
        return None
    found: list[Word] = []
    for word in words:
        for alternative in _braces(word.pieces, bare=word.bare) if word.pieces else [[Piece("text", word.text)]]:
            if alternative is None or len(found) > ALTERNATIVES_MAX:
                return None
            if not word.pieces:
                found.append(word)
            elif all(piece.kind == "text" for piece in alternative):
                text = "".join(piece.text for piece in alternative)
                found.append(Word(quote(text), text, text))
            else:
                shown = "".join(f"${piece.text}" if piece.kind == "variable" else piece.text for piece in alternative)
                found.append(Word(shown, None, word.begins, word.splits))
    return found


def _counted(inside: Sequence[Piece]) -> Iterator[list[Piece]]:
    """`{1..9}`; nothing for other kinds."""
    found = _COUNTED.fullmatch("".join(piece.text for piece in inside))
    if found is None or any(piece.kind != "text" for piece in inside):
        return
    first, last = int(found[1]), int(found[2])
    if abs(last - first) > ALTERNATIVES_MAX or found[1][:1] == "0" or found[2][:1] == "0":
        return
    for number in range(first, last + 1) if first <= last else range(first, last - 1, -1):
        yield [Piece("text", str(number))]


def _filled(pieces: Sequence[Piece], variables: Variables, depth: int) -> list[str] | None:
    """What pieces without braces become."""
    found = [""]
    for place, piece in enumerate(pieces):
        texts = _texts(piece, variables, depth)
        if piece.kind == "tilde":
            rest = "".join(other.text for other in pieces[place + 1 :] if other.kind == "text")
            texts = [HOME] if len(pieces) == 1 or rest.startswith("/") else None
        if piece.kind == "process":
            return [] if len(pieces) == 1 else None
        if texts is None or len(found) * len(texts) > ALTERNATIVES_MAX:
            return None
        found = [one + text for one in found for text in texts]
    return found


def _texts(piece: Piece, variables: Variables, depth: int) -> list[str] | None:
    match piece.kind:
        case "text":
            return None if _CONTROL.search(piece.text) else [piece.text]
        case "glob":
            return [REST if piece.text == "[" else ANY]
        case "variable":
            return _variable(piece, variables, depth)
        case "number":
            return [ANY]
        case _:
            return []


def _variable(piece: Piece, variables: Variables, depth: int) -> list[str] | None:
    """What a variable may hold: anything that it is set to in the command, or nothing."""
    if piece.text not in variables:
        known = {"HOME": HOME, "PWD": HERE}.get(piece.text)
        return None if known is None else [known if piece.quoted else SPLIT + known]
    found = [""]
    for value in variables[piece.text] or ():
        texts = expand(value.word if value.listed else _assigned(value.word), variables, depth + 1)
        if texts is None:
            return None
        if not piece.quoted:
            # A file's name may have blanks, which split the word; a pattern in a value is filled in here.
            if any(mark in text for mark in (" ", "\t", "\n", ANY, REST, HOME, HERE, SPLIT) for text in texts):
                return None
            texts = tuple(re.sub(r"[*?]", ANY, text).replace("[", REST) for text in texts)
        found += texts
    return None if variables[piece.text] is None else found


def _assigned(word: Word) -> Word:
    """A word behind `NAME=`, where patterns and braces stay as they are."""
    if word.value is not None:
        return word
    pieces = [Piece("text", piece.text) if piece.kind in ("glob", "brace") else piece for piece in word.pieces]
    return Word(word.text, None, word.begins, word.splits, word.bare, tuple(pieces))
