"""Sizes: functions fit a screen, files can be read in one sitting, nothing is deeply nested."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source import (
    GROUP,
    PACKAGE,
    RATCHETS,
    ROOT,
    Function,
    functions,
    project_files,
    python_files,
    text,
    tree,
    where,
)

pytestmark = pytest.mark.xdist_group(GROUP)

CODE = ("src", "tests", "bench", "scripts")
SIZES = RATCHETS.sizes
LEVELS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def parameters(function: Function) -> int:
    """How many parameters a caller may have to know: all but self and cls."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")]) + bool(given.vararg) + bool(given.kwarg)


def depth(node: ast.AST) -> int:
    """How many compound statements stand inside one another under a node; functions inside it are their own matter.

    Expressions are passed over: no statement stands in one.
    """
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*SCOPES, ast.expr)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        is_level = isinstance(child, LEVELS) and not is_elif
        deepest = max(deepest, depth(child) + is_level)
    return deepest


def all_functions() -> Iterator[tuple[Path, Function]]:
    """Every function of the project with its file."""
    for path in python_files(*CODE):
        for function in functions(path):
            yield path, function


def test_a_function_fits_a_screen() -> None:
    too_long = [
        where(path, function, f"{function.name} has {lines} lines")
        for path, function in all_functions()
        if (lines := (function.end_lineno or 0) - function.lineno + 1)
        > (SIZES.wiring_lines_max if function.name == "open_app" else SIZES.function_lines_max)
    ]
    assert not too_long


def test_a_function_takes_few_parameters() -> None:
    too_many = [
        where(path, function, f"{function.name} takes {parameters(function)}")
        for path, function in all_functions()
        if parameters(function) > SIZES.parameters_max
    ]
    assert not too_many


def test_a_function_is_not_deeply_nested() -> None:
    too_deep = [
        where(path, function, f"{function.name} is nested {depth(function)} deep")
        for path, function in all_functions()
        if depth(function) > SIZES.nesting_max
    ]
    assert not too_deep


def test_a_file_is_not_too_long() -> None:
    limits = {"src": SIZES.file_lines_max, "bench": SIZES.file_lines_max, "tests": SIZES.test_file_lines_max}
    too_long = [
        where(path, name=f"has {lines} lines")
        for folder, limit in limits.items()
        for path in python_files(folder)
        if (lines := len(text(path).splitlines())) > limit
    ]
    assert not too_long


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


@pytest.mark.parametrize(
    ("code", "levels"),
    [
        ("x = 1", 0),
        ("if a:\n  x = 1\nelif b:\n  x = 2\nelif c:\n  x = 3", 1),
        ("for a in b:\n  if a:\n    with c:\n      pass", 3),
        ("match a:\n  case 1:\n    if b:\n      pass", 2),
        ("try:\n  pass\nexcept E:\n  if a:\n    pass", 2),
        ("def f():\n  if a:\n    if b:\n      pass", 0),
    ],
)
def test_depth_counts_levels(code: str, levels: int) -> None:
    assert depth(ast.parse(code)) == levels
