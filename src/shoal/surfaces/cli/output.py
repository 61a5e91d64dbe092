"""How commands print: tables for people, JSON for programs, times and durations in words."""

import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click

CELL_CHARS_MAX = 60

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    """Print a record, or a list of them, as indented JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print rows under a head, in columns; `empty` when there are none. On a terminal the last column is cut to fit."""
    if not rows:
        print(empty)
        return
    cells = [[_cell(text, last=number == len(row) - 1) for number, text in enumerate(row)] for row in rows]
    widths = [max(len(line[column]) for line in [list(head), *cells]) for column in range(len(head))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in [[name.upper() for name in head], *cells]:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text[: room - 1] + "…" if room and len(text) > room else text)


def _cell(text: str, *, last: bool) -> str:
    flat = " ".join(text.split())
    return flat if last or len(flat) <= CELL_CHARS_MAX else flat[: CELL_CHARS_MAX - 1] + "…"


def printable(text: str) -> str:
    """The text without characters that could move a terminal's cursor, change its colours or turn text around."""
    return "".join(char if char in "\n\t" or (char.isprintable() and char not in _TURNING) else "�" for char in text)


_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")


def when(at: datetime | None) -> str:
    """A time to the second, UTC; empty for none."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


def usd(amount: float | None) -> str:
    """US dollars; `unknown` when there is no price."""
    return "unknown" if amount is None else f"{amount:.4f}"
