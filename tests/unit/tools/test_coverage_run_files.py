"""Files that a command may run: changing one changes the covered content or prevents coverage."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.known_tools import TRAITS

from shoal.kernel.permissions import Coverage
from shoal.kernel.ports import Mount
from shoal.permissions.actions import shell_actions
from shoal.permissions.fetching import fetched_by
from shoal.tools.coverage import ContentReader, coverage_key

CASES = [line.split("\t") for line in Path(__file__).with_name("run_files.txt").read_text().splitlines()]
"""A changed file, and a command that may execute it, source it or take instructions from it."""
PRESENT: Mapping[str, str] = {
    "Makefile": "include rules.txt\n-include rules.mk\n",
    "x.sh": ". ./lib.txt\n",
    "x": "#!/workspace/interp.txt\n. ./lib.txt\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "",
    ".git/objects/keep": "",
    ".git/refs/keep": "",
}
LINKS = {"link.py": "x.py", "plain.link": "plain.txt", "link2.py": "plain.txt"}


class Ground:
    """A workspace with the files in PRESENT and LINKS."""

    def __init__(self, root: Path) -> None:
        self.workspace = root / "workspace"
        self._mounts = (Mount(self.workspace, "/workspace", writable=True), Mount(root, "/scratch", writable=True))
        for name, text in PRESENT.items():
            self.put(name, text)
        for name, target in LINKS.items():
            (self.workspace / name).symlink_to(target)

    def put(self, name: str, text: str) -> None:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)

    def covers(self, command: str) -> Coverage:
        actions = shell_actions("bash", command, cwd=self.workspace, mounts=self._mounts)
        reader = ContentReader()
        return reader.read(actions, self._mounts[:1], mapped=True, fetched=fetched_by(actions, TRAITS)).coverage


@pytest.mark.parametrize(("changed", "command"), CASES, ids=[f"{command} {changed}" for changed, command in CASES])
def test_no_file_run_by_a_command_changes_unnoticed(tmp_path: Path, changed: str, command: str) -> None:
    ground = Ground(tmp_path)
    begin = PRESENT.get(changed) or ("#!/bin/sh\n" if "/hooks/" in changed or "/bin/" in changed else "1\n")
    ground.put(changed, begin)
    before = ground.covers(command)
    assert coverage_key(ground.covers(command)) == coverage_key(before)
    ground.put(changed, f"{begin}2\n")
    assert before.uncovered or coverage_key(ground.covers(command)) != coverage_key(before)


@pytest.mark.parametrize(
    "command",
    ["python3 build.py", "make", "npm run build", "pytest -q", "python3 build.py > log.txt 2>&1; tail log.txt"],
)
def test_data_that_a_command_does_not_name_may_change(tmp_path: Path, command: str) -> None:
    ground = Ground(tmp_path)
    before = ground.covers(command)
    for name in ("log.txt", "data/table.csv", "notes.md"):
        ground.put(name, "1")
    assert coverage_key(ground.covers(command)) == coverage_key(before)
    assert before.uncovered == ""
