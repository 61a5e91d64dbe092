"""Expansions and arithmetic of the shell that can run commands hidden in a variable's value, and those that cannot.

In `$((a))` the shell evaluates what `a` holds, and `x[$(rm y)]` there runs `rm y`; so do `${!a}`, `${a@P}` and
`[[ $a -eq 1 ]]`. Arithmetic is plain only when every variable in it was set in the same command to a number, or not at
all.
"""

import re
from collections.abc import Mapping

from shoal.permissions.variables import special_variable

_ARITHMETIC = re.compile(r"[A-Za-z0-9_\s+\-*/%<>=!&|^~?:,()$#]*")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\$(?![A-Za-z_#?$!])")
_NUMBER = re.compile(r"-?[0-9]+|\$\(\([^\[]*\)\)|\$\{#[A-Za-z_][A-Za-z0-9_]*\}|\$[#?$!]")
_BRACED_NUMBERS = re.compile(r"\{[0-9]+\.\.[0-9]+(\.\.[0-9]+)?\}")
_PLAIN = re.compile(
    r"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9-]|[0-9]+)(?:\[[@*0-9]+\])?\}"
    r"|\$\{[A-Za-z_][A-Za-z0-9_]*:\s*[0-9]+(?::[0-9]+)?\}"
    r"|\$\{#[A-Za-z_][A-Za-z0-9_]*\[[@*]\]\}"
)
_WITH_WORD = re.compile(
    rb"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])(?P<how>:?[-+?=]|##?|%%?|/[/#%]?|\^\^?|,,?)(?P<word>.*)\}",
    re.DOTALL,
)


def is_number(raw: str) -> bool:
    """Whether the right side of an assignment can only be a number."""
    return _NUMBER.fullmatch(raw) is not None or _BRACED_NUMBERS.fullmatch(raw) is not None


def arithmetic_names(raw: str) -> frozenset[str] | None:
    """The variables that an arithmetic expression uses; None when it has anything that is not plain arithmetic."""
    if not _ARITHMETIC.fullmatch(raw) or _PLACE.search(raw):
        return None
    names = frozenset(_NAMES.findall(re.sub(r"0[xX][0-9A-Fa-f]+", "0", raw)))
    if any(special_variable(name) for name in names):
        return None
    return names


def plain_expansion(source: bytes, start: int, stop: int, spans: Mapping[int, int]) -> tuple[bool, str]:
    """Whether `${…}` between two offsets only puts text in its place, and the variable that it sets, if any.

    Expansions within it have to stand where the grammar saw them (`spans`); quotes within it are not followed.
    """
    raw = source[start:stop]
    if _PLAIN.fullmatch(raw.decode(errors="replace")):
        return True, ""
    found = _WITH_WORD.fullmatch(raw)
    if found is None:
        return False, ""
    name, how = found["name"].decode(), found["how"]
    sets = name if how.endswith(b"=") else ""
    if sets and special_variable(name):
        return False, sets
    at, end = start + found.start("word"), start + found.end("word")
    while at < end:
        if at in spans:
            at = spans[at]
        elif source[at : at + 1] in b"$`'\"\\{}<>":
            return False, sets
        else:
            at += 1
    return at == end, sets
