"""Setup for all tests: temporary files are in memory, Ctrl-C works, and no test fails because it is slow."""

import gc
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import suppress
from glob import glob
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from shoal.files.deep_folders import remove_tree
from tests import hanging

pytest.register_assert_rewrite("shoal.testing.contracts")  # makes failed assertions show the compared values

NAME_LENGTH_MAX = 200
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 * 1024**3
"""Free memory needed to keep files there. The tests take three gigabytes, and a whole run leaves half a gigabyte of
files.
"""


def _takes_programs(folder: Path) -> bool:
    """Return True if files in the folder may be executed. Some containers forbid that."""
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _free_memory() -> int:
    return min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)


if MEMORY.is_dir() and _free_memory() > MEMORY_BYTES_MIN and _takes_programs(MEMORY):
    # Thousands of tests commit, and each would wait for the disk. No test simulates a power failure.
    tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))

os.environ["OLLAMA_HOST"] = "127.0.0.1:1"  # unused port: a local Ollama must not replace the demo model

settings.register_profile("shoal", deadline=None, max_examples=60)
settings.register_profile("many", deadline=None, max_examples=600)  # pytest --hypothesis-profile many
settings.load_profile("shoal")

# background jobs ignore SIGINT, and their child processes would too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    hanging.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Also watches the tests of the packages in packages/."""
    config.pluginmanager.register(hanging.HangGuard(config), "hang-guard")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the id of a long text. Each worker sends the ids of all tests, and pytest-xdist keeps them in memory."""
    if isinstance(val, str | bytes) and len(val) > NAME_LENGTH_MAX:
        return f"{val[:NAME_LENGTH_MAX]!a} and so on"
    return None


def pytest_collection() -> None:
    """Pause garbage collection while thousands of tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection and collect less often. This saves 5 % of the run time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so the short ones keep all workers busy at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


_folders = itertools.count()
_has_failed = pytest.StashKey[bool]()
_sockets_before = pytest.StashKey[set[str]]()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """An empty folder. It is kept if the test fails.

    pytest's own fixture creates a link for each test name and scans all links for each new folder. After some
    thousand tests, that takes 15 ms.
    """
    name = re.sub(r"\W", "_", request.node.name)[:25]
    folder = tmp_path_factory.getbasetemp() / f"{name}_{next(_folders)}"
    folder.mkdir(mode=0o700)
    yield folder
    if _has_failed not in request.node.stash:
        with suppress(OSError):
            remove_tree(folder)  # pytest and `shutil` cannot remove very deeply nested folders


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_has_failed] = True
    return report


def _sockets() -> set[str]:
    """Return the open sockets of this process, on Linux."""
    found = set[str]()
    for path in glob("/proc/self/fd/*"):
        with suppress(OSError):
            found.add(os.readlink(path))
    return {target for target in found if target.startswith("socket:")}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_sockets_before] = _sockets()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that left a socket open. Otherwise, a later test would fail when the socket is garbage collected."""
    outcome = yield
    if _sockets() - item.stash[_sockets_before]:
        found, hook = list[str](), sys.unraisablehook
        sys.unraisablehook = lambda unraisable: found.append(str(unraisable.exc_value))
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook
        if found:
            pytest.fail("\n".join(found), pytrace=False)
    return outcome
