"""Natural sort order of names: agent-2 comes before agent-10, and case is ignored."""

from itertools import groupby


def natural(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    parts = list[tuple[int, int, str]]()
    for is_number, letters in groupby(name.casefold(), str.isdecimal):
        part = "".join(letters)
        parts.append((0, len(part.lstrip("0")), part.lstrip("0")) if is_number else (1, 0, part))
    return tuple(parts), name
