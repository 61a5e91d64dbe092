"""Fixtures: a home directory, and a function that runs `shoal` in it."""

import io
import logging
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from import_runs import Ran, Shoal

from shoal.surfaces.cli.main import run as run_shoal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the path of a home directory that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def shoal(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Shoal]:
    """Return a function that runs `shoal --home HOME …` in this process, without keys and tokens in the environment."""
    for name in os.environ:
        if name.endswith(("_API_KEY", "_TOKEN", "_BASE_URL")) or name in ("DATABASE_URL", "SHOAL_HOME"):
            monkeypatch.delenv(name)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        code = run_shoal(["--home", str(home), *arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
