"""Disk limits: measuring folders, and avoiding needless measurements."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.kernel.ports import Mount
from shoal.kernel.settings import SandboxSettings
from shoal.sandbox import bounded
from shoal.sandbox.bounded import FOLDERS_MAX, MEBIBYTE, DiskUsage, measure_folder, shown_bytes

NOBODY = 65_534


def disk_limits(bytes_max: int, files_max: int, free_bytes_min: int) -> SandboxSettings:
    return SandboxSettings(
        workspace_bytes_max=bytes_max, workspace_files_max=files_max, disk_free_bytes_min=free_bytes_min
    )


def mount(folder: Path) -> Mount:
    return Mount(folder, "/workspace", writable=True)


def fill(folder: Path, mebibytes: int, name: str = "file") -> None:
    with (folder / name).open("wb") as file:
        file.write(os.urandom(mebibytes * MEBIBYTE))
        os.fsync(file.fileno())


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """A folder that the test accesses without root's privileges."""
    folder = Path(tempfile.mkdtemp())
    uid = os.geteuid()
    if uid == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    os.seteuid(uid)
    shutil.rmtree(folder)


def test_entries_of_every_kind_are_counted_and_bytes_once(tmp_path: Path) -> None:
    (tmp_path / "below" / "deeper").mkdir(parents=True)
    fill(tmp_path / "below", 2)
    os.link(tmp_path / "below" / "file", tmp_path / "again")
    os.truncate(os.open(tmp_path / "sparse", os.O_CREAT | os.O_RDWR), 100 * MEBIBYTE)
    (tmp_path / "link").symlink_to("/usr")
    os.mkfifo(tmp_path / "pipe")
    held = measure_folder(tmp_path, 1000)
    assert (held.files, held.hidden) == (7, "")
    assert 2 * MEBIBYTE <= held.size_bytes < 3 * MEBIBYTE


def test_a_walk_ends_at_its_bound(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}").touch()
    assert measure_folder(tmp_path, 20).files == 20


def test_a_folder_too_deep_to_measure_is_reported(tmp_path: Path) -> None:
    """The kernel limits the length of a path, so a command could hide files in deep folders."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert measure_folder(tmp_path, 1000).hidden.startswith("ddd")
    assert "an unreadable folder" in DiskUsage(SandboxSettings()).problem(mount(tmp_path))


def test_an_unreadable_folder_is_reported(users_folder: Path) -> None:
    """A command could hide files by removing a folder's permissions and restore them later."""
    (users_folder / "secret").mkdir()
    room = DiskUsage(SandboxSettings(disk_free_bytes_min=0))
    assert room.problem(mount(users_folder)) == ""
    (users_folder / "secret").chmod(0)
    assert "'secret'" in room.problem(mount(users_folder))
    assert room.may_be_full(mount(users_folder))
    (ceiling,) = room.ceilings([mount(users_folder)])
    assert room.outgrown([mount(users_folder)], [ceiling], False) == ""
    (users_folder / "secret").chmod(0o700)
    assert room.problem(mount(users_folder)) == ""


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (disk_limits(2 * MEBIBYTE, 0, 0), r"/workspace contains 3 MiB, more than the limit of 2 MiB"),
        (disk_limits(0, 2, 0), r"/workspace contains 3 files and folders, more than the limit of 2"),
        (disk_limits(0, 0, 2**62), r"The disk has .* left, but 4294967296 GiB must stay free"),
        (disk_limits(0, 0, 0), ""),
        (disk_limits(4 * MEBIBYTE, 3, 0), ""),
    ],
)
def test_each_limit_applies_separately_and_zero_means_unlimited(
    tmp_path: Path, limits: SandboxSettings, told: str
) -> None:
    for name in "abc":
        fill(tmp_path, 1, name)
    problem = DiskUsage(limits).problem(mount(tmp_path))
    assert re.fullmatch(told + r"(\. .*)?", problem)


def test_a_folder_may_stay_as_large_as_before_the_command(tmp_path: Path) -> None:
    """Otherwise no command could clean up a folder that exceeds its limit."""
    fill(tmp_path, 3)
    room = DiskUsage(disk_limits(2 * MEBIBYTE, 0, 0))
    assert room.problem(mount(tmp_path))
    ceilings = room.ceilings([mount(tmp_path)])
    assert room.outgrown([mount(tmp_path)], ceilings, True) == ""
    fill(tmp_path, 1, "more")
    found = ""
    while not found:  # the folder is not measured again immediately
        found = room.outgrown([mount(tmp_path)], ceilings, True)
    assert "contains 4 MiB" in found


def test_a_folder_that_cannot_grow_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Path] = []

    def counted(root: Path, files_max: int) -> bounded.FolderSize:
        walks.append(root)
        return measure_folder(root, files_max)

    monkeypatch.setattr(bounded, "measure_folder", counted)
    room = DiskUsage(disk_limits(2**50, 2**40, 0))  # far more than other processes write to this disk
    for _ in range(10):
        assert not room.may_be_full(mount(tmp_path))
    assert walks == []
    for _ in range(10):
        assert room.outgrown([mount(tmp_path)], room.ceilings([mount(tmp_path)]), True) == ""
        assert not room.is_overdue(mount(tmp_path))
    assert walks == [tmp_path]


def test_a_missing_folder_is_not_a_problem(tmp_path: Path) -> None:
    """The code that uses the folder reports that it is missing."""
    room = DiskUsage(SandboxSettings())
    gone = mount(tmp_path / "gone")
    assert (room.may_be_full(gone), room.is_overdue(gone), room.problem(gone)) == (False, False, "")
    assert room.outgrown([gone], room.ceilings([gone]), True) == ""


def test_the_number_of_remembered_folders_is_bounded(tmp_path: Path) -> None:
    room = DiskUsage(SandboxSettings(disk_free_bytes_min=0, workspace_files_max=1))
    for number in range(FOLDERS_MAX + 1):
        (tmp_path / f"{number}").mkdir()
    first, *others = (mount(tmp_path / f"{number}") for number in range(FOLDERS_MAX + 1))
    for name in "abc":
        (tmp_path / "0" / name).touch()
    assert room.problem(first)
    for other in others[:-1]:
        room.may_be_full(other)
    assert room.ceilings([first])[0].files > 1
    room.may_be_full(others[-1])
    assert room.ceilings([first])[0].files == 1


@pytest.mark.parametrize(("size", "shown"), [(5_000, "4 KiB"), (MEBIBYTE, "1 MiB"), (2_254_857_830, "2.1 GiB")])
def test_sizes_are_formatted_for_people(size: int, shown: str) -> None:
    assert shown_bytes(size) == shown
