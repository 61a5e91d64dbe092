"""The packages in packages/ use only documented modules, like third-party packages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source import GROUP, ROOT, nodes, python_files, tree, where

pytestmark = pytest.mark.xdist_group(GROUP)

FILES = python_files("packages")


def public_modules() -> set[str]:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    table = page.partition("## Public modules")[2]
    return set(re.findall(r"^\| `(shoal[\w.]*)`", table, re.MULTILINE))


def shoal_imports(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in nodes(tree(path)):
        if isinstance(node, ast.ImportFrom):
            imported = [(node.module or "", tuple(alias.name for alias in node.names))]
        elif isinstance(node, ast.Import):
            imported = [(alias.name, ()) for alias in node.names]
        else:
            continue
        yield from (name for name in imported if name[0].partition(".")[0] in ("shoal", "tests"))


def test_packages_and_their_tests_use_only_public_modules() -> None:
    public = public_modules() - {"shoal"}
    others = [
        where(path, name=module)
        for path in FILES
        for module, _ in shoal_imports(path)
        if module != "shoal" and not any(f"{module}.".startswith(f"{allowed}.") for allowed in public)
    ]
    assert len(FILES) > 10
    assert not others


def test_packages_and_their_tests_import_no_private_name() -> None:
    private = [
        where(path, name=name)
        for path in FILES
        for module, names in shoal_imports(path)
        for name in (*module.split("."), *names)
        if name.startswith("_")
    ]
    assert not private
