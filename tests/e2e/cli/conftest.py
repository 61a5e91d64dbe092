"""Shared fixtures of the command-line tests: commands in a process, and a model that does not respond in time."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import bare_environment, home, model, shoal

__all__ = ["bare_environment", "home", "model", "shoal"]


@pytest.fixture
def slow_model(tmp_path: Path) -> Generator[tuple[str, Path]]:
    """Yield the address of a model that responds only after an hour, and the path of its request log."""
    log = tmp_path / "requests.log"
    command = [sys.executable, "-m", "shoal.testing.model", "--latency-ms", "3600000", "--log", log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), log
        process.terminate()
