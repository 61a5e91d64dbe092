"""Tries changes on collected tests. Each trial runs in a forked process until the first failure."""

import gc
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Literal, NamedTuple

import psutil
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from tests.mutants import changes
from tests.mutants.changes import Change

LOOK_SECONDS = 1.0
IDLE_SECONDS = 30.0
IDLE_CPU_SECONDS = 0.1
CPU_SECONDS_AT_LEAST = 10.0
TIMES_SLOWER = 3
MEMORY_BYTES_MAX = 8 << 30
EXAMPLES = 30
FORK = get_context("fork")
QUIET = ("-q", "-Wignore::pytest.PytestAssertRewriteWarning")
"""Options for pytest in a process that has already imported its plugins."""


class Trial(NamedTuple):
    """A change, the tests to run in this order, and their total duration without the change."""

    change: Change
    tests: tuple[str, ...]
    seconds: float


class Result(NamedTuple):
    """The result of a trial, with the name of the failed test."""

    outcome: Literal["killed", "timed out", "survived", "not covered"]
    test: str = ""


class _Child:
    def __init__(self, process: ForkProcess, folder: Path, cpu_seconds_max: float) -> None:
        self.process = process
        self._folder = folder
        self._cpu_seconds_max = cpu_seconds_max
        self._looked_at = time.monotonic()
        self._cpu_seconds = 0.0

    def is_over(self) -> bool:
        """Return True if the process has ended, was idle for too long, or used too much CPU time.

        Measures CPU time, so the load of the machine has little influence.
        """
        if not self.process.is_alive():
            return True
        if time.monotonic() < self._looked_at + IDLE_SECONDS:
            return False
        before, self._cpu_seconds, self._looked_at = self._cpu_seconds, self._used(), time.monotonic()
        return self._cpu_seconds > self._cpu_seconds_max or abs(self._cpu_seconds - before) < IDLE_CPU_SECONDS

    def _used(self) -> float:
        seconds = 0.0
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for member in (process, *process.children(recursive=True)):
                seconds += sum(member.cpu_times()[:4])
        return seconds

    def result(self) -> Result:
        """Return the result. Kills the process if it is still running."""
        is_late = self.process.is_alive()
        if is_late and self.process.pid is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        failed = self._folder / "failed"
        test = failed.read_text(encoding="utf-8") if failed.exists() else ""
        shutil.rmtree(self._folder, ignore_errors=True)
        if is_late and not test:
            return Result("timed out")
        match self.process.exitcode:
            case 0:
                return Result("survived")
            case 3:
                return Result("not covered")
            case _:
                return Result("killed", test)


class Trials:
    """Pytest plugin that replaces the test loop and tries one change after another, each on its own tests.

    A failure counts only if the test passes without the change under the same conditions. Other tests are skipped.
    """

    def __init__(self, trials: Sequence[Trial], children: int, tell: Callable[[Trial, Result], None]) -> None:
        self._waiting = list(reversed(trials))
        self._children_max = children
        self._tell = tell
        self._items: dict[str, pytest.Item] = {}
        self._sound: dict[str, bool] = {}

    def pytest_collection(self) -> None:
        """Use few examples for property tests, and do not shrink failures, because nobody reads them."""
        profile = settings(max_examples=EXAMPLES, database=None, deadline=None, phases=[Phase.explicit, Phase.generate])
        settings.register_profile("mutants", profile)
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        gc.freeze()  # keeps forked processes from copying the collected tests
        running: dict[_Child, Trial] = {}
        while self._waiting or running:
            while self._waiting and len(running) < self._children_max:
                trial = self._waiting.pop()
                running[self._begin(trial.tests, trial.change, trial.seconds)] = trial
            wait([child.process.sentinel for child in running], LOOK_SECONDS)
            for child in [child for child in running if child.is_over()]:
                trial, result = running.pop(child), child.result()
                if result.test and not self._is_sound(result.test):
                    self._waiting.append(trial)
                else:
                    self._tell(trial, result)
        return True

    def _is_sound(self, test: str) -> bool:
        if test not in self._sound:
            child = self._begin([test], None, 0)
            while not child.is_over():
                child.process.join(LOOK_SECONDS)
            self._sound[test] = child.result().outcome == "survived"
            if not self._sound[test]:
                print(f"left out, since it fails without a change, too: {test}", flush=True)
        return self._sound[test]

    def _begin(self, tests: Sequence[str], change: Change | None, seconds: float) -> _Child:
        folder = Path(tempfile.mkdtemp(prefix="shoal-mutant-"))
        process = FORK.Process(target=lambda: os._exit(self._run(tests, change, folder)))
        process.start()
        return _Child(process, folder, CPU_SECONDS_AT_LEAST + TIMES_SLOWER * seconds)

    def _run(self, tests: Sequence[str], change: Change | None, folder: Path) -> int:
        """Run tests in the forked process. Writes the name of the first failed test to `failed`.

        Returns 0 if all tests passed, 1 if one failed, and 3 if there were no tests or the change could not be applied.
        """
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        items = [self._items[test] for test in tests if self._sound.get(test, True) and test in self._items]
        if not items or (change is not None and not changes.make(change)):
            return 3
        for item, following in zip(items, [*items[1:], None], strict=True):
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                (folder / "failed").write_text(item.nodeid, encoding="utf-8")
                item.session._setupstate.teardown_exact(None)
                return 1
        return 0
