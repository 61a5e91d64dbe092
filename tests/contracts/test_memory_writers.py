"""Processes that append to the same memory file neither lose nor repeat a line."""

import subprocess
import sys
from pathlib import Path

WRITER = """
import sys
from pathlib import Path
from shoal.features.memory.files import MemoryEdit, apply_edit
for number in range(200):
    apply_edit(MemoryEdit(Path(sys.argv[1]), added=(f"- {sys.argv[2]} {number}",), once=True))
"""


def test_processes_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "MEMORY.md"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = path.read_text("utf-8").splitlines()
    assert sorted(lines) == sorted(f"- {name} {number}" for name in "abc" for number in range(200))


def test_writers_of_the_same_facts_add_each_once(tmp_path: Path) -> None:
    path = tmp_path / "MEMORY.md"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), "same"]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert path.read_text("utf-8").splitlines() == [f"- same {number}" for number in range(200)]
