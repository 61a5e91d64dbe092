"""A test run that hangs ends within its time limits and prints a traceback: `tests/hanging.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

CONFTEST = """
from tests import hanging

pytest_addoption = hanging.add_options

def pytest_configure(config):
    config.pluginmanager.register(hanging.HangGuard(config), "hang-guard")
"""
TESTS = """
import threading
import pytest

@pytest.fixture
def hanging_setup():
    hang()

@pytest.fixture
def hanging_teardown():
    yield
    hang()

def hang():
    threading.Event().wait()

def start_thread():
    threading.Thread(target=hang).start()

def test_first({fixture}):
    {body}

def test_second():
    pass
"""


def run(folder: Path, fixture: str, body: str, end_seconds: int, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS.format(fixture=fixture, body=body))
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {ROOT}\nphase_seconds = 3\nend_seconds = {end_seconds}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "body"),
    [
        ("hanging_setup", "pass"),
        ("", "hang()"),
        ("hanging_teardown", "pass"),
        ("hanging_teardown", "assert False"),
        ("", "start_thread()"),  # a thread that prevents the interpreter from exiting
    ],
)
def test_a_hang_ends_the_run_with_a_traceback(tmp_path: Path, fixture: str, body: str) -> None:
    ended = run(tmp_path, fixture, body, 1)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "in hang" in ended.stderr


@pytest.mark.slow
def test_a_hanging_worker_fails_its_test_and_another_runs_the_rest(tmp_path: Path) -> None:
    ended = run(tmp_path, "hanging_teardown", "pass", 60, "-n", "1")
    assert "worker 'gw0' crashed while running 'test_it.py::test_first'" in ended.stdout
    assert "1 failed, 2 passed" in ended.stdout
    assert "in hang" in ended.stderr
