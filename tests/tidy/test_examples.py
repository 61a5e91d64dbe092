"""The examples are what others would write: nothing of Shoal's that is private, and no more lines than promised."""

import ast

from tests.tidy.source import ROOT

FILES = sorted((ROOT / "examples").rglob("*.py"))
ADAPTER_LINES_MAX = 120


def test_examples_import_no_private_name() -> None:
    private = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "shoal"
        for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        if name.startswith("_")
    ]
    assert FILES
    assert not private


def test_an_adapter_like_irc_is_short() -> None:
    lines = (ROOT / "examples/irc/shoal_irc/adapter.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= ADAPTER_LINES_MAX
