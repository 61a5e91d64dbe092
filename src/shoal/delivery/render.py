"""Cuts an answer into posts that a platform takes, measured as the platform will see them: in its own markup."""

from shoal.delivery.split import split_markdown
from shoal.domain.markup import measure, render_markup
from shoal.domain.posts import ChatLimits

_SHORTEST = 64
"""The splitter cuts no shorter."""


def pieces_of(text: str, limits: ChatLimits, reserve: int = 0) -> list[str]:
    """`text` as pieces of markdown, each at most `limits.text_chars_max` less `reserve` when rendered.

    At least one piece, even for no text; no character is lost, and fences are closed and opened again. The same text
    and limits give the same pieces, which a resend relies on.
    """
    room = limits.text_chars_max - reserve
    if limits.markup == "markdown" and limits.text_unit == "characters":
        return split_markdown(text, room)
    found: list[str] = []
    waiting = split_markdown(text, max(_SHORTEST, room))[::-1]
    while waiting:
        piece = waiting.pop()
        length = measure(render_markup(piece, limits.markup), limits)
        if length <= room or len(piece) <= _SHORTEST:
            found.append(piece)
            continue
        shorter = max(_SHORTEST, min(len(piece) - 1, int(len(piece) * 0.95 * room / length)))
        waiting.extend(split_markdown(piece, shorter)[::-1])
    return found
