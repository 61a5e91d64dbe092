"""The packages are what others would write: they use the documented modules alone, and an adapter stays short."""

import ast
import re

from tests.tidy.source import ROOT

FILES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
ADAPTER_LINES_MAX = 120


def public_modules() -> set[str]:
    """The modules that docs/extending.md lists as public."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    table = page.partition("## Public modules")[2]
    return set(re.findall(r"^\| `(shoal[\w.]*)`", table, re.MULTILINE))


def test_packages_use_public_modules_alone() -> None:
    public = public_modules()
    others = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "shoal"
        and not any(f"{node.module}.".startswith(f"{module}.") for module in public - {"shoal"})
        and node.module != "shoal"
    ]
    assert FILES
    assert not others


def test_packages_import_no_private_name() -> None:
    private = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "shoal"
        for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        if name.startswith("_")
    ]
    assert not private


def test_an_adapter_like_irc_is_short() -> None:
    lines = (ROOT / "packages/shoal-irc/src/shoal_irc/adapter.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= ADAPTER_LINES_MAX
