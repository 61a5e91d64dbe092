"""Format counts, lists, durations and titles for people."""

from collections.abc import Sequence


def counted(number: float, noun: str) -> str:
    """Format a count: `1 file`, `2 files`, `1.5 seconds`."""
    amount = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{amount} {noun}{'' if number == 1 else 's'}"


def duration_text(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def short_line(text: str, chars_max: int = 80) -> str:
    """Shorten a text to one line of at most `chars_max` characters. Backticks become apostrophes."""
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def listed(numbers: Sequence[int]) -> str:
    """Join numbers as `1`, `1 and 3` or `1, 2 and 3`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
