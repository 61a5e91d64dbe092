"""For all tests: what they start can be interrupted, and no example fails for the time it took."""

import signal

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("shoal.testing.contracts")  # so that these suites say what they compared

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background ignores it, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--beyond-check`: leave out what `make check` runs, for whoever has just run it."""
    parser.addoption("--beyond-check", action="store_true", help="leave out the tests that `make check` runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was checked."""
    if not config.getoption("--beyond-check"):
        return
    checked = [
        item
        for item in items
        if item.nodeid.startswith(("tests/unit/", "tests/tidy/")) and item.get_closest_marker("slow") is None
    ]
    left_out = set(checked)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=checked)
