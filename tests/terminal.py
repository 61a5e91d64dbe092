"""Acts as a person at a terminal: starts a program in a pseudo-terminal, reads its screen and types lines."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS_MAX = 60.0
COLUMNS = 400
"""Wide enough that no line of Shoal's wraps."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?")


def transcript(page: Path, block: int) -> list[str]:
    """Return Shoal's output in a page's console block, without typed commands (`$`) and omissions (`…`)."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line for line in blocks[block].splitlines() if line and line[0] not in "$…"]


class Terminal:
    """A program that runs in a pseudo-terminal. `screen` is its output so far, and `typed` lists the lines typed."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self._side, other = pty.openpty()
        termios.tcsetwinsize(other, (50, COLUMNS))
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command],  # makes Ctrl-C arrive as a signal
            stdin=other, stdout=other, stderr=other, cwd=folder,
            env={**environ, "COLUMNS": str(COLUMNS)},
        )  # fmt: skip
        os.close(other)
        self.screen = ""
        self.typed: list[str] = []
        self._seen = 0
        self._is_interrupted = False

    def sees(self, part: str, seconds: float = SECONDS_MAX) -> str:
        """Wait for a text after the last text seen, and return the output up to its end."""
        ends = time.monotonic() + seconds
        while True:
            at = self.screen.find(part, self._seen)
            if at >= 0:
                before, self._seen = self._seen, at + len(part)
                return self.screen[before : self._seen]
            left = ends - time.monotonic()
            assert left > 0, f"{part!r} is not shown:\n{self.screen[self._seen :]}"
            assert self._read(left), f"{part!r} was not shown before the end:\n{self.screen}"

    def types(self, line: str = "") -> None:
        self.typed.append(line)
        os.write(self._side, f"{line}\n".encode())

    def presses(self, key: bytes) -> None:
        self._is_interrupted = key == b"\x03"
        os.write(self._side, key)

    def ends(self) -> int:
        """Wait until the program exits, and return the exit code.

        After Ctrl-C, this method sends Ctrl-C again every two seconds without output, because `input` ignores a
        signal that arrives just before it starts to read.
        """
        ends = time.monotonic() + SECONDS_MAX
        shown = -1
        while self._read(2):
            assert time.monotonic() < ends, f"The program does not end:\n{self.screen}"
            if self._is_interrupted and shown == len(self.screen):  # no output for two seconds
                os.write(self._side, b"\x03")
            shown = len(self.screen)
        os.close(self._side)
        return self._process.wait(SECONDS_MAX)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def lacks(self, transcript: Sequence[str], home: Path, program: str) -> list[str]:
        """Return the lines of a page's transcript that are not on the screen. Ignores default values after `: `.

        The page shows Ada's home and the program path of a checkout. Without colors, Shoal quotes commands.
        """
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.screen).replace(program, ".venv/bin/shoal")
        shown = _plain(shown.replace(str(home), "/home/ada/.shoal"))
        heads = [_plain(line.rpartition(": ")[0] or line).removeprefix("Ada") for line in transcript]
        return [head for head in heads if head not in shown]

    def _read(self, seconds: float) -> bool:
        if not select.select([self._side], [], [], seconds)[0]:
            return True
        try:
            output = os.read(self._side, 65_536)
        except OSError:  # on Linux, the other end was closed
            return False
        self.screen += re.sub(r"\r+\n", "\n", output.decode(errors="replace"))
        return bool(output)


def _plain(text: str) -> str:
    return _TIME.sub("TIME", re.sub(r"'(\.venv/bin/shoal[^'\n]*)'", r"\1", text))
