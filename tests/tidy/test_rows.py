"""Every promise in the table has a test that uses Shoal from outside, as users do."""

import ast
import re
from itertools import chain

import pytest

from tests.tidy.source import GROUP, ROOT, nodes, tree

pytestmark = pytest.mark.xdist_group(GROUP)

ROWS = {"G": 19, "P": 10, "W": 9, "C": 18, "B": 24}
"""Number of rows of each kind."""
FILES = sorted((ROOT / "tests" / "rows").glob("*.py"))


def test_every_row_has_one_class_with_its_promise() -> None:
    classes = [node for path in FILES for node in nodes(tree(path)) if isinstance(node, ast.ClassDef)]
    rows = [(match[1], node) for node in classes if (match := re.fullmatch(r"Test([A-Z]\d+)", node.name))]
    assert sorted(row for row, _ in rows) == sorted(
        f"{kind}{number}" for kind, count in ROWS.items() for number in range(1, count + 1)
    )
    for row, node in rows:
        assert ast.get_docstring(node), row
        assert [method for method in node.body if getattr(method, "name", "").startswith("test_")], row


def test_rows_import_only_the_products_test_servers() -> None:
    imported = chain.from_iterable(
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for path in FILES
        for node in nodes(tree(path))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )
    product = [name for name in imported if name.split(".")[0] == "shoal"]
    assert product
    assert all(name.startswith("shoal.testing.") for name in product)
