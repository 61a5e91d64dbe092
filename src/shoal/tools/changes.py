"""Replaces text in a file's content and shows the change as a unified diff, or explains why it cannot be made."""

import difflib
from bisect import bisect_right
from typing import NamedTuple

from shoal.domain.errors import ToolError

CONTEXT_LINES = 3
LINES_NAMED_MAX = 8
"""How many places an error names."""
LINES_COMPARED_MAX = 2000
"""How many lines are compared when looking for the one that was meant."""
_LINE_CHARS_COMPARED = 200
_SIMILAR = 0.6


class Change(NamedTuple):
    """The new content, how many places changed, and the diff; `body` is the diff without line numbers."""

    content: str
    times: int
    diff: str
    body: str


class _Span(NamedTuple):
    """A run of whole lines that changes: its first line (from 0), the old lines and the new ones."""

    first: int
    old: list[str]
    new: list[str]


def replace_text(content: str, old: str, new: str, *, replace_all: bool, shown: str) -> Change:
    """Replace `old` by `new`. In a file with CRLF line ends both are taken to have them.

    Raises ToolError when `old` is empty, the same as `new`, not there, or there more than once without `replace_all`.
    """
    if not old:
        raise ToolError("old_string is empty. To make a file or replace all of it, use the tool that writes files.")
    if content.count("\r\n") * 2 > content.count("\n"):
        old, new = _with_crlf(old), _with_crlf(new)
    if old == new:
        raise ToolError("old_string and new_string are the same, so there is nothing to change.")
    places = _places(content, old)
    if not places:
        raise ToolError(f"old_string is not in {shown}.{_nearest(content, old)}")
    if len(places) > 1 and not replace_all:
        lines = [content.count("\n", 0, place) + 1 for place in places[:LINES_NAMED_MAX]]
        more = ", …" if len(places) > LINES_NAMED_MAX else ""
        raise ToolError(
            f"old_string occurs {len(places)} times in {shown} (lines {', '.join(map(str, lines))}{more}). "
            "Add lines around it to make it unique, or set replace_all to change all of them."
        )
    hunks = [_rendered(hunk) for hunk in _hunks(content, old, new, places)]
    head = f"--- {shown}\n+++ {shown}\n"
    diff = head + "".join(f"{header}\n{body}" for header, body in hunks)
    return Change(content.replace(old, new), len(places), diff, "".join(body for _, body in hunks))


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(content: str, old: str) -> list[int]:
    places: list[int] = []
    at = content.find(old)
    while at >= 0:
        places.append(at)
        at = content.find(old, at + len(old))
    return places


def _hunks(content: str, old: str, new: str, places: list[int]) -> list[tuple[list[str], _Span, list[str], int]]:
    """For each run of changed lines: the context before it, the run, the context after it, and how far lines shift."""
    lines = _split(content)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    hunks: list[tuple[list[str], _Span, list[str], int]] = []
    shift = 0
    for first, last in _runs(starts, places, len(old)):
        before = lines[first : last + 1]
        span = _trimmed(_Span(first, before, _split("".join(before).replace(old, new))))
        end = span.first + len(span.old)
        context = lines[max(0, span.first - CONTEXT_LINES) : span.first], lines[end : end + CONTEXT_LINES]
        hunks.append((context[0], span, context[1], shift))
        shift += len(span.new) - len(span.old)
    return hunks


def _runs(starts: list[int], places: list[int], length: int) -> list[tuple[int, int]]:
    """First and last line of each group of places whose contexts do not touch."""
    runs: list[tuple[int, int]] = []
    final = len(starts) - 2
    for place in places:
        first = bisect_right(starts, place) - 1
        last = min(bisect_right(starts, place + length) - 1, final)
        if runs and first - runs[-1][1] <= 2 * CONTEXT_LINES:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return runs


def _trimmed(span: _Span) -> _Span:
    """Without the lines at both ends that stay the same."""
    old, new, first = span.old, span.new, span.first
    while old and new and old[0] == new[0]:
        old, new, first = old[1:], new[1:], first + 1
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return _Span(first, old, new)


def _split(text: str) -> list[str]:
    """Lines with their `\\n`; other line separators are part of a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _rendered(hunk: tuple[list[str], _Span, list[str], int]) -> tuple[str, str]:
    before, span, after, shift = hunk
    start = span.first - len(before)
    around = len(before) + len(after)
    header = f"@@ -{start + 1},{around + len(span.old)} +{start + shift + 1},{around + len(span.new)} @@"
    marked = [(" ", line) for line in before]
    marked += [("-", line) for line in span.old] + [("+", line) for line in span.new] + [(" ", line) for line in after]
    return header, "".join(mark + _ended(line) for mark, line in marked)


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _nearest(content: str, old: str) -> str:
    """A hint at the line that was probably meant; empty when none is like it."""
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")[:_LINE_CHARS_COMPARED]
    lines = [line.strip()[:_LINE_CHARS_COMPARED] for line in content.split("\n", LINES_COMPARED_MAX)]
    if not wanted:
        return " It consists of white space only."
    if wanted in lines:
        at = lines.index(wanted)
        return f" Its first line is line {at + 1}, so look at white space and at the lines after it."
    close = difflib.get_close_matches(wanted, lines[:LINES_COMPARED_MAX], n=1, cutoff=_SIMILAR)
    if not close:
        return " Read the file again and copy the text exactly."
    return f" The nearest line is {lines.index(close[0]) + 1}: {close[0]}"
