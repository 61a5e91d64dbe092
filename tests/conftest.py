"""For all tests: their files stand in memory, what they start can be interrupted, none fails for the time it took."""

import gc
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from shoal.files.deep_folders import remove_tree
from tests import hanging

pytest.register_assert_rewrite("shoal.testing.contracts")  # so that these suites say what they compared

NAME_LENGTH_MAX = 200
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 * 1024**3
"""So much has to be free: the tests themselves take three gigabytes, and a whole run leaves half a one there."""


def _takes_programs(folder: Path) -> bool:
    """Whether what is put there may be run; some containers forbid it."""
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _free_memory() -> int:
    """Bytes that files in memory may take."""
    return min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)


if MEMORY.is_dir() and _free_memory() > MEMORY_BYTES_MIN and _takes_programs(MEMORY):
    # Thousands of tests commit and wait for the disk each time; none of them takes the power away.
    tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))

os.environ["OLLAMA_HOST"] = (
    "127.0.0.1:1"  # nobody listens; an Ollama of this machine must not answer instead of the demo
)

settings.register_profile("shoal", deadline=None, max_examples=60)
settings.register_profile("many", deadline=None, max_examples=600)  # pytest --hypothesis-profile many
settings.load_profile("shoal")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background ignores it, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the limits of the guard against hanging tests."""
    hanging.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Watch all tests, those of the packages too."""
    config.pluginmanager.register(hanging.HangGuard(config), "hang-guard")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text is named by its beginning: each worker tells the names of all tests, and each test's is kept."""
    if isinstance(val, str | bytes) and len(val) > NAME_LENGTH_MAX:
        return f"{val[:NAME_LENGTH_MAX]!a} and so on"
    return None


def pytest_collection() -> None:
    """Look for no garbage while thousands of tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Nor among them later, and more seldom than Python does: that takes a twentieth of all time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first: at the end, short ones keep all workers at work."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


_folders = itertools.count()
_has_failed = pytest.StashKey[bool]()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """An empty folder, kept where the test fails.

    pytest's own fixture leaves a link for each name and looks through all of them for the next folder, which takes
    15 ms after some thousand tests.
    """
    name = re.sub(r"\W", "_", request.node.name)[:25]
    folder = tmp_path_factory.getbasetemp() / f"{name}_{next(_folders)}"
    folder.mkdir(mode=0o700)
    yield folder
    if _has_failed not in request.node.stash:
        with suppress(OSError):
            remove_tree(folder)  # which pytest and `shutil` cannot where folders are nested very deep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests fail."""
    report = yield
    if report.failed:
        item.stash[_has_failed] = True
    return report
