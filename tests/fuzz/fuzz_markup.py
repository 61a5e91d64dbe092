"""Replies: every dialect renders any text without losing a word, and no message exceeds the platform's limit."""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from shoal.kernel.posts import ChatLimits
from shoal.markdown.pieces import pieces_of
from shoal.markdown.render import render_markup, rendered_length
from tests.dialects import DIALECTS
from tests.fuzz.inputs import any_text
from tests.fuzz.target import Attempt

_UNITS: list[Literal["characters", "utf16", "bytes"]] = ["characters", "utf16", "bytes"]
_LINES = [
    "# ",
    "- ",
    "1. ",
    "> ",
    "    ",
    "| ",
    "```\n",
    "```py\n",
    "\n",
    "  \n",
    "***",
    "[",
    "](http://h/p)",
    "~~~\n",
    "|-|\n",
    "<b>",
]


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def _text(source: random.Random) -> tuple[str, list[str]]:
    words = [f"word{number}" for number in range(source.randint(1, 12))]
    parts: list[str] = []
    for word in words:
        parts += [any_text(source, 3), source.choice(_LINES), " ", word, source.choice([" ", "\n", "\n\n"])]
    return "".join(parts), words


def _names_language(text: str, word: str) -> bool:
    """Return True if the word is in the info string of a code fence. Some platforms cannot show it."""
    return any(re.search(rf"(`{{3,}}|~{{3,}})[^`]*\b{word}\b", line) for line in text.splitlines())


def attempt(source: random.Random) -> None:
    text, words = _text(source)
    for markup, dialect in DIALECTS.items():
        rendered = render_markup(text, dialect)
        missing = [word for word in words if word not in rendered and not _names_language(text, word)]
        assert not missing, f"{markup} lost {missing} of {text!r}"
        limits = ChatLimits(text_chars_max=source.randint(400, 900), markup=dialect, text_unit=source.choice(_UNITS))
        for piece in pieces_of(text, limits):
            length = rendered_length(piece, limits)
            assert length <= limits.text_chars_max or len(piece) <= 64, f"{markup}: {length} of {piece!r}"
