"""A running Shoal for each module, and a table of the rows at the end of the test report."""

import re
from collections.abc import Generator, Iterator
from typing import NamedTuple

import pytest

from tests.rows.running import Running

LOG_LINES = 100
ROW = re.compile(r"Test([A-Z]\d+)")


@pytest.fixture(scope="module")
def shoal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A running Shoal with the SETTINGS and PLATFORMS of the module."""
    module = request.module
    with (
        Running(tmp_path_factory.mktemp("home"), module.SETTINGS, getattr(module, "PLATFORMS", ())) as made,
        made.run() as running,
    ):
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the running Shoal's log to the report of a failure."""
    report = yield
    running = getattr(item, "funcargs", {}).get("shoal")
    if report.failed and isinstance(running, Running):
        lines = (running.home / "stderr.log").read_text().splitlines()
        report.sections.append(("log of the running Shoal", "\n".join(lines[-LOG_LINES:])))
    return report


def pytest_itemcollected(item: pytest.Item) -> None:
    """Attach the row's name and requirement to the report of each of its tests."""
    owner = getattr(item, "cls", None)
    if owner is not None and (found := ROW.fullmatch(owner.__name__)):
        promise = " ".join((owner.__doc__ or "").split())
        item.user_properties += [("row", found[1]), ("promise", promise)]


class _Row(NamedTuple):
    promise: str
    states: frozenset[str]
    reasons: frozenset[str]
    seconds: float


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[str, _Row] = {}
    for state, reports in terminalreporter.stats.items():
        for report in reports:
            told = {key: str(value) for key, value in getattr(report, "user_properties", ())}
            if not isinstance(report, pytest.TestReport) or "row" not in told:
                continue
            was = rows.get(told["row"], _Row(told["promise"], frozenset(), frozenset(), 0.0))
            reason: str = getattr(report, "wasxfail", "")
            if isinstance(report.longrepr, tuple):
                reason = report.longrepr[2]
            reasons = was.reasons | ({reason} if reason else frozenset[str]())
            rows[told["row"]] = _Row(was.promise, was.states | {state}, reasons, was.seconds + report.duration)
    for name in sorted(rows, key=lambda row: ("GPWCB".index(row[0]), int(row[1:]))):
        row = rows[name]
        terminalreporter.write_line(f"{name:4} {_said(row.states):16} {row.seconds:5.1f} s  {row.promise}")
        for reason in sorted(row.reasons):
            terminalreporter.write_line(f"{'':31}{reason}")


def _said(states: frozenset[str]) -> str:
    if states & {"failed", "error", "xpassed"}:
        return "fails"
    if "xfailed" in states:
        return "works in part" if "passed" in states else "expected to fail"
    return "skipped in part" if "skipped" in states else "works"
