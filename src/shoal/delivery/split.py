"""Splits long answers into pieces that a platform takes, without losing a character."""

import re

_FENCE = re.compile(r"^(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_BOUNDARIES = ("\n\n", "\n", ". ", "! ", "? ", "。", " ")


def split_markdown(text: str, chars_max: int) -> list[str]:
    """Cut `text` into pieces of at most `chars_max` characters, at paragraph, line, sentence or word.

    A code fence that is cut is closed at the end of its piece and opened again, with its language, in the next: so
    apart from those added fence lines, the pieces joined are the text. At least one piece, even for no text.
    `chars_max` has to be 64 or more.
    """
    if chars_max < 64:
        raise ValueError("chars_max has to be 64 or more")
    pieces: list[str] = []
    fence = ""
    rest = text
    while True:
        head = f"{fence}\n" if fence else ""
        if len(head) + len(rest) <= chars_max:
            pieces.append(head + rest)
            return pieces
        room = chars_max - len(head)
        body = rest[: _cut(rest, room)]
        fence_after = _open_fence(body, fence)
        if fence_after:
            close = _closing(fence_after)
            body = rest[: _cut(rest, room - len(close))]
            fence_after = _open_fence(body, fence)
        piece = head + body
        if fence_after:
            piece += _closing(fence_after)
        pieces.append(piece)
        rest = rest[len(body) :]
        fence = fence_after


def _closing(fence: str) -> str:
    marker = fence[: len(fence) - len(fence.lstrip("`~"))]
    return f"\n{marker}"


def _cut(text: str, room: int) -> int:
    """Where to cut so that the first piece has at most `room` characters: the best boundary in its second half."""
    if len(text) <= room:
        return len(text)
    for boundary in _BOUNDARIES:
        at = text.rfind(boundary, room // 2, room - len(boundary) + 1)
        if at >= 0:
            return at + len(boundary)
    return room


def _open_fence(body: str, fence: str) -> str:
    """The opening line of the fence that is open after `body`, empty when none is."""
    for found in _FENCE.finditer(body):
        marker, info = found.group(1), found.group(2).strip()
        if not fence:
            fence = marker + info
        elif not info and marker[0] == fence[0] and len(marker) >= len(fence) - len(fence.lstrip("`~")):
            fence = ""
    return fence
