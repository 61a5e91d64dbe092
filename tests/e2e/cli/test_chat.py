"""`shoal chat` and `shoal ask` in a real terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.processes import PROGRAM
from tests.unit.surfaces.cli.conftest import Shoal
from tests.variables import VARIABLES

WAIT_SECONDS = 60.0


TOOLBAR = " /help"
"""Bottom line of the screen while the prompt accepts keys and nothing runs. Keys typed before that can be lost."""


CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """A program that runs in a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end
        self._poll = select.poll()
        self._poll.register(self._end, select.POLLIN)
        self._seen = b""
        self.raw = b""

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def reads_to_the_end(self) -> None:
        with suppress(OSError):  # the program closed the pseudo-terminal
            while piece := os.read(self._end, 65_536):
                self.raw += piece

    def sees(self, words: str) -> None:
        """Wait for this text, and discard the output up to its end."""
        wanted, until = words.encode(), time.monotonic() + WAIT_SECONDS
        while wanted not in CODES.sub(b"", self._seen):
            ready = self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            assert ready, f"{words!r} did not appear: {CODES.sub(b'', self._seen)!r}"
            piece = os.read(self._end, 65_536)
            if b"\x1b[6n" in piece:  # the program asks for the cursor position
                os.write(self._end, b"\x1b[1;1R")
            self._seen += piece
            self.raw += piece
        self._seen = CODES.sub(b"", self._seen).partition(wanted)[2]


@contextmanager
def terminal(home: Path, *arguments: str, **variables: str) -> Generator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ |= {"TERM": "xterm", **variables}
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
def test_a_person_can_chat_and_allow_a_call_and_exit(home: Path) -> None:
    with terminal(home, "chat") as screen:
        screen.sees("Ctrl-D exits")
        screen.sees(TOOLBAR)
        screen.type("hello\r")
        screen.sees("Hello! I am the demo model")
        screen.type("run touch .git\r")
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
def test_command_output_is_shown_while_it_runs(home: Path) -> None:
    workspace = home / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    os.mkfifo(workspace / "go")
    with terminal(home, "chat") as screen:
        screen.sees("Ctrl-D exits")
        screen.sees(TOOLBAR)
        screen.type("run echo step one; read -r line <go; echo $line\r")
        screen.sees("step one")
        (workspace / "go").write_text("step two\n")
        screen.sees("✓ bash echo step one")
        screen.type("run echo QQ; read -r line <go\r")
        screen.sees("  QQ")
        screen.type("\x03")
        screen.sees("stopped")
        screen.sees(TOOLBAR)


@pytest.mark.slow
@pytest.mark.parametrize("no_colour", [True, False])
def test_a_chat_resumes_with_its_past_input_history_and_colors(shoal: Shoal, home: Path, no_colour: bool) -> None:
    shoal("chat", stdin="hello\n")
    for keys in ("a first line\r", "\x1b[A\r"):
        with terminal(home, "chat", **({"NO_COLOR": "1"} if no_colour else {})) as screen:
            screen.sees("Hello! I am the demo model")
            screen.sees("Ctrl-D exits")
            screen.sees(TOOLBAR)
            screen.type(keys)
            screen.sees("> a first line")
            screen.sees(TOOLBAR)
            screen.type("\x04")
            assert screen.process.wait(WAIT_SECONDS) == 0
        assert bool(re.search(rb"\x1b\[(?:[0-9;]*;)?[39]\d(?:;[0-9;]*)?m", screen.raw)) is not no_colour
    assert (home / "chat_history").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_dumb_terminal_gets_no_escape_codes(home: Path) -> None:
    with terminal(home, "chat", TERM="dumb") as screen:
        screen.sees("Chatting with main. '/help' lists the commands. Ctrl-D exits.")
        screen.type("hello\n")
        screen.sees("Hello! I am the demo model")
        screen.type("\x04")
        assert screen.process.wait(WAIT_SECONDS) == 0
    assert b"\x1b" not in screen.raw


@pytest.mark.slow
def test_tab_completes_the_input(shoal: Shoal, home: Path) -> None:
    workspace = home / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "harbour.md").touch()
    with terminal(home, "chat") as screen:
        screen.sees("Ctrl-D exits")
        screen.sees(TOOLBAR)
        screen.type("tell me about har\t")
        screen.sees("bour.md")
        screen.type("\r")
        screen.sees("fixed answers")
        screen.sees(TOOLBAR)
        screen.type("\x04")
        assert screen.process.wait(WAIT_SECONDS) == 0
    (said,) = [
        line for line in shoal("threads", "log", "terminal:local:main").out.splitlines() if "user_message" in line
    ]
    assert "tell me about harbour.md" in said


@pytest.mark.slow
def test_ctrl_c_stops_the_turn_but_not_the_chat(home: Path) -> None:
    with terminal(home, "chat") as screen:
        screen.sees("Ctrl-D exits")
        screen.sees(TOOLBAR)
        screen.type("run touch .git\r")
        screen.sees("[y] once")
        screen.type("\x03")
        screen.sees("Stopped.")
        screen.type("hello\r")
        screen.sees("Hello! I am the demo model")
        screen.sees(TOOLBAR)
        screen.type("/quit\r")
        assert screen.process.wait(WAIT_SECONDS) == 0


@pytest.mark.slow
def test_ask_shows_and_clears_its_status(home: Path, slow_model: tuple[str, Path]) -> None:
    home.mkdir()
    (home / "shoal.toml").write_text(
        f"[model]\nname = 'openai/fake-1'\n[providers.openai]\nbase_url = '{slow_model[0]}/v1'\n"
    )
    with terminal(home, "ask", "hello") as screen:
        screen.sees("waiting for the model, 1 s")
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(WAIT_SECONDS) == 130
        screen.reads_to_the_end()
    assert screen.raw.rstrip().endswith(b"\x1b[2K")


@pytest.mark.slow
@pytest.mark.parametrize(("key", "result"), [("y", "printed:"), ("n", "denied")])
def test_ask_requests_approval_in_the_terminal(home: Path, key: str, result: str) -> None:
    with terminal(home, "ask", "run touch .git") as screen:
        screen.sees("anything else denies:")
        screen.type(f"{key}\r")
        screen.sees(result)
        assert screen.process.wait(WAIT_SECONDS) == 0
