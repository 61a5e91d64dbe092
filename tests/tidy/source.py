"""The project's files for the tests in tests/tidy: paths, texts, syntax trees, and the limits in ratchets.toml.

Each process reads and parses a file only once. Tests that read all files belong to the group GROUP, so pytest-xdist
runs them in one process.
"""

import ast
import gc
import subprocess
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "shoal"
GROUP = "tidy"

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for the complete product."""

    broad_excepts_max: int
    create_task_sites_max: int


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words that no name may contain, and the names that `shoal` exports."""

    forbidden: list[str]
    public: list[str]


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that the program must not import at startup."""

    slow: list[str]


class Ratchets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    counts: Counts
    names: Names
    start: Start


RATCHETS = msgspec.convert(tomllib.loads(Path(__file__).with_name("ratchets.toml").read_text()), Ratchets)


@cache
def project_files() -> tuple[Path, ...]:
    """Return all files that git does not ignore, whether committed or not."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = (ROOT / name for name in sorted(set(names)) if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def python_files(*folders: str) -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def package_files() -> list[Path]:
    """Return the product's Python files, without the fakes and contract suites that it ships for tests."""
    return [path for path in python_files("src") if PACKAGE / "testing" not in path.parents]


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@contextmanager
def without_collector() -> Generator[None]:
    """Pause garbage collection, which would scan all existing trees for each new one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    with without_collector():
        return ast.parse(text(path), filename=str(path))


@cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(module))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in nodes(tree(path)) if isinstance(node, type_of_function))


def where(path: Path, node: ast.expr | ast.stmt | ast.excepthandler | None = None, name: str = "") -> str:
    line = f":{node.lineno}" if node else ""
    return f"{path.relative_to(ROOT)}{line} {name}".rstrip()
