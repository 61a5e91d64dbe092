"""Rules of shape: every module has a docstring, every package an `__init__.py`, and the public module stays small."""

import ast

import pytest

from tests.tidy.source import (
    GROUP,
    PACKAGE,
    RATCHETS,
    ROOT,
    project_files,
    python_files,
    tree,
    where,
)

pytestmark = pytest.mark.xdist_group(GROUP)

CODE = ("src", "tests", "bench", "scripts")
SIZES = RATCHETS.sizes


def test_a_module_says_what_it_is_for() -> None:
    silent = [where(path) for path in python_files(*CODE) if tree(path).body and not ast.get_docstring(tree(path))]
    assert not silent


def test_the_public_module_stays_small() -> None:
    lines = (PACKAGE / "__init__.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= SIZES.public_module_lines_max


def test_every_package_folder_has_an_init() -> None:
    folders = {path.parent for path in python_files("src")}
    assert not [where(folder) for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_the_measures_see_the_code(folder: str) -> None:
    assert len(python_files(folder)) >= 5
    assert ROOT / "pyproject.toml" in project_files()
