"""Faults around a process: crashing events, deep folders, changing files, and failing services."""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import msgspec
import pytest

from shoal.config.secrets import read_token
from shoal.features.backups.archive import write_archive
from shoal.kernel.crash_log import SET_ASIDE, SetAside
from shoal.kernel.errors import ASKED_SECONDS_MAX, PlatformError, StoreError, StoreUnavailable
from shoal.kernel.home import Home
from shoal.kernel.ports import Settings
from shoal.maintenance import (
    CLOCK_LOOK_SECONDS,
    SERVICE_PROBLEMS,
    UPKEEP_SECONDS_MIN,
    Upkeep,
    service_problem,
    watch_clock,
    watch_set_aside,
)
from shoal.platforms.inbox import Intake
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.surfaces.cli.main import run
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import MemorySettings
from shoal.testing.database import empty_database

POISON = """
import asyncio, os, sys
from pathlib import Path
import anyio
from shoal.platforms.inbox import Intake
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock

async def take(event):
    os._exit(9)

async def main():
    store = Store(SqliteDriver(Path(sys.argv[2]), synchronous="OFF"), ManualClock())
    intake = Intake("pigeon", store.settings, ManualClock(), Path(sys.argv[1]))
    async with anyio.create_task_group() as tasks:
        await intake.open(tasks, take)
        await intake.put("ada", "poison")

asyncio.run(main())
"""


async def die_in_poison(file: Path, database: Path) -> None:
    words = [sys.executable, "-c", POISON, str(file), str(database)]
    ended = await asyncio.to_thread(subprocess.run, words, check=False)
    assert ended.returncode == 9


@contextlib.asynccontextmanager
async def settings_in(database: Path) -> AsyncGenerator[Settings]:
    driver = SqliteDriver(database, synchronous="OFF")
    yield Store(driver, ManualClock()).settings
    await driver.close()


async def taken_in(file: Path, store: Settings, *events: tuple[str, str]) -> list[str]:
    import anyio

    taken: list[str] = []

    async def take(event: str) -> bool:
        taken.append(event)
        return True

    intake = Intake("pigeon", store, ManualClock(), file)
    async with anyio.create_task_group() as tasks:
        await intake.open(tasks, take)
        for lane, content in events:
            await intake.put(lane, content)
    return taken


async def test_an_event_that_crashes_the_process_twice_is_set_aside_and_reported_once(tmp_path: Path) -> None:
    file, told, noted = tmp_path / "begun", list[str](), list[str]()
    database = empty_database(tmp_path / "shoal.db")
    for _ in range(2):
        await die_in_poison(file, database)
    events = ("ben", "hello"), ("ada", "poison"), ("ada", "what came after")
    async with settings_in(database) as store:
        assert await taken_in(file, store, *events) == ["hello", "what came after"]
        ((_, stored),) = await store.page(SET_ASIDE)
        assert msgspec.json.decode(stored, type=SetAside).content == "poison"
        # the count starts again after the event was set aside
        assert await taken_in(file, store, ("ada", "poison")) == ["poison"]
    kept = MemorySettings()
    await kept.put(SET_ASIDE, "1", stored)

    async def tell(text: str) -> None:
        told.append(text)

    clock = ManualClock()
    watching = asyncio.create_task(watch_set_aside(kept, clock, tell, noted.append))
    for _ in range(3):
        await clock.sleepers(1)
        await clock.advance(60.0)
    watching.cancel()
    assert len(told) == 1
    assert "set aside a message from pigeon" in told[0]
    assert "The message is from ada" in noted[0]


async def test_a_single_crash_sets_no_event_aside(tmp_path: Path) -> None:
    file, database = tmp_path / "begun.json", empty_database(tmp_path / "shoal.db")
    await die_in_poison(file, database)
    async with settings_in(database) as store:
        assert await taken_in(file, store, ("ada", "poison")) == ["poison"]


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"[[[[", b'{"ada":"x"}', b"{" * 70_000])
async def test_a_damaged_file_of_started_events_blocks_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "begun.json"
    file.write_bytes(content)
    assert await taken_in(file, MemorySettings(), ("ada", "hello")) == ["hello"]


async def test_a_service_that_fails_is_reported_once_and_runs_again_later(tmp_path: Path) -> None:
    clock, settings, told, runs = ManualClock(), MemorySettings(), list[str](), list[float]()

    async def tell(text: str) -> None:
        told.append(text)

    async def serve() -> None:
        runs.append(clock.monotonic())
        raise RecursionError("too deep")

    kept = asyncio.create_task(Upkeep(settings, clock, tell).keep("backups", serve)())
    for _ in range(4):
        await clock.sleepers(1)
        await clock.advance(UPKEEP_SECONDS_MIN * 64)
    kept.cancel()
    assert len(runs) >= 4
    assert len(told) == 1
    assert "“backups” failed" in told[0]
    assert "too deep" in service_problem(await settings.get(SERVICE_PROBLEMS, "backups") or "").why


async def test_an_outage_of_the_database_is_not_a_fault_of_the_service() -> None:
    async def serve() -> None:
        raise ExceptionGroup("", [StoreUnavailable("away")])

    async def tell(_: str) -> None:
        raise AssertionError

    with pytest.raises(ExceptionGroup):
        await Upkeep(MemorySettings(), ManualClock(), tell).keep("files", serve)()


