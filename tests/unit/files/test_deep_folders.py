"""Walking and removing folders of any depth without recursion."""

import os
import socket
from pathlib import Path

import pytest

from shoal.files.deep_folders import remove_tree, walk

DEPTH = 1_500


def deep(top: Path, depth: int, name: str = "d") -> None:
    """Create nested folders with a file in the innermost one. Their path may be longer than the kernel accepts."""
    top.mkdir(parents=True, exist_ok=True)
    handle = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


def test_a_deep_folder_is_walked_without_recursion(tmp_path: Path) -> None:
    deep(tmp_path / "top", DEPTH)
    assert sum(len(names) for _, _, names in walk(tmp_path / "top")) == 1
    remove_tree(tmp_path / "top")


def test_files_with_too_long_paths_are_skipped_and_reported(tmp_path: Path) -> None:
    deep(tmp_path / "top", 100, "n" * 200)
    unread: list[OSError] = []
    assert 10 < len(list(walk(tmp_path / "top", unread.append))) < 100
    assert [error.strerror for error in unread] == ["File name too long"]
    remove_tree(tmp_path / "top")


@pytest.mark.parametrize(("depth", "name"), [(DEPTH, "d"), (100, "n" * 200), (1, "\udcff")])
def test_a_folder_of_any_depth_is_removed(tmp_path: Path, depth: int, name: str) -> None:
    deep(tmp_path / "top", depth, name)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_link_targets_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    top = tmp_path / "top"
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").touch()
    (top / "closed").chmod(0)
    (top / ".removed-0").mkdir()
    os.mkfifo(top / "pipe")
    (top / "out").symlink_to(tmp_path / "kept")
    (top / "loop").symlink_to(top)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "s"))
        remove_tree(top)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]
    assert (tmp_path / "kept" / "file").exists()


def test_a_link_or_a_missing_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "missing")
    assert (tmp_path / "kept").exists()
