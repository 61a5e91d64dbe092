"""Ends a test run that hangs in any phase, and prints the stacks of all threads.

pytest-timeout can end a slow test only while its signal handler can run. It stops watching after a test has failed,
and it never watches the end of the session. This plugin watches each setup, call and teardown separately, and the
end of the session. If a phase takes too long, the process exits. pytest-xdist then reports the test as failed, and a
new worker runs the remaining tests.
"""

import faulthandler
import os
from collections.abc import Generator

import pytest

PHASE_SECONDS = 360.0
"""Longer than pytest-timeout's limit for a whole test, whose report is easier to read."""
MARGIN_SECONDS = 60.0
"""Additional time for a phase, beyond the test's own limit in `pytest.mark.timeout`."""
END_SECONDS = 120.0


def add_options(parser: pytest.Parser) -> None:
    """The limits are options, so tests of this plugin can set them."""
    parser.addini("phase_seconds", "limit for each phase of a test", default=str(PHASE_SECONDS))
    parser.addini("end_seconds", "limit for the end of a session", default=str(END_SECONDS))


class HangGuard:
    """The pytest plugin. Create it before pytest captures standard error, for example in `pytest_configure`."""

    def __init__(self, config: pytest.Config) -> None:
        self._phase_seconds = float(config.getini("phase_seconds"))
        self._end_seconds = float(config.getini("end_seconds"))
        self._is_worker = hasattr(config, "workerinput")
        self._stderr = os.dup(2)

    def _start(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)

    def _watch(self, item: pytest.Item) -> Generator[None, object, object]:
        marker = item.get_closest_marker("timeout")
        self._start(max(self._phase_seconds, marker.args[0] + MARGIN_SECONDS if marker else 0.0))
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._watch(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._watch(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """The teardown of the last test includes that of the session's fixtures."""
        return (yield from self._watch(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Watch the end of the session until the process exits. A worker is watched only up to this hook, because
        pytest-xdist kills it after 10 s.
        """
        self._start(self._end_seconds)
        outcome = yield
        if self._is_worker:
            faulthandler.cancel_dump_traceback_later()
        return outcome
