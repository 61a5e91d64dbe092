"""Names are meaningful, public functions have docstrings, and the public interface is fixed."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import shoal
from shoal import testing
from tests.tidy.source import GROUP, PACKAGE, RATCHETS, Function, nodes, python_files, tree, type_of_function, where

pytestmark = pytest.mark.xdist_group(GROUP)

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
UNDOCUMENTED_LINES_MAX = 9  # a function or record this short may rely on its names and types


def words(name: str) -> set[str]:
    """Return the words of a snake_case or CamelCase name in lower case."""
    return {word.lower() for word in WORD.findall(name)}


def named(path: Path) -> Iterator[str]:
    """Yield the names that a file defines, each with its place: its own, and those of its classes and functions."""
    yield path.stem
    for node in nodes(tree(path)):
        if isinstance(node, (*type_of_function, ast.ClassDef)):
            yield node.name


def test_names_are_meaningful() -> None:
    forbidden = set(RATCHETS.names.forbidden)
    empty = [
        where(path, name=name)
        for path in python_files("src", "tests", "bench")
        for name in named(path)
        if words(name) & forbidden
    ]
    assert not empty


def test_words_of_a_name() -> None:
    assert words("HTTPClientManager") == {"http", "client", "manager"}
    assert words("_read_common_part2") == {"read", "common", "part"}


@cache
def port_methods() -> frozenset[str]:
    """Return the methods that a Protocol documents. Implementations need not repeat that."""
    protocols = (
        node
        for path in python_files("src")
        for node in nodes(tree(path))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    )
    return frozenset(
        method.name
        for protocol in protocols
        for method in protocol.body
        if isinstance(method, type_of_function) and ast.get_docstring(method)
    )


def public_definitions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield public functions, classes and methods with their full names. Nested functions are not public."""
    for node in body:
        if not isinstance(node, (*type_of_function, ast.ClassDef)) or node.name.startswith("_"):
            continue
        yield f"{owner}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{owner}{node.name}.")


def needs_no_docstring(name: str, node: Function | ast.ClassDef) -> bool:
    """Return whether a definition may omit its docstring.

    That applies to short functions, plain records, overloads, methods that a Protocol documents, `of` of
    shoal/services.py, and tests, whose names are rules.
    """
    is_short = (node.end_lineno or node.lineno) - node.lineno < UNDOCUMENTED_LINES_MAX
    if isinstance(node, ast.ClassDef):
        return is_short and not any(isinstance(part, type_of_function) for part in node.body)
    if is_short or node.name.startswith("test_"):
        return True
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    is_documented_by_port = "." in name and node.name in {*port_methods(), "of"}
    return bool(decorators & {"overload", "override", "setter"}) or is_documented_by_port


def test_public_functions_have_docstrings() -> None:
    undocumented = [
        where(path, node, name)
        for path in python_files("src")
        for name, node in public_definitions(tree(path).body)
        if not ast.get_docstring(node) and not needs_no_docstring(name, node)
    ]
    assert not undocumented


def test_the_public_interface_is_what_was_agreed() -> None:
    assert sorted(shoal.__all__) == sorted(RATCHETS.names.public)
    assert not [name for name in shoal.__all__ if not hasattr(shoal, name)]


def test_the_fakes_come_with_the_package() -> None:
    subprocess.run([sys.executable, "-c", "import shoal; shoal.testing.FakeModel, shoal.testing.FakeChat"], check=True)


def test_every_fake_is_available_in_one_module() -> None:
    shipped = {
        name
        for path in (PACKAGE / "testing").rglob("*.py")
        for name, node in public_definitions(tree(path).body)
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"Fake\w+", name) and "contracts" not in path.parts
    }
    offered = set(dir(testing))
    assert {f"Fake{name}" for name in ("Model", "Chat", "Telegram", "Discord", "Slack", "Matrix")} <= offered
    assert shipped - offered == {"FakeSettings", "FakeGateway"}  # parts of FakeModel and FakeDiscord
    assert [getattr(testing, name).__name__ for name in sorted(offered)] == sorted(offered)
