"""Finds lines that match the patterns of hooks, in one step a character whatever the patterns are."""

from collections.abc import Iterator, Sequence

from shoal.domain.errors import InvalidInput
from shoal.permissions.automaton import Automaton
from shoal.permissions.pattern import PatternRefused, Program

LINE_BYTES_MAX = 4096
"""Of a longer line, only the beginning is looked at."""


class LineMatcher:
    """Cuts output into lines and tells which patterns, by number, are found somewhere in each."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises InvalidInput naming a pattern that cannot be used."""
        program = Program()
        for pattern in patterns:
            try:
                program.add(pattern, dotall=False)
                program.add(f"(?s:.*)(?:{pattern})(?s:.*)", dotall=False)
            except PatternRefused as refused:
                raise InvalidInput(f"The pattern {pattern[:80]!r} cannot be used: {refused}.") from refused
        self._automaton = Automaton(program)
        self._begun = b""

    def take(self, data: bytes) -> Iterator[tuple[tuple[int, ...], str]]:
        """The lines that are complete now and match: the patterns' numbers, and the line."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            line, self._begun = self._begun + piece, b""
            yield from self._matched(line)
        self._begun = (self._begun + rest)[:LINE_BYTES_MAX]

    def end(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """The last line, should it not be complete."""
        line, self._begun = self._begun, b""
        if line:
            yield from self._matched(line)

    def _matched(self, line: bytes) -> Iterator[tuple[tuple[int, ...], str]]:
        text = line[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")
        found = tuple(sorted({number // 2 for number in self._automaton.match(text)}))
        if found:
            yield found, text
