"""Hooks: looks for lines that fire them, and writes the prompts that they send."""

from collections.abc import Iterator, Sequence

import msgspec

from shoal.features.processes.records import PROCESS_KEY, Hook, Process
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput
from shoal.kernel.messages import Prompt
from shoal.kernel.untrusted import untrusted_block
from shoal.permissions.patterns import Automaton, PatternRefused

LINE_BYTES_MAX = 4096
"""Of a longer line, only the beginning is looked at."""


class LineMatcher:
    """Cuts output into lines and tells which patterns, by number, are found somewhere in each."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises InvalidInput naming a pattern that cannot be used."""
        self._automaton = Automaton()
        for pattern in patterns:
            try:
                self._automaton.add(pattern, dotall=False)
                self._automaton.add(f"(?s:.*)(?:{pattern})(?s:.*)", dotall=False)
            except PatternRefused as refused:
                raise InvalidInput(f"The pattern {pattern[:80]!r} cannot be used: {refused}.") from refused
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
        numbers = tuple(sorted({number // 2 for number in self._automaton.match(text)}))
        if numbers:
            yield numbers, text


COMMAND_CHARS_MAX = 500


def hook_prompt(process: Process, hook: Hook, what: str, said: str, output: str, clock: Clock) -> Prompt:
    """The message that a hook sends. `what` makes its key, so that the same firing is one message however often it is
    sent; `said` is what happened; `output` is marked as not to be trusted."""
    spec, key = process.spec, f"{PROCESS_KEY}{process.id}:{what}"
    lines = [f"[The process {spec.title!r} ({process.id}) {said}.]", f"Its command: {spec.command[:COMMAND_CHARS_MAX]}"]
    if hook.note:
        lines.append(f"You noted for this: {hook.note}")
    if output:
        lines.append(untrusted_block(f"output of process {process.id}", output))
    text, called = "\n".join(lines), process.id if spec.tainted_by else spec.title  # a model chose the title
    return Prompt(
        spec.chat,
        key,
        untrusted_block(spec.tainted_by, text) if spec.tainted_by and spec.author.trusted else text,
        msgspec.structs.replace(spec.author, name=f"process {called} of {spec.author.name or spec.author.id}"),
        clock.now(),
        agent=spec.agent,
        origin="trigger",
        message_id=key,
        tainted_by=spec.tainted_by,
    )


def fits(hook: Hook, process: Process) -> bool:
    """Whether a hook is about this end. A lost process ends no other way, so every hook for ends is told."""
    if hook.on != "exit":
        return False
    return process.state == "lost" or not hook.codes or process.exit_code in hook.codes
