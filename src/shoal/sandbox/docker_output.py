"""Output of a command in a container. The shell that runs the command appends a report to stderr."""

import re

from shoal.kernel.ports import CommandResult, SeeOutput, Watch

REPORT_BYTES_MAX = 200
"""Maximum length of a report: a NUL byte, the command's mark, the exit status, the number of processes, a newline."""


class ExecOutput:
    """Collects the output of a command within limits, and removes the report.

    The command knows the mark, so it can print false reports. Only the last report counts.
    """

    def __init__(self, bytes_max: int, mark: str, watch: Watch | None = None, see: SeeOutput | None = None) -> None:
        self.code: int | None = None
        self.processes = 0
        self.is_closed = False
        self._bytes_max = bytes_max
        self._watch = watch
        self._see = see
        self._begin = b"\0" + mark.encode() + b" "
        self._report = re.compile(re.escape(self._begin) + rb"(\d{1,3}) (\d{1,9})\n") if mark else None
        self._kept = {1: bytearray(), 2: bytearray()}
        self._sizes = {1: 0, 2: 0}
        self._pending = b""
        self._found = b""

    def take(self, stream: int, piece: bytes) -> None:
        """Add a piece of output. `stream` is 1 (stdout) or 2 (stderr)."""
        if stream not in self._kept:
            return
        captured = self._kept[stream]
        self._sizes[stream] += len(piece)
        captured += piece[: max(0, self._bytes_max + REPORT_BYTES_MAX - len(captured))]
        self._show(stream, self._without_report(piece) if stream == 2 else piece)

    def _without_report(self, piece: bytes) -> bytes:
        """Return the text to show now. The beginning of a possible report stays pending."""
        if self._report is None:
            return piece
        text, self._pending = self._pending + piece, b""
        for match in self._report.finditer(text):
            self.code, self.processes, self._found = int(match[1]), int(match[2]), match[0]
        text = self._report.sub(b"", text)
        at = text.rfind(b"\0")
        if at >= 0 and self._may_become_report(text[at:]):
            text, self._pending = text[:at], text[at:]
        return text

    def _may_become_report(self, text: bytes) -> bool:
        is_open = text.startswith(self._begin) and b"\n" not in text and len(text) < REPORT_BYTES_MAX
        return is_open or self._begin.startswith(text)

    def _show(self, stream: int, text: bytes) -> None:
        if text and self._watch is not None:
            self._watch.output(text)
        elif text and self._see is not None:
            self._see(stream, text)

    def result(self, code: int | None, *, timed_out: bool = False) -> CommandResult:
        self._show(2, self._pending)
        self._pending = b""
        errors = bytes(self._kept[2])
        if self._found:
            before, _, after = errors.rpartition(self._found)
            errors = before + after
        return CommandResult(
            stdout=bytes(self._kept[1][: self._bytes_max]),
            stderr=errors[: self._bytes_max],
            exit_code=code,
            timed_out=timed_out,
            stdout_cut=self._sizes[1] > self._bytes_max,
            stderr_cut=self._sizes[2] - len(self._found) > self._bytes_max,
        )
