"""Taint spans are kept as long as their files and removed afterwards."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kernel.checkpoints import CheckpointsSettings
from shoal.kernel.files import STILL_FOLDERS
from shoal.kernel.home import Home
from shoal.kernel.ids import make_thread_id
from shoal.store.files import LocalFiles
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.database import empty_database
from shoal.tools.checkpoints import Checkpoints
from shoal.tools.read_files import ENTRIES_MAX
from shoal.tools.storage import Retention
from shoal.tools.synced_folders import SyncedFolders
from shoal.tools.taint_spans import Marks, Span, encode_marks
from shoal.tools.tainted_files import SCOPE, MarkedFiles

THREAD = make_thread_id("web", "lobby", "sea")
LONG_AGO = Span(1, 2, "a page")


class OneRound(ManualClock):
    """A clock that interrupts every sleep."""

    async def sleep(self, seconds: float) -> None:
        raise InterruptedError


class Rooms:
    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.clock = ManualClock()
        self.store = Store(SqliteDriver(empty_database(root / "shoal.db"), synchronous="OFF"), self.clock)
        self.marked = MarkedFiles(self.store.settings, self.home)
        self.scratch = self.home.scratch(THREAD)
        self.workspace = self.home.agent("main") / "workspace"
        for folder in (self.scratch, self.workspace):
            folder.mkdir(parents=True)

    async def note(self, folder: Path, *names: str) -> None:
        for name in names:
            (folder / name).write_text("of a stranger")
        await self.marked.note(folder, [folder / name for name in names], "a page")

    async def noted(self) -> list[str]:
        return [key for key, _ in await self.store.settings.page(SCOPE)]


@pytest.fixture
async def rooms(tmp_path: Path) -> AsyncIterator[Rooms]:
    rooms = Rooms(tmp_path)
    yield rooms
    await rooms.store.close()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat spans that ended just now as old."""
    monkeypatch.setattr("shoal.tools.tainted_files.SETTLED_NS", -1_000_000_000)


@pytest.mark.usefixtures("settled")
async def test_marks_are_kept_as_long_as_their_files(rooms: Rooms) -> None:
    await rooms.note(rooms.scratch, "one")
    await rooms.note(rooms.workspace, "two", "three")
    assert await rooms.marked.forget_unused() == 0
    assert len(await rooms.noted()) == 2
    (rooms.workspace / "two").unlink()
    (rooms.scratch / "one").unlink()
    assert await rooms.marked.forget_unused() == 1
    assert await rooms.noted() == ["agents/main/workspace"]
    assert (await rooms.marked.sources([rooms.workspace]))(rooms.workspace / "three") == "a page"


@pytest.mark.usefixtures("settled")
async def test_marks_are_removed_with_their_folder(rooms: Rooms) -> None:
    await rooms.note(rooms.scratch, "one")
    shutil.rmtree(rooms.scratch.parent)
    assert await rooms.marked.forget_unused() == 1


@pytest.mark.usefixtures("settled")
async def test_marks_of_a_possibly_unmounted_disk_are_kept(rooms: Rooms, tmp_path: Path) -> None:
    for key in (str(tmp_path.parent / "elsewhere/workspace"), "data/away/lobby/sea/scratch"):
        await rooms.store.settings.put(SCOPE, key, encode_marks(Marks((LONG_AGO,))))
    assert await rooms.marked.forget_unused() == 0
    assert len(await rooms.noted()) == 2


async def test_files_that_a_call_may_still_write_stay_marked(rooms: Rooms) -> None:
    async with rooms.marked.during([rooms.workspace], "a page", 900):
        assert await rooms.marked.forget_unused() == 0
        (rooms.workspace / "new").write_text("x")
    assert (await rooms.marked.sources([rooms.workspace]))(rooms.workspace / "new") == "a page"


async def test_a_folder_with_too_many_files_keeps_its_marks(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENTRIES_MAX > 2
    monkeypatch.setattr("shoal.tools.tainted_files.ENTRIES_MAX", 2)
    for number in range(3):
        (rooms.workspace / f"{number}").touch()
    await rooms.store.settings.put(SCOPE, "agents/main/workspace", encode_marks(Marks((LONG_AGO,))))
    assert await rooms.marked.forget_unused() == 0


@pytest.mark.parametrize("follows", [False, True])
async def test_a_running_app_keeps_marks_of_synced_folders(rooms: Rooms, follows: bool) -> None:
    files, settings = LocalFiles(rooms.home.data), rooms.store.settings
    await settings.put(SCOPE, "agents/main/workspace", encode_marks(Marks((LONG_AGO,))))
    folders = SyncedFolders(files, settings, rooms.home, rooms.marked) if follows else STILL_FOLDERS
    checkpoints = Checkpoints(files, rooms.home, rooms.marked, CheckpointsSettings())
    retention = Retention(rooms.store, files, folders, checkpoints, rooms.home, OneRound(), 0, 14)
    with pytest.raises(InterruptedError):
        await retention.run()
    assert bool(await rooms.noted()) == follows


async def test_an_unreadable_folder_counts_as_possibly_unmounted(rooms: Rooms) -> None:
    kept = encode_marks(Marks((Span(1, 2, "a page"),)))
    await rooms.store.settings.put(SCOPE, "n" * 300, kept)
    await rooms.store.settings.put(SCOPE, "/" + "n/" * 3000, kept)
    assert await rooms.marked.forget_unused() == 0
    assert len(await rooms.noted()) == 2


def test_a_workspace_with_an_undecodable_name_has_no_checkpoints(rooms: Rooms) -> None:
    (rooms.home.root / os.fsdecode(b"agents/\xff/workspace")).mkdir(parents=True)
    files = LocalFiles(rooms.home.data).below("checkpoints")
    assert Checkpoints(files, rooms.home, rooms.marked, CheckpointsSettings()).known() == set()
