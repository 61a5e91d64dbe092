"""Cuts an answer into posts that a platform takes, measured as the platform will see them: in its own markup."""

from shoal.delivery.split import CHARS_MIN, Cut, first_piece
from shoal.domain.markup import measure, render_markup
from shoal.domain.posts import ChatLimits


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
        cut = first_piece(text, fence, chars_max)
        length = measure(render_markup(cut.piece, limits.markup), limits)
        if length <= room or chars_max == CHARS_MIN:
            return cut
        fitting = int(len(cut.piece) * 0.95 * room / length)
        chars_max = max(CHARS_MIN, min(chars_max, len(cut.piece)) - 1 if fitting >= len(cut.piece) else fitting)
