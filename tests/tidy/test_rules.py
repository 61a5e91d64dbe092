"""Rules about the exceptions that code may catch, the tasks and processes that it may start, its imports, and
mocks and sleeps in tests.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tidy.source import GROUP, PACKAGE, RATCHETS, ROOT, nodes, package_files, python_files, tree, where

pytestmark = pytest.mark.xdist_group(GROUP)

COUNTS = RATCHETS.counts
BROAD = {"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"}
DECODING = {"UNREADABLE", "MsgspecError", "DecodeError", "ValidationError", "TOMLDecodeError", "UnicodeDecodeError"}
CONTRACTS = {"layers", "features", "adapters", "config", "platforms", "builtin-tools", "builtin-tools-within"}


def is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(ast.unparse(part) in BROAD for part in parts)


def ends_in_raise(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def broad_excepts(module: ast.Module) -> Iterator[ast.expr | ast.excepthandler]:
    for node in nodes(module):
        match node:
            case ast.ExceptHandler() if is_broad(node.type) and not ends_in_raise(node):
                yield node
            case ast.Call(func=called, args=caught) if ast.unparse(called).rpartition(".")[2] == "suppress":
                yield from (node for kind in caught if is_broad(kind))
            case _:
                pass


def calls(module: ast.Module, *names: str) -> Iterator[ast.Call]:
    for node in nodes(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names:
            yield node


def imports(module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def sleeps(module: ast.Module) -> Iterator[ast.Call]:
    """Yield calls that wait in real time: any sleep except sleep(0), which only yields to other tasks."""
    for call in calls(module, "sleep", "sleep_until"):
        is_zero = len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
        if ast.unparse(call.func).split(".")[0] in ("sleep", "asyncio", "time", "anyio", "trio") and not is_zero:
            yield call


def raw_complaints(module: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions that raise or return a decoder's own error text. `refusal` turns such errors into
    messages for users.
    """
    for handler in nodes(module):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None or handler.name is None:
            continue
        caught = {ast.unparse(node).rpartition(".")[2] for node in ast.walk(handler.type)}
        if not caught & DECODING:
            continue
        for statement in ast.walk(handler):
            said = statement.exc if isinstance(statement, ast.Raise) else None
            said = statement.value if isinstance(statement, ast.Return) else said
            for node in ast.walk(said) if said is not None else ():
                match node:
                    case ast.FormattedValue(value=shown) | ast.Call(func=ast.Name(id="str" | "repr"), args=[shown]):
                        if ast.unparse(shown) == handler.name:
                            yield node
                    case _:
                        pass


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("raise InvalidInput(f'the file: {error}') from error", 1),
        ("return Answer(400, str(error))", 1),
        ("raise InvalidInput(f'the file: {refusal(error, Kind)}') from error", 0),
        ("log.warning('damaged', extra={'why': str(error)})", 0),
    ],
)
def test_raw_decoder_errors_are_found(said: str, count: int) -> None:
    code = f"try:\n    pass\nexcept (OSError, msgspec.ValidationError) as error:\n    {said}\n"
    assert len(list(raw_complaints(ast.parse(code)))) == count


def test_no_raw_decoder_error_reaches_a_person() -> None:
    places = [where(path, node) for path in package_files() for node in raw_complaints(tree(path))]
    assert not places


def test_broad_excepts_are_limited() -> None:
    places = [where(path, node) for path in package_files() for node in broad_excepts(tree(path))]
    assert len(places) <= COUNTS.broad_excepts_max, places


def test_task_creation_is_limited() -> None:
    places = [
        where(path, node) for path in package_files() for node in calls(tree(path), "create_task", "ensure_future")
    ]
    assert len(places) <= COUNTS.create_task_sites_max, places


def test_tests_use_fakes_and_not_mocks() -> None:
    mocked = [
        where(path, name=name)
        for path in [*python_files("tests", "bench"), *python_files("src")]
        for name in imports(tree(path))
        if name in ("unittest.mock", "mock", "pytest_mock")
    ]
    assert not mocked


def test_tests_never_sleep() -> None:
    fakes = [path for path in python_files("src") if PACKAGE / "testing" in path.parents]
    waiting = [where(path, call) for path in [*python_files("tests"), *fakes] for call in sleeps(tree(path))]
    assert not waiting


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("try: a\nexcept Exception: b", 1),
        ("try: a\nexcept (OSError, BaseException): b", 1),
        ("try: a\nexcept: b", 1),
        ("with contextlib.suppress(Exception): a", 1),
        ("try: a\nexcept Exception:\n  b\n  raise", 0),
        ("try: a\nexcept OSError: b", 0),
    ],
)
def test_broad_excepts_are_detected(code: str, count: int) -> None:
    assert len(list(broad_excepts(ast.parse(code)))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("time.sleep(1)", 1),
        ("await asyncio.sleep(x)", 1),
        ("sleep(0.1)", 1),
        ("asyncio.sleep(0)", 0),
        ("clock.sleep(5)", 0),
    ],
)
def test_sleeps_are_detected(code: str, count: int) -> None:
    assert len(list(sleeps(ast.parse(code)))) == count


def test_the_layers_are_respected(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--cache-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_import_contract_is_configured() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {name for name in CONTRACTS if f'id = "{name}"' in text} == CONTRACTS


def imported_by(module: str) -> set[str]:
    """Return the top-level names of all modules that are loaded when a new interpreter imports this module."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    code = f"import {module}"
    command = [sys.executable, "-c", code]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stderr.splitlines()
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}


STARTS = [name for name in ("shoal", "shoal.config", "shoal.surfaces.cli.main") if find_spec(name)]


@pytest.mark.parametrize("module", STARTS)
def test_starting_imports_nothing_slow(module: str) -> None:
    loaded = imported_by(module)
    assert "shoal" in loaded
    assert not loaded & set(RATCHETS.start.slow)


def test_an_import_is_detected() -> None:
    assert "rich" in imported_by("rich.text")
