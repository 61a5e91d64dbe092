"""`shoal chat`, over a pipe and in a real terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import PROGRAM, VARIABLES, Shoal

WAIT_SECONDS = 30.0
TOOLBAR = " /help"
"""What stands at the bottom while the prompt takes keys and nothing runs."""
CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


def test_each_line_of_a_pipe_is_answered(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="hello\nwhat time is it?\n")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Hello! I am the demo model")
    assert '→ time {"timezone":"UTC"}' in ran.out or "→ time" in ran.out
    assert ran.out.index("Hello!") < ran.out.index("→ time")


def test_a_line_that_cannot_be_sent_is_told_and_the_next_is_answered(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="\udcff\nhello\n")
    assert ran.code == 0
    assert ran.out.startswith("! This cannot be stored")
    assert "Hello! I am the demo model" in ran.out


def test_a_question_is_answered_by_a_letter(shoal: Shoal) -> None:
    allowed = shoal("chat", stdin="run echo hi\ny\n")
    assert allowed.code == 0
    assert "allowed by owner" in allowed.out
    assert "✓ bash" in allowed.out
    denied = shoal("chat", "--thread", "terminal:local:other", stdin="run echo hi\nn\n")
    assert "denied by owner" in denied.out
    assert "✓ bash" not in denied.out


def test_a_question_that_nobody_answers_is_left_and_told(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="run echo hi\n")
    assert ran.code == 1
    assert re.search(r"shoal: a question waits: `shoal approvals allow \w{26}` or deny\.", ran.err)


def test_commands_are_obeyed_and_failures_shown(shoal: Shoal) -> None:
    ran = shoal("chat", stdin="/help\n/new\n/stop\n/steer\n/steer x\n/allow\n/status\n/nonsense\n/quit\nhello\n")
    assert ran.code == 0
    for words in (
        "/steer TEXT", "Nothing was said here yet.", "Nothing is running.", "Say what: /steer TEXT",
        "Nothing is running that could be steered", "Nothing waits for an answer.", "thread   terminal:local:main",
        "There is no command /nonsense.",
    ):  # fmt: skip
        assert words in ran.out
    assert "Hello!" not in ran.out


def test_a_chat_shows_what_was_said_before(shoal: Shoal) -> None:
    shoal("chat", stdin="hello\n")
    assert "Hello! I am the demo model" in shoal("chat").out


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end
        self._poll = select.poll()
        self._poll.register(self._end, select.POLLIN)
        self._seen = b""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._end, keys.encode())

    def sees(self, words: str) -> None:
        """Wait until the words were printed; only what comes after them counts from then on."""
        wanted, until = words.encode(), time.monotonic() + WAIT_SECONDS
        while wanted not in CODES.sub(b"", self._seen):
            ready = self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            assert ready, f"{words!r} did not come: {CODES.sub(b'', self._seen)!r}"
            piece = os.read(self._end, 65_536)
            if b"\x1b[6n" in piece:  # where is the cursor?
                os.write(self._end, b"\x1b[1;1R")
            self._seen += piece
        self._seen = CODES.sub(b"", self._seen).partition(wanted)[2]


@contextmanager
def terminal(home: Path, *arguments: str) -> Generator[Terminal]:
    """`shoal …` in a pseudo-terminal of 40 lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES} | {"TERM": "xterm"}
    command = [PROGRAM, "--home", str(home), *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
def test_a_person_chats_allows_by_key_and_leaves(home: Path) -> None:
    with terminal(home, "chat") as screen:
        screen.sees("Ctrl-D leaves")
        screen.type("hello\r")
        screen.sees("Hello! I am the demo model")
        screen.type("run echo hi there\r")
        screen.sees("[y] once")
        screen.type("y")
        screen.sees("allowed by owner")
        screen.sees("✓ bash")
        screen.type("/status\r")
        screen.sees("terminal:local:main")
        screen.sees(TOOLBAR)
        screen.type("\x04")
        assert screen.process.wait(WAIT_SECONDS) == 0


@pytest.mark.slow
def test_ctrl_c_stops_the_turn_and_not_the_chat(home: Path) -> None:
    with terminal(home, "chat") as screen:
        screen.sees("Ctrl-D leaves")
        screen.type("run echo hi there\r")
        screen.sees("[y] once")
        screen.type("\x03")
        screen.sees("Stopped.")
        screen.type("hello\r")
        screen.sees("Hello! I am the demo model")
        screen.sees(TOOLBAR)
        screen.type("/quit\r")
        assert screen.process.wait(WAIT_SECONDS) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("key", "result"), [("y", "hi there"), ("n", "denied")])
def test_ask_asks_at_the_terminal(home: Path, key: str, result: str) -> None:
    with terminal(home, "ask", "run echo hi there") as screen:
        screen.sees("anything else denies:")
        screen.type(f"{key}\r")
        screen.sees(result)
        assert screen.process.wait(WAIT_SECONDS) == 0
