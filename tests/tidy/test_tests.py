"""Rules for tests: what they may access in the product, where unit tests belong, and what unit tests may start."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.source import GROUP, PACKAGE, ROOT, nodes, python_files, tree, where

pytestmark = pytest.mark.xdist_group(GROUP)

OURS = ("shoal", "tests", "bench")
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
FOREIGN = {"_exit", "_find_component", "_from_value", "_protected_args", "_setupstate"}
"""Private names of the standard library, simcord, click and pytest that have no public equivalent."""
PATCHES = ("setattr", "getattr", "delattr")
STARTING_MODULES = (
    "multiprocessing", "pty", "subprocess", "uvicorn", "tests.e2e", "tests.forks", "tests.fuzz.fuzz_shell",
    "tests.fuzz.ground", "tests.fuzz.jail", "tests.postgres", "tests.processes", "tests.rows", "tests.s3",
    "tests.synapse", "tests.terminal",
)  # fmt: skip
"""Modules that start a process or a server program."""
STARTING_CALLS = {
    "create_subprocess_exec", "create_subprocess_shell", "fork", "forkpty", "open_process", "popen", "Popen",
    "posix_spawn", "posix_spawnp", "run_process",
}  # fmt: skip
UNIT = ROOT / "tests/unit"
TESTS = [path for path in python_files("tests", "packages") if "src" not in path.parts]


def is_private(name: str) -> bool:
    return bool(re.match(r"_[^_]", name)) and name not in NAMED_TUPLES | FOREIGN


def private_names(module: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Yield the product's private names that a module imports, patches, or reads from an object other than `self`."""
    for node in nodes(module):
        match node:
            case ast.ImportFrom(module=str(home), names=names) if home.partition(".")[0] in OURS:
                yield from (
                    (node, name) for name in (*home.split("."), *(alias.name for alias in names)) if is_private(name)
                )
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield node, name
            case ast.Call(func=called, args=[_, ast.Constant(value=str(name)), *_]) if is_private(name):
                if ast.unparse(called).rpartition(".")[2] in PATCHES:
                    yield node, name
            case ast.Constant(value=str(path)) if re.fullmatch(r"shoal(\.\w+)*\._[a-z]\w*", path):
                yield node, path
            case _:
                pass


def test_tests_use_no_private_names() -> None:
    private = [where(path, node, name) for path in TESTS for node, name in private_names(tree(path))]
    assert len(TESTS) > 400
    assert not private


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("from shoal.app import _open", 1),
        ("from re import _parser", 0),
        ("driver._writer.close()", 1),
        ("super()._once()", 1),
        ("self._seen = []", 0),
        ("spec._replace(name='x')", 0),
        ("monkeypatch.setattr(sync, '_keep', crash)", 1),
        ("monkeypatch.setattr('shoal.tools.sync._keep', crash)", 1),
    ],
)
def test_private_names_are_detected(code: str, count: int) -> None:
    assert len(list(private_names(ast.parse(code)))) == count


def starts(module: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    for node in nodes(module):
        match node:
            case ast.Import(names=names):
                yield from ((node, alias.name) for alias in names if is_starting(alias.name))
            case ast.ImportFrom(module=str(home), names=names):
                yield from ((node, home) for alias in names if is_starting(f"{home}.{alias.name}"))
                yield from ((node, alias.name) for alias in names if alias.name in STARTING_CALLS)
            case ast.Call(func=ast.Attribute(attr=name)) if name in STARTING_CALLS:
                yield node, name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="system")):
                yield node, "system"
            case _:
                pass


def is_starting(module: str) -> bool:
    return any(f"{module}.".startswith(f"{start}.") for start in STARTING_MODULES)


def test_unit_tests_start_no_processes() -> None:
    unit = [path for path in TESTS if UNIT in path.parents]
    assert len(unit) > 200
    assert [where(path, node, name) for path in unit for node, name in starts(tree(path))] == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import subprocess", 1),
        ("from subprocess import run", 1),
        ("from asyncio.subprocess import PIPE", 0),
        ("from asyncio import create_subprocess_exec", 1),
        ("await asyncio.create_subprocess_exec('ls')", 1),
        ("from tests import s3", 1),
        ("from tests.postgres import database", 1),
        ("os.system('ls')", 1),
        ("platform.system()", 0),
        ("prompt.system()", 0),
    ],
)
def test_a_process_start_is_detected(code: str, count: int) -> None:
    assert len(list(starts(ast.parse(code)))) == count


def mirrors(test: str) -> bool:
    """Return True if a test below tests/unit mirrors a module or package in src/shoal.

    Its path, such as `turn/test_loop_limits.py`, must be that of a module or package, optionally followed by a topic.
    """
    folder, _, file = test.rpartition("/")
    words = file.removeprefix("test_").removesuffix(".py").split("_")
    places = [PACKAGE / folder / "_".join(words[:count]) for count in range(len(words), 0, -1)]
    return any(place.with_suffix(".py").exists() or (place / "__init__.py").exists() for place in places)


def test_unit_tests_mirror_the_source_tree() -> None:
    tests = [str(path.relative_to(UNIT)) for path in TESTS if UNIT in path.parents and path.name.startswith("test_")]
    assert len(tests) > 200
    assert [test for test in tests if not mirrors(test)] == []


@pytest.mark.parametrize(
    ("test", "is_mirror"),
    [
        ("turn/test_loop.py", True),
        ("turn/test_loop_limits.py", True),
        ("test_platforms_outgoing.py", True),
        ("turn/test_everything.py", False),
        ("nowhere/test_loop.py", False),
    ],
)
def test_a_mirrored_test_path_is_recognized(test: str, is_mirror: bool) -> None:
    assert mirrors(test) == is_mirror
