"""Format tables as monospace text for platforms without tables."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from unicodedata import east_asian_width

CELL_WIDTH_MAX = 40
"""Maximum width to which cells are padded. A longer cell does not widen the other rows."""
CELL_WIDTH_MIN = 8
"""Minimum width of a cell. If cells would be narrower, rows are written as lists instead."""


def cells_in(line: str) -> int:
    inner = line.strip().removeprefix("|")
    ends = inner.endswith("|") and not inner.endswith("\\|")
    return inner.count("|") - inner.count("\\|") + (0 if ends else 1)


def aligned(rows: Sequence[Sequence[str]], width_max: int = 0) -> str:
    """Format rows as monospace text. Wide characters count as two columns.

    If `width_max` is set, cells wrap to fit. If the cells would be too narrow, each row becomes lines of `head: cell`.
    """
    cells = rows
    columns = max((len(row) for row in cells), default=0)
    wanted = [
        max((width_of(line) for row in cells if column < len(row) for line in row[column].split("\n")), default=0)
        for column in range(columns)
    ]
    if width_max:
        widths, room = list(wanted), width_max - 3 * (columns - 1)
        # Only the widest columns shrink.
        for done, column in enumerate(sorted(range(columns), key=wanted.__getitem__)):
            widths[column] = min(wanted[column], max(0, room) // (columns - done))
            room -= widths[column]
        if any(width < min(CELL_WIDTH_MIN, wish) for width, wish in zip(widths, wanted, strict=True)):
            return "\n".join(_records(cells, width_max))
        blocks = [list(zip_longest(*map(_wrapped, row, widths), fillvalue="")) if row else [()] for row in cells]
    else:
        widths = [min(CELL_WIDTH_MAX, width) for width in wanted]
        blocks = [
            list(zip_longest(*(cell.split("\n") for cell in row), fillvalue="")) if row else [()] for row in cells
        ]
    rule = "-+-".join("-" * width for width in widths)
    lines: list[str] = []
    is_set_apart = any(len(block) > 1 for block in blocks)  # If a row has several lines, separate all rows.
    for number, block in enumerate(blocks):
        if number > 1 and is_set_apart:
            lines.append(rule)
        for parts in block:
            padded = (part + " " * (width - width_of(part)) for part, width in zip(parts, widths, strict=False))
            lines.append(" | ".join(padded).rstrip())
        if number == 0:
            lines.append(rule)
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int) -> Iterator[str]:
    if "\n" in text:
        for part in text.split("\n"):
            yield from _wrapped(part, width)
        return
    line = ""
    for word in text.split():
        if line and width_of(line) + 1 + width_of(word) > width:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
        while len(line) > 2 * width or width_of(line) > width:
            fits = min(len(line), width)
            while fits > 1 and width_of(line[:fits]) > width:
                fits -= 1
            yield line[:fits]
            line = line[fits:]
    yield line


def _records(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for number, row in enumerate(rows[1:]):
        if number:
            yield ""
        for name, cell in zip(rows[0], row, strict=False):
            head = name.replace("\n", " ")
            first, *rest = _wrapped(f"{head}: {cell}" if head else cell, max(1, width - 2))
            yield first
            yield from (f"  {line}" for line in rest)


def width_of(text: str) -> int:
    """Return the width of a line in columns. Wide characters count as two."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
