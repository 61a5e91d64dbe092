"""Names are meaningful, and the public interface is fixed and documented."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal import testing
from tests.tidy.public_api import MODULES
from tests.tidy.source import (
    GROUP,
    PACKAGE,
    RATCHETS,
    ROOT,
    Function,
    nodes,
    python_files,
    tree,
    type_of_function,
    where,
)

pytestmark = pytest.mark.xdist_group(GROUP)

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words(name: str) -> set[str]:
    return {word.lower() for word in WORD.findall(name)}


def named(path: Path) -> Iterator[str]:
    yield path.stem
    for node in nodes(tree(path)):
        if isinstance(node, (*type_of_function, ast.ClassDef)):
            yield node.name


def test_names_contain_no_forbidden_word() -> None:
    forbidden = set(RATCHETS.names.forbidden)
    empty = [
        where(path, name=name)
        for path in python_files("src", "tests", "bench")
        for name in named(path)
        if words(name) & forbidden
    ]
    assert not empty


def test_a_name_is_split_into_words() -> None:
    assert words("HTTPClientManager") == {"http", "client", "manager"}
    assert words("_read_common_part2") == {"read", "common", "part"}


def public_definitions(path: str, names: tuple[str, ...]) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for node in tree(ROOT / path).body:
        if isinstance(node, (*type_of_function, ast.ClassDef)) and node.name in names:
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                yield from (
                    (f"{node.name}.{method.name}", method)
                    for method in node.body
                    if isinstance(method, type_of_function) and not method.name.startswith("_")
                )


def test_the_public_interface_has_docstrings() -> None:
    undocumented = [
        name
        for path, names in MODULES.items()
        for name, node in public_definitions(path, names)
        if not ast.get_docstring(node) and len(node.body) > 1
    ]
    assert not undocumented


def test_the_public_interface_matches_the_recorded_list() -> None:
    assert sorted(shoal.__all__) == sorted(RATCHETS.names.public)
    assert not [name for name in shoal.__all__ if not hasattr(shoal, name)]


def test_the_fakes_come_with_the_package() -> None:
    subprocess.run([sys.executable, "-c", "import shoal; shoal.testing.FakeModel, shoal.testing.FakeChat"], check=True)


def test_every_fake_is_available_in_one_module() -> None:
    shipped = {
        name
        for path in (PACKAGE / "testing").rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"Fake\w+", name := node.name)
        if "contracts" not in path.parts
    }
    offered = set(dir(testing))
    assert {f"Fake{name}" for name in ("Model", "Chat", "Telegram", "Discord", "Slack", "Matrix")} <= offered
    assert shipped - offered == {"FakeSettings", "FakeGateway"}  # parts of FakeModel and FakeDiscord
    assert [getattr(testing, name).__name__ for name in sorted(offered)] == sorted(offered)
