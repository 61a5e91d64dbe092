"""Build the block at the end of a turn's user message.

It contains facts that change often, such as the time. Providers can cache everything before it.
"""

from collections.abc import Sequence
from datetime import datetime

from shoal.kernel.transcript import CONTEXT_CHANGES, CONTEXT_HEAD, CONTEXT_TAIL
from shoal.kernel.zones import local_time

CONTEXT_LINES_MAX = 12
"""Maximum number of lines per list. A longer list ends with "and more", without a count."""
ACTIVITY_MAX = CONTEXT_LINES_MAX + 2
"""Maximum number of threads or processes that are looked up for an agent: the shown lines, the agent's own thread, and
one more to detect a longer list.
"""
LINE_CHARS_MAX = 240


def volatile(
    now: datetime,
    *,
    others: Sequence[str] = (),
    activities: Sequence[tuple[str, Sequence[str]]] = (),
    spend_left: str = "",
    changes: str = "",
) -> str:
    """Return the block, with the time in the zone of `now`.

    `others` and the lists in `activities` contain one status line per item. `spend_left` is a short phrase. All of
    these may contain untrusted text, so each line is cut to LINE_CHARS_MAX characters and cannot close the block.
    """
    parts = [CONTEXT_HEAD, f"Time: {local_time(now)}, {now:%A}"]
    if others:
        parts.append(_bullets("You are also working in", others))
    parts += [_bullets(title, lines) for title, lines in activities if lines]
    if spend_left:
        parts.append(f"Remaining budget: {_one_line(spend_left)}")
    if changes:
        parts.append(f"{CONTEXT_CHANGES}{_contained(changes)}")
    parts.append(CONTEXT_TAIL)
    return "\n".join(parts)


def _bullets(title: str, lines: Sequence[str]) -> str:
    shown = [f"- {_one_line(line)}" for line in lines[:CONTEXT_LINES_MAX]]
    if len(lines) > CONTEXT_LINES_MAX:
        shown.append("- and more")
    return "\n".join([f"{title}:", *shown])


def _one_line(text: str) -> str:
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    words = " ".join(text.split())
    return _contained(words if len(words) <= LINE_CHARS_MAX else f"{words[: LINE_CHARS_MAX - 1]}…")


def _contained(text: str) -> str:
    return text.replace("<context", "‹context").replace("</context", "‹/context")
