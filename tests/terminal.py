"""A person at a terminal: starts a program on a pseudo-terminal, reads its screen and types lines."""

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
    """Return Shoal's own lines in a console block of a page, without those that are typed, omitted, or from other
    programs.
    """
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line for line in blocks[block].splitlines() if line and line[0] not in "$…"]


class Terminal:
    """A running program. `screen` is everything that it has shown, and `typed` everything typed into it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self._side, other = pty.openpty()
        termios.tcsetwinsize(other, (50, COLUMNS))
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command],  # so that Ctrl-C arrives as a signal
            stdin=other, stdout=other, stderr=other, cwd=folder,
            env={**environ, "COLUMNS": str(COLUMNS)},
        )  # fmt: skip
        os.close(other)
        self.screen = ""
        self.typed: list[str] = []
        self._seen = 0
        self._is_interrupted = False

    def sees(self, part: str, seconds: float = SECONDS_MAX) -> str:
        """Wait until a text appears after the last one seen, and return the output up to it."""
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
        """Type a line and press Enter."""
        self.typed.append(line)
        os.write(self._side, f"{line}\n".encode())

    def presses(self, key: bytes) -> None:
        """Press one key, such as Ctrl-C."""
        self._is_interrupted = key == b"\x03"
        os.write(self._side, key)

    def ends(self) -> int:
        """Wait for the end and return the exit code.

        Ctrl-C is pressed again every two seconds, because `input` misses one that arrives just before it starts to
        read.
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
        """Kill the program if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def lacks(self, transcript: Sequence[str], home: Path, program: str) -> list[str]:
        """Return the lines of a page's transcript that are not on the screen, without the default answers after `: `.

        The page shows Ada's home and the program of a checkout. On terminals without colors, commands are quoted.
        """
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.screen).replace(program, ".venv/bin/shoal")
        shown = _plain(shown.replace(str(home), "/home/ada/.shoal"))
        heads = [_plain(line.rpartition(": ")[0] or line).removeprefix("Ada") for line in transcript]
        return [head for head in heads if head not in shown]

    def _read(self, seconds: float) -> bool:
        """Read the available output. Returns False at the end."""
        if not select.select([self._side], [], [], seconds)[0]:
            return True
        try:
            output = os.read(self._side, 65_536)
        except OSError:  # Linux's way to say that the other side is closed
            return False
        self.screen += re.sub(r"\r+\n", "\n", output.decode(errors="replace"))
        return bool(output)


def _plain(text: str) -> str:
    """Return a text without times and without quotes around commands."""
    return _TIME.sub("TIME", re.sub(r"'(\.venv/bin/shoal[^'\n]*)'", r"\1", text))
