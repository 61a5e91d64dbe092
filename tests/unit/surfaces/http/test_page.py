"""The files of the web page: preloaded modules, and a version that changes with the files."""

import os
import re
from pathlib import Path

from shoal.surfaces.console import FILES
from shoal.surfaces.http.page import Page

IMPORTED = re.compile(r'^import\b[^;]*?"(\.{1,2}/[^"]+)";', re.M)
PRELOADED = re.compile(r'<link rel="modulepreload" href="/console/([^"]+)">')


def imported(name: str, known: list[str]) -> list[str]:
    known.append(name)
    for path in IMPORTED.findall((FILES / name).read_text()):
        other = os.path.normpath(Path(name).parent / path)
        if other not in known:
            imported(other, known)
    return known


def test_the_first_modules_imports_are_preloaded() -> None:
    """If this fails, copy the first list into index.html."""
    needed = imported("main.js", [])[1:]
    assert needed == PRELOADED.findall((FILES / "index.html").read_text())


def test_a_changed_file_changes_the_version(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    page = Page(tmp_path)
    before = page.version()
    assert page.version() == before
    (tmp_path / "a.js").write_text("12")
    assert page.version() != before
