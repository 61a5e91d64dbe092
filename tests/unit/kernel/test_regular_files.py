"""Opening regular files only. Anything else is rejected immediately with an error that names the path."""

import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from shoal.kernel.errors import InvalidInput
from shoal.kernel.regular_files import ensure_folder, read_regular, regular_only


def a_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(path))


ODD: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": a_socket,
    "a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "a link in a circle": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.timeout(60)
def test_anything_but_a_regular_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, flags: int
) -> None:
    monkeypatch.chdir(tmp_path)  # socket paths must be short
    ODD[odd](Path("file"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="'file'"):
        regular_only("file", flags)
    with pytest.raises(OSError, match="'file'"):
        read_regular(Path("file"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_regular_file_is_read_whole_or_up_to_a_limit(tmp_path: Path) -> None:
    content = os.urandom(200_000)
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == read_regular(tmp_path / "link") == content
    assert read_regular(tmp_path / "file", 1000) == content[:1000]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_non_folder_part_of_a_path_is_named(tmp_path: Path, depth: int) -> None:
    culprit = tmp_path / "culprit"
    culprit.write_text("a file")
    folder = culprit.joinpath(*"abc"[:depth])
    with pytest.raises(InvalidInput, match=f"{tmp_path.name}/culprit: Not a folder"):
        ensure_folder(folder)
