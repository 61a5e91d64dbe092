"""What the tests of the program `shoal` share: those of the commands in a process, and a model that never answers."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import bare_environment, home, model, shoal

__all__ = ["bare_environment", "home", "model", "shoal"]


@pytest.fixture
def slow_model(tmp_path: Path) -> Generator[tuple[str, Path]]:
    """The address of a model that answers after an hour, and the file that it logs requests to."""
    log = tmp_path / "requests.log"
    command = [sys.executable, "-m", "shoal.testing.model", "--latency-ms", "3600000", "--log", log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), log
        process.terminate()
