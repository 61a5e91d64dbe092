"""Makes text safe to display in an approval request."""

import unicodedata

from shoal.kernel import lazy_re

MARKS_MAX = 4
"""Maximum number of combining marks on one character. More marks would cover the text around it."""
_UNSEEN = lazy_re.compile(
    "[\u2800\u3164\uffa0\u115f\u1160\u00ad\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U00016fe4\U0001d159"
    "\U000e0100-\U000e01ef]"
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BLANK = lazy_re.compile(r"[\t\n]|^ | $| (?= )")


def strip_controls(text: str) -> str:
    r"""Escape characters that are invisible, or that move or reverse the text around them, as `\u{…}`.

    This includes terminal escape sequences, which the text of a command can contain. Newlines and tabs are unchanged.
    """
    if text.isascii() and all(line.isprintable() for line in text.split("\n")):
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        kind = unicodedata.category(char)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        is_seen = char in "\n\t " or not (kind in _HIDDEN or marks > MARKS_MAX or _UNSEEN.match(char))
        shown.append(char if is_seen else _written(char))
    return "".join(shown)


def shown_name(name: str) -> str:
    """Format a file name so it cannot be confused with the text around it."""
    return _BLANK.sub(lambda match: _written(match[0]), strip_controls(name)) or "(a name without characters)"


def _written(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"
