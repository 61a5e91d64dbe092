"""Splits a long answer, without losing a word, into pieces that a platform takes, measured in its own markup."""

import re
from typing import NamedTuple

from shoal.domain.posts import ChatLimits

CHARS_MIN = 64
"""The shortest piece that may be asked for."""
TAIL_SHARE = 8
"""A last piece has this part of the one before it at least: nobody wants a message of two letters."""

_FENCE = re.compile(r"^(`{3,16}(?!`)|~{3,16}(?!~))([^\n`]*)$", re.MULTILINE)
_INFO_CHARS_MAX = 20
"""Of what an opening fence says, so much is said again where it is opened again."""
_BOUNDARIES = ("\n\n", "\n", ". ", "! ", "? ", "。", " ")


class Cut(NamedTuple):
    """A piece, what is left of the text, and the opening line of the fence that is open there."""

    piece: str
    rest: str
    fence: str


def _first_piece(text: str, fence: str, chars_max: int) -> Cut:
    """Cut a piece of at most `chars_max` characters off, at a paragraph, line, sentence or word.

    A code fence that is cut is closed at the end of its piece and opened again, with its language, in the next. So
    apart from those fence lines, and from line ends that did not fit in at a cut, the pieces joined are the text.
    `fence` opens the code that `text` begins within, empty for none.
    """
    head = f"{fence}\n" if fence else ""
    room = chars_max - len(head)
    if len(text.rstrip("\n")) <= room:
        return Cut(head + text[:room], "", "")
    end = _cut(text, room)
    opening = _open_fence(text[:end], fence)
    if not opening:
        return Cut(head + text[:end], text[end:].lstrip("\n"), "")
    closing = f"\n{_marker(opening)}"
    end = _cut(text, room - len(closing))
    opening = _open_fence(text[:end], fence)
    before = text[:end].rstrip("\n").rfind("\n") + 1
    if opening and not fence and before and not _open_fence(text[:before], ""):  # it would be opened for nothing
        return Cut(text[:before], text[before:], "")
    if not opening:
        return Cut(head + text[:end], text[end:].lstrip("\n"), "")
    rest = text[end:] if text[:end].endswith("\n") else text[end:].removeprefix("\n")
    line, _, after = rest.partition("\n")
    if not _open_fence(line, opening):  # it would be opened again for nothing
        rest, opening = after.lstrip("\n"), ""
    return Cut(head + text[:end].removesuffix("\n") + closing, rest, opening)


def _cut(text: str, room: int) -> int:
    """Where to cut so that the first piece has at most `room` characters: the best boundary in its second half.

    Line ends at the boundary count only as far as they fit in. Where two pieces are enough, they are, and the second is
    no mere tail, as far as there are boundaries for that.
    """
    least, snug = room // 2, room
    if len(text) <= 2 * room:
        snug = min(room, len(text) - room // TAIL_SHARE)
        found = _boundary(text, max(least, len(text) - snug), snug)
        if found:
            return found
    return _boundary(text, least, room) or snug


def _boundary(text: str, least: int, room: int) -> int:
    """The end of the best boundary between these two places, the last of its kind; 0 when there is none."""
    for boundary in _BOUNDARIES:
        over = 0 if boundary.strip("\n") else len(boundary)
        at = text.rfind(boundary, least, room + over)
        if at >= 0:
            return min(at + len(boundary), room)
    return 0


def _marker(fence: str) -> str:
    return fence[: len(fence) - len(fence.lstrip("`~"))]


def _open_fence(body: str, fence: str) -> str:
    """The opening line of the fence that is open after `body`, empty when none is."""
    for found in _FENCE.finditer(body):
        marker, info = found.group(1), found.group(2).strip()
        if not fence:
            fence = marker + info[:_INFO_CHARS_MAX]
        elif not info and marker[0] == fence[0] and len(marker) >= len(_marker(fence)):
            fence = ""
    return fence


def pieces_of(text: str, limits: ChatLimits, reserve: int = 0) -> list[str]:
    """`text` as pieces of markdown, each at most `limits.text_chars_max` less `reserve` when rendered.

    At least one piece, even for no text; no word is lost, and fences are closed and opened again. The same text and
    limits give the same pieces, which a resend relies on.
    """
    found: list[str] = []
    left = Cut("", text, "")
    while left.rest or not found:
        left = first_piece_of(left.rest, limits, reserve, left.fence)
        found.append(left.piece)
    return found


def first_piece_of(text: str, limits: ChatLimits, reserve: int = 0, fence: str = "") -> Cut:
    """The first piece: as much of the text as fits in when rendered. `fence` opens the code that it begins within."""
    room = limits.text_chars_max - reserve
    chars_max = max(CHARS_MIN, room)
    while True:
        cut = _first_piece(text, fence, chars_max)
        length = limits.rendered_length(cut.piece)
        if length <= room or chars_max == CHARS_MIN:
            return cut
        fitting = int(len(cut.piece) * 0.95 * room / length)
        chars_max = max(CHARS_MIN, min(chars_max, len(cut.piece)) - 1 if fitting >= len(cut.piece) else fitting)
