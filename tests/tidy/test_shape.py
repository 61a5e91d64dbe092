"""Rules for modules and packages: each module has a docstring, and each package an `__init__.py`."""

import ast

import pytest

from tests.tidy.source import (
    GROUP,
    ROOT,
    project_files,
    python_files,
    tree,
    where,
)

pytestmark = pytest.mark.xdist_group(GROUP)

CODE = ("src", "tests", "bench", "scripts")


def test_every_module_has_a_docstring() -> None:
    silent = [where(path) for path in python_files(*CODE) if tree(path).body and not ast.get_docstring(tree(path))]
    assert not silent


def test_every_package_folder_has_an_init() -> None:
    folders = {path.parent for path in python_files("src")}
    assert not [where(folder) for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_the_file_lists_include_the_code(folder: str) -> None:
    assert len(python_files(folder)) >= 5
    assert ROOT / "pyproject.toml" in project_files()
