"""Counts, lists, durations and titles as people read them."""

from collections.abc import Sequence


def counted(number: float, noun: str) -> str:
    """`1 file`, `2 files`, `1.5 seconds`."""
    amount = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{amount} {noun}{'' if number == 1 else 's'}"


def duration_text(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def short_line(text: str, chars_max: int = 80) -> str:
    """The beginning of a text in one line, without marks of code."""
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def listed(numbers: Sequence[int]) -> str:
    """`1`, `1 and 3`, `1, 2 and 3`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
