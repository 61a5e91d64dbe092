"""Shared fixtures for the command-line tests: a home directory, commands to run in it, and a model."""

import io
import logging
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import pytest
from anyio.from_thread import start_blocking_portal
from tests.variables import VARIABLES

from shoal.surfaces.cli import main
from shoal.testing.model import FakeModel, FakeSettings


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Shoal = Callable[..., Ran]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the tests from the developer's keys, tokens, settings and standard input."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The path of a home directory that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def shoal(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Shoal]:
    """Run `shoal --home HOME …` in this process. Restores the logging setup after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*arguments: str, stdin: str | io.StringIO = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        code = main.run(["--home", str(home), *arguments])
        printed = capsys.readouterr()
        is_content = not {"--json", "ask", "chat", "show", "log", "export", "docs"}.isdisjoint(arguments)
        messages = printed.err if is_content else printed.out + printed.err
        assert "`" not in messages, "messages to a person have no backticks: `tell` of output.py prints them"
        return Ran(code, printed.out, printed.err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def model() -> Generator[str]:
    """The address of a scripted model that accepts only the key `right`. It runs in its own thread."""
    fake = FakeModel(settings=FakeSettings(api_key="right", models=("fake-1",)))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake.serve()) as address:
        yield address
