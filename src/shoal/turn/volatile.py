"""The block that ends a turn's user message: what is true now and would break a stable prefix anywhere else."""

from collections.abc import Sequence
from datetime import UTC, datetime

LINES_MAX = 12
"""Most lines of one list; that there are more is said, and not how many: nobody has to count them all for it."""
LINE_CHARS_MAX = 240

_HEAD = "<context>\n(From Shoal, not from the person: how things stand now.)"
_TAIL = "</context>"


def volatile(
    now: datetime,
    *,
    others: Sequence[str] = (),
    processes: Sequence[str] = (),
    spend_left: str = "",
    memory_changes: str = "",
) -> str:
    """The trailing block. `others` and `processes` are one status line each, `spend_left` a short phrase.

    Names and texts in them come from outside: each is cut to a line of LINE_CHARS_MAX and cannot end the block.
    """
    parts = [_HEAD, f"Time: {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC, {now.astimezone(UTC):%A}"]
    if others:
        parts.append(_listed("You are also at work in", others))
    if processes:
        parts.append(_listed("Processes you started", processes))
    if spend_left:
        parts.append(f"Left to spend: {_line(spend_left)}")
    if memory_changes:
        parts.append(f"Changed since your instructions above were written:\n{_contained(memory_changes)}")
    parts.append(_TAIL)
    return "\n".join(parts)


def _listed(title: str, lines: Sequence[str]) -> str:
    shown = [f"- {_line(line)}" for line in lines[:LINES_MAX]]
    if len(lines) > LINES_MAX:
        shown.append("- and more")
    return "\n".join([f"{title}:", *shown])


def _line(text: str) -> str:
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    words = " ".join(text.split())
    return _contained(words if len(words) <= LINE_CHARS_MAX else f"{words[: LINE_CHARS_MAX - 1]}…")


def _contained(text: str) -> str:
    return text.replace("<context", "‹context").replace("</context", "‹/context")
