"""Records which lines each test runs and how long each test takes: `python -m tests.mutants.cover TEST…`."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from tests.mutants.changes import PLACES, SOURCE, Change
from tests.mutants.trial import QUIET, Trial

FOLDER = Path("build/mutants/lines")
SECONDS = FOLDER / "seconds.json"
LINES = FOLDER / "coverage"
WORKERS = int(os.environ.get("TEST_WORKERS", "2"))
TESTS = ("tests/unit", "tests/contracts", "tests/scenarios")


def cover(tests: Sequence[str]) -> None:
    """Record these tests in a separate process. Without tests, record all tests unless a recording exists."""
    if not tests and SECONDS.exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.mutants.cover", *(tests or TESTS)]
    subprocess.run(command, env={**os.environ, "COVERAGE_FILE": str(LINES)}, check=True)


class Covered:
    """The recorded coverage of the tests that passed."""

    def __init__(self) -> None:
        self._seconds = _seconds()
        self._data = importlib.import_module("coverage").CoverageData(str(LINES))
        self._data.read()
        self._tests: dict[Path, dict[int, set[str]]] = {}
        self._lines: dict[Path, Counter[str]] = {}
        """Number of lines that each test runs, by file."""

    def trial(self, change: Change, seconds_max: float) -> Trial:
        """Return a trial with tests that run the changed lines: at least one test, and as many as `seconds_max` allows.

        Files take turns and start with their fastest tests, because tests of one file check similar behavior. A test
        that runs twice as many lines of the changed file may take twice as long.
        """
        if change.file not in self._tests:
            by_line = self._data.contexts_by_lineno(str(change.file.resolve()))
            tests = {line: {context.rpartition("|")[0] for context in contexts} for line, contexts in by_line.items()}
            self._tests[change.file], self._lines[change.file] = tests, Counter(chain(*tests.values()))
        first, last = change.lines
        candidates = {test for line in range(first, last + 1) for test in self._tests[change.file].get(line, ())}
        spent: defaultdict[str, float] = defaultdict(float)
        ends_at: dict[str, float] = {}
        for test in sorted(candidates & self._seconds.keys(), key=lambda test: (self._seconds[test], test)):
            file = test.partition("::")[0]
            spent[file] += self._seconds[test]
            ends_at[test] = spent[file]
        chosen: list[str] = []
        seconds = 0.0
        lines = self._lines[change.file]
        for test in sorted(ends_at, key=lambda test: ends_at[test] / lines[test]):
            if chosen and seconds + self._seconds[test] > seconds_max:
                break
            chosen.append(test)
            seconds += self._seconds[test]
        return Trial(change, tuple(chosen), seconds)


class Durations:
    """Pytest plugin that records how long each passed test takes, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = round(report.duration, 3)


def _seconds() -> dict[str, float]:
    return json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.exists() else {}


if __name__ == "__main__":
    durations = Durations()
    places = (".".join(place.with_suffix("").relative_to(SOURCE).parts) for place in PLACES)
    measured = ["--cov-append", "--cov-context=test", "--cov-report=", *(f"--cov={place}" for place in places)]
    pytest.main([*QUIET, f"-n{WORKERS}", "-mnot slow", *measured, *sys.argv[1:]], plugins=[durations])
    SECONDS.write_text(json.dumps(_seconds() | durations.seconds), encoding="utf-8")