def test_a_backup_omits_only_files_that_no_path_can_reach(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    handle = os.open(tmp_path, os.O_RDONLY)
    for name in ("home", "data", *["n" * 200] * 60):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    (home.data / "kept.txt").write_text("kept")
    notes: list[str] = []
    with (tmp_path / "backup").open("wb") as target:
        write_archive(home, target, notes, with_secrets=False)
    assert len(notes) == 1
    assert "Skipped 1 unreadable folder" in notes[0]
    assert len(notes[0]) < 250


def test_a_large_file_that_shrinks_does_not_end_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    (home.data).mkdir(parents=True)
    with (home.data / "large").open("wb") as file:
        file.truncate(200_000_000)

    class Shrinking:
        """A backup target that truncates the source file after the first write."""

        def __init__(self) -> None:
            self.size = 0

        def write(self, data: bytes) -> int:
            self.size += len(data)
            os.truncate(home.data / "large", 1_000)
            return len(data)

        def flush(self) -> None: ...

        def tell(self) -> int:
            return self.size

    monkeypatch.setattr("shoal.features.backups.archive.READ_WHOLE_BYTES_MAX", 1_000_000)
    target = Shrinking()
    write_archive(home, cast("BufferedIOBase", target), [], with_secrets=False)
    assert target.size > 0


@pytest.mark.parametrize("seconds", [-3600.0, -2.0, 2.0, 86_400.0 * 400])
async def test_a_clock_change_is_noticed_within_seconds(seconds: float) -> None:
    clock, changes = ManualClock(), list[float]()
    watching = asyncio.create_task(watch_clock(clock, lambda: changes.append(clock.monotonic())))
    for _ in range(3):
        await clock.sleepers(1)
        await clock.advance(CLOCK_LOOK_SECONDS)
    assert not changes
    began = clock.monotonic()
    clock.jump(seconds)
    await clock.sleepers(1)
    await clock.advance(CLOCK_LOOK_SECONDS)
    watching.cancel()
    assert [at - began for at in changes] == [CLOCK_LOOK_SECONDS]


@pytest.mark.parametrize("asked", [86_400.0, 1e9, 8_000 * 365 * 86_400.0, float("inf")])
def test_an_absurd_requested_wait_is_capped_at_an_hour(asked: float) -> None:
    assert PlatformError("Later.", retry_after_seconds=asked).retry_after_seconds == ASKED_SECONDS_MAX
    assert PlatformError("Later.", retry_after_seconds=7).retry_after_seconds == 7


@pytest.mark.parametrize(("version", "is_told"), [(9_999, True), (1, False)])
def test_settings_of_a_newer_version_are_reported_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int, *, is_told: bool
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as database:
        database.execute(f"pragma user_version = {version}")
    (tmp_path / "shoal.toml").write_text("[telepathy]\nreaches = 'far'\n")
    assert run(["--home", str(tmp_path), "threads", "list"]) != 0
    said = capsys.readouterr().err
    assert "telepathy" in said
    assert ("was written by a newer version of Shoal" in said) is is_told


# ---- disks ----


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that a test can make read-only while files are open, as a failing disk does. Needs root."""
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(32_000_000)
    steps = (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, folder])
    try:
        made = all(subprocess.run(step, check=False, capture_output=True).returncode == 0 for step in steps)
    except FileNotFoundError:
        made = False
    if not made:
        pytest.skip("needs root, ext4 and loop devices")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_disk_turning_read_only_is_reported_and_loses_nothing(disk: Path) -> None:
    driver = SqliteDriver(disk / "shoal.db")
    store = Store(driver, ManualClock())
    await store.settings.put("a", "b", "kept")
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,abort", disk], check=True)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"[Tt]he disk (of|that holds) .*shoal\.db (reports .*restart|failed)"):
            await store.settings.put("a", "c", "refused")
    assert await store.settings.get("a", "b") == "kept"
    assert await asyncio.to_thread(run, ["--home", str(disk), "doctor"]) == 1
    await driver.close()
    image = disk.parent / "disk.img"
    for step in (["umount", disk], ["e2fsck", "-p", image], ["mount", "-o", "loop", image, disk]):
        await asyncio.to_thread(subprocess.run, step, check=False, capture_output=True)
    async with settings_in(disk / "shoal.db") as settings:
        assert (await settings.get("a", "b"), await settings.get("a", "c")) == ("kept", None)


async def test_an_unwritable_file_next_to_the_database_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SqliteDriver(tmp_path / "shoal.db")
    store = Store(driver, ManualClock())
    await store.settings.put("a", "b", "first")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as broken:
        broken.setattr(os, "utime", refuse)
        await store.settings.put("a", "b", "second")
        assert await store.settings.get("a", "b") == "second"
    await store.settings.put("a", "b", "again")
    assert await store.settings.get("a", "b") == "again"
    await driver.close()


@pytest.mark.parametrize("free_bytes", [0, 4096, 20_000, 60_000])
def test_a_home_left_incomplete_by_a_full_disk_is_completed_later(
    tmp_path: Path, free_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("needs root to mount a file system")
    try:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(folder).free - free_bytes))
        assert run(["--home", str(folder / "home"), "init"]) == 1
        assert "No space left on device. Free some space, then try again." in capsys.readouterr().err
        ballast.unlink()
        assert run(["--home", str(folder / "home"), "init"]) == 0
        assert read_token(Home(folder / "home"))
        assert (folder / "home" / "data" / "settings.json").read_text().strip() == "{}"
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_token_lost_in_a_power_cut_is_recreated(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.token_file.touch(mode=0o600)
    assert run(["--home", str(tmp_path), "init"]) == 0
    assert read_token(home)
