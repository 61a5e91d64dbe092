"""Match output lines against hooks, and build the prompts that hooks send."""

from collections.abc import Iterator, Sequence

import msgspec

from shoal.features.processes.records import PROCESS_KEY, Hook, Process
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput
from shoal.kernel.messages import Prompt
from shoal.kernel.untrusted import untrusted_block
from shoal.permissions.patterns import Automaton, PatternRefused

LINE_BYTES_MAX = 4096
"""Maximum number of bytes per line that are compared with the patterns. The rest of a longer line is ignored."""


class LineMatcher:
    """Splits output into lines and matches each line against patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns. Raises InvalidInput for the first invalid pattern."""
        self._automaton = Automaton()
        for pattern in patterns:
            try:
                self._automaton.add(pattern, dotall=False)
                self._automaton.add(f"(?s:.*)(?:{pattern})(?s:.*)", dotall=False)
            except PatternRefused as refused:
                raise InvalidInput(f"The pattern {pattern[:80]!r} is not valid: {refused}.") from refused
        self._begun = b""

    def take(self, data: bytes) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield the matching lines that `data` completes, each with the numbers of the patterns that match."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            line, self._begun = self._begun + piece, b""
            yield from self._matched(line)
        self._begun = (self._begun + rest)[:LINE_BYTES_MAX]

    def end(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield the last line if it matches, even without a newline at its end."""
        line, self._begun = self._begun, b""
        if line:
            yield from self._matched(line)

    def _matched(self, line: bytes) -> Iterator[tuple[tuple[int, ...], str]]:
        text = line[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")
        numbers = tuple(sorted({number // 2 for number in self._automaton.match(text)}))
        if numbers:
            yield numbers, text


COMMAND_CHARS_MAX = 500


def hook_prompt(process: Process, hook: Hook, what: str, reason: str, output: str, clock: Clock) -> Prompt:
    """Build the prompt that a hook sends.

    `what`: name of the event. It is part of the prompt's key, so a prompt that is sent twice is delivered once.
    `reason`: description of the event.
    `output`: output of the process, which is wrapped as untrusted.
    """
    spec, key = process.spec, f"{PROCESS_KEY}{process.id}:{what}"
    lines = [
        f"[The process {spec.title!r} ({process.id}) {reason}.]",
        f"Its command: {spec.command[:COMMAND_CHARS_MAX]}",
    ]
    if hook.note:
        lines.append(f"Your note for this hook: {hook.note}")
    if output:
        lines.append(untrusted_block(f"output of process {process.id}", output))
    text, called = "\n".join(lines), process.id if spec.tainted_by else spec.title  # a tainted turn chose the title
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
    """Return True if an exit hook applies to the way the process ended.

    A lost process has no exit code, so every exit hook applies.
    """
    if hook.on != "exit":
        return False
    return process.state == "lost" or not hook.codes or process.exit_code in hook.codes
