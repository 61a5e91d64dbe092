"""Tables as monospace text, for platforms that have none."""

from collections.abc import Sequence
from unicodedata import east_asian_width

CELL_WIDTH_MAX = 40
"""Cells are padded to at most this width, so that one long cell does not swell every row."""


def cells_in(line: str) -> int:
    """How many cells a table's line has, as it is written."""
    inner = line.strip().removeprefix("|")
    ends = inner.endswith("|") and not inner.endswith("\\|")
    return inner.count("|") - inner.count("\\|") + (0 if ends else 1)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as monospace text, a line a row, wide characters counted as two."""
    cells = [[cell.replace("\n", " ") for cell in row] for row in rows]
    columns = max((len(row) for row in cells), default=0)
    widths = [
        min(CELL_WIDTH_MAX, max((_width(row[column]) for row in cells if column < len(row)), default=0))
        for column in range(columns)
    ]
    lines = [
        " | ".join(cell + " " * (widths[column] - _width(cell)) for column, cell in enumerate(row)).rstrip()
        for row in cells
    ]
    if lines:
        lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
