"""Restores of file trees: they include ignored files and inner git repositories, and an interrupted restore is
completed later.
"""

import signal
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.forks import fork_server
from tests.scenarios.restore_life import Restoration
from tests.unit.tools.test_trees import Stand


def test_ignored_files_and_inner_repositories_are_restored(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    (stand.root / ".gitignore").write_text("*.db\n")
    (stand.root / "inner").mkdir()
    for folder in (stand.root, stand.root / "inner"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (stand.root / "ignored.db").write_text("rows")
    before = stand.scan()
    (stand.root / "ignored.db").unlink()
    (stand.root / "inner" / ".git" / "HEAD").write_text("ref: refs/heads/other\n")
    assert stand.becomes(before.tree) == []
    assert (stand.root / "ignored.db").read_text() == "rows"
    assert "other" not in (stand.root / "inner" / ".git" / "HEAD").read_text()


@pytest.mark.slow
def test_an_interrupted_restore_is_completed_later(tmp_path: Path) -> None:
    def states(place: Path) -> tuple[Stand, Restoration]:
        place.mkdir()
        stand = Stand(place)
        (stand.root / "gone").mkdir()
        (stand.root / "gone" / "x").write_text("x")
        (stand.root / "kind").write_text("file")
        (stand.root / "text").write_text("one")
        (stand.root / "link").symlink_to("text")
        before = stand.scan().tree
        (stand.root / "gone" / "x").unlink()
        (stand.root / "gone").rmdir()
        (stand.root / "kind").unlink()
        (stand.root / "kind").mkdir()
        (stand.root / "kind" / "y").write_text("y")
        (stand.root / "text").write_text("two")
        (stand.root / "link").unlink()
        (stand.root / "new").mkdir(0o755)
        return stand, Restoration(str(stand.root), str(place / "kept"), stand.scan().tree, before)

    with fork_server("tests.scenarios.restore_life", Restoration) as server:
        whole = server.run(states(tmp_path / "whole")[1])
        assert whole.status == 0
        assert whole.writes > 8
        for at in range(1, whole.writes + 1):
            stand, restoration = states(tmp_path / str(at))
            assert server.run(replace(restoration, killed_at=at)).status == -signal.SIGKILL
            assert server.run(restoration).status == 0
            assert stand.changed(stand.scan().tree, restoration.then) == [], f"killed at step {at}"
            assert not [path for path in stand.root.rglob("*") if path.name.startswith(".undo-")]
