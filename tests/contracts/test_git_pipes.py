"""Named pipes in a repository never block git commands. Anyone who can write to the workspace can create such pipes."""

import os
import subprocess
from pathlib import Path

import pytest

from shoal.permissions.git import repository_at


def made(folder: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "file").write_text("hello")
    subprocess.run(["git", "-C", str(folder), "add", "."], check=True)
    return folder


def is_inert(folder: Path) -> bool:
    return repository_at(str(folder), None, lambda place: place == str(folder.parent), str).inert


@pytest.mark.timeout(60)
def test_a_repository_with_a_pipe_is_not_considered_safe(tmp_path: Path) -> None:
    known = made(tmp_path / "known")
    assert is_inert(known)
    for number, name in enumerate(("index", "config", "HEAD", "commondir", "objects/info/alternates")):
        folder = made(tmp_path / str(number))
        pipe = folder / ".git" / name
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        assert not is_inert(folder), name
