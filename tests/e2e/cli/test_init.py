"""`shoal init` makes each workspace a git repository."""

import subprocess
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


def test_the_workspace_is_a_separate_repository(shoal: Shoal, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(home.parent / "other.git"))
    shoal("init")
    monkeypatch.delenv("GIT_DIR")
    workspace = home / "agents/main/workspace"
    top = subprocess.run(
        ["git", "rev-parse", "--show-toplevel"], cwd=workspace, check=True, capture_output=True, text=True
    )
    assert Path(top.stdout.strip()) == workspace.resolve()
