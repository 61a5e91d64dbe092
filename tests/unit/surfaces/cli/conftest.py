"""What the tests of the command line share: a home directory and a way to run a command in it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.surfaces.cli import main


class Ran(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Shoal = Callable[..., Ran]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, token or setting of whoever runs the tests."""
    for name in (
        "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY",
        "OPENROUTER_API_KEY", "BRAVE_API_KEY", "TELEGRAM_BOT_TOKEN", "DISCORD_TOKEN", "DATABASE_URL", "SHOAL_HOME",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a home directory may be made."""
    return tmp_path / "home"


@pytest.fixture
def shoal(home: Path, capsys: pytest.CaptureFixture[str]) -> Shoal:
    """Run `shoal --home HOME …` in this process."""

    def run(*arguments: str) -> Ran:
        code = main.run(["--home", str(home), *arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run
