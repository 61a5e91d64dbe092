"""SQLite on a full or read-only file system, and after the process was killed."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.store.test_sqlite import put, value

from shoal.kernel.errors import (
    StoreFull,
)
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, leased, prompt


async def test_a_full_file_system_is_reported_and_survived(small_disk: Path) -> None:
    driver = SqliteDriver(small_disk / "shoal.db")
    await driver.write(put("a"))
    ballast = small_disk / "ballast"
    fill(ballast)
    with pytest.raises(StoreFull, match="Free some space"):
        await driver.write(put("big", "x" * 500_000))
    ballast.unlink()
    await driver.write(put("big", "fits"))
    assert (await value(driver, "a"), await value(driver, "big")) == ("v", "fits")
    await driver.close()


def fill(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(file, b"x" * 4096)
    finally:
        os.close(file)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"no small file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


OPEN_AS_NOBODY = """
import os, sys
from pathlib import Path
from shoal.store.search import spread
from shoal.store.sqlite import SqliteDriver
from shoal.store.driver import migrations, statements
migrations("sqlite"), statements("sqlite")
if os.geteuid() == 0:
    os.setuid(65534)
SqliteDriver(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("is_new", [True, False])
def test_a_read_only_home_is_reported(is_new: bool) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        if not is_new:
            asyncio.run(SqliteDriver(folder / "shoal.db").close())
        folder.chmod(0o555)
        argv = [sys.executable, "-c", OPEN_AS_NOBODY, str(folder / "shoal.db")]
        result = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert result.returncode == 1
        assert "StoreReadOnly" in result.stderr
        assert "Check" in result.stderr
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


ACCEPTING = """
import asyncio, sys
from pathlib import Path
from shoal.store.search import spread
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import prompt

async def accept_for_ever():
    store = Store(SqliteDriver(Path(sys.argv[1])), ManualClock())
    number = 0
    while True:
        await store.inbox.accept(prompt(f"k{number}"), 10**9)
        sys.stdout.write(f"k{number}\\n")
        sys.stdout.flush()
        number += 1

asyncio.run(accept_for_ever())
"""


def killed_while_accepting(path: Path) -> list[str]:
    with subprocess.Popen([sys.executable, "-c", ACCEPTING, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline().strip() for _ in range(50)]
        child.kill()
        return lines + child.stdout.read().split()


@pytest.mark.slow
async def test_accepted_prompts_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    accepted = killed_while_accepting(path)
    store = Store(SqliteDriver(path), ManualClock())
    lease = await leased(store)
    assert lease.prompt == prompt("k0")
    for key in accepted:
        assert (await store.inbox.accept(prompt(key), 10**9)).status == "duplicate", key
    info = await store.journal.thread(THREAD)
    assert info is not None
    assert len(accepted) <= info.queued <= len(accepted) + 1
    await store.close()
