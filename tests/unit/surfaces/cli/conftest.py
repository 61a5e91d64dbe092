"""What the tests of the command line share: a home directory, ways to run a command in it, a model to talk to."""

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.config import load_config
from shoal.surfaces.cli import main

PROGRAM = str(Path(sys.executable).with_name("shoal"))
VARIABLES = (
    "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY",
    "OPENROUTER_API_KEY", "BRAVE_API_KEY", "TELEGRAM_BOT_TOKEN", "DISCORD_TOKEN", "DATABASE_URL", "SHOAL_HOME",
)  # fmt: skip
"""Settings of whoever runs the tests, which must not reach them."""


class Ran(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Shoal = Callable[..., Ran]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, token or setting of whoever runs the tests, and nothing to read."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a home directory may be made."""
    return tmp_path / "home"


@pytest.fixture
def shoal(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Shoal]:
    """Run `shoal --home HOME …` in this process, with what it reads from standard input.

    A log that it starts ends with the test.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*arguments: str, stdin: str | io.StringIO = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        code = main.run(["--home", str(home), *arguments])
        printed = capsys.readouterr()
        is_content = not {"--json", "ask", "chat", "show", "log", "export"}.isdisjoint(arguments)
        messages = printed.err if is_content else printed.out + printed.err
        assert "`" not in messages, "messages to a person have no backticks: `tell` of output.py prints them"
        return Ran(code, printed.out, printed.err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)


class Server(NamedTuple):
    """A Shoal that runs in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    token: str


@contextmanager
def running(home: Path, *arguments: str) -> Generator[Server]:
    """`shoal run` on a free port until the block ends."""
    command = [PROGRAM, "--home", str(home), "run", "--port", "0", *arguments]
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], process.communicate()
            assert process.stdout.readline().startswith("token ")
            token = load_config(home, {}).web.token.reveal() or (home / "token").read_text().strip()
            yield Server(process, ready[1].rstrip("/"), token)
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture
def model() -> Generator[str]:
    """The address of a scripted model that takes the key `right` only."""
    command = [sys.executable, "-m", "shoal.testing.model", "--key", "right", "--model", "fake-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture
def slow_model(tmp_path: Path) -> Generator[tuple[str, Path]]:
    """The address of a model that answers after an hour, and the file that it logs requests to."""
    log = tmp_path / "requests.log"
    command = [sys.executable, "-m", "shoal.testing.model", "--latency-ms", "3600000", "--log", log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), log
        process.terminate()
