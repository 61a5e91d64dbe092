"""Changelog entries have names that the release script accepts, and the script moves the entries into the changelog."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.tidy.source import ROOT

SCRIPT = Path("scripts", "changelog.py")


def release(root: Path, version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / SCRIPT, version], check=False, capture_output=True, text=True, cwd=root
    )


def copy(folder: Path) -> None:
    for name in (SCRIPT, Path("CHANGELOG.md"), Path("changes")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copyfile(ROOT / name, folder / name)


def test_the_entries_of_this_checkout_can_be_released(tmp_path: Path) -> None:
    copy(tmp_path)
    result = release(tmp_path, "9.9.9")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]


def test_entries_become_a_section_above_the_newest(tmp_path: Path) -> None:
    copy(tmp_path)
    for path in (tmp_path / "changes").glob("*.*.md"):
        path.unlink()
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\nAbout.\n\n## 0.1.0 (unreleased)\n\nThe first.\n")
    (tmp_path / "changes/topics.added.md").write_text("Telegram: topics\nof a group.\n")
    (tmp_path / "changes/clock.fixed.md").write_text("The clock is right.\n")
    assert release(tmp_path, "0.2.0").returncode == 0
    head, section, rest = (tmp_path / "CHANGELOG.md").read_text().split("\n## ")
    assert head == "# Changelog\n\nAbout.\n"
    assert section.startswith("0.2.0 (")
    assert section.endswith(")\n\n### Added\n\n- Telegram: topics of a group.\n\n### Fixed\n\n- The clock is right.\n")
    assert rest == "0.1.0 (unreleased)\n\nThe first.\n"


def test_an_entry_of_an_unknown_kind_is_rejected(tmp_path: Path) -> None:
    copy(tmp_path)
    (tmp_path / "changes/topics.improved.md").write_text("Topics.\n")
    result = release(tmp_path, "0.2.0")
    assert (result.returncode, "rename topics.improved.md" in result.stderr) == (1, True)
