"""A command in a linked work tree reads the repository that the work tree belongs to."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.fuzz.ground import git, repository
from tests.unit.permissions.test_actions_reads import FILES, reads


@pytest.fixture
def workspace() -> Generator[Path]:
    """Uses /var/tmp because pytest's temporary folders may be in memory below `/dev`, where Shoal cannot resolve
    the target of a path.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-reads-", dir="/var/tmp") as folder:
        root = Path(folder, "ws")
        for name in FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        yield root


def test_a_linked_work_tree_reads_the_repository_that_it_belongs_to(workspace: Path) -> None:
    repository(workspace / "main", {"a.txt": "1"})
    git(workspace / "main", "worktree", "add", "-q", "../other")
    assert {"main/.git", "other"} <= (reads("cd other && git log", workspace) or set())
    (workspace / "main" / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (workspace / "main" / ".git" / "objects" / "info" / "alternates").write_text("/workspace/elsewhere/objects\n")
    assert reads("cd other && git log", workspace) is None
