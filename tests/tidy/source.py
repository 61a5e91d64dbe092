"""The project's files as the tidy tests see them: paths, texts, syntax trees, and the limits of ratchets.toml.

A file is read, parsed and walked once a process. The tests that look at all files stand in the group GROUP, so that
pytest-xdist gives them to one process.
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
    """Limits over the whole product."""

    broad_excepts_max: int
    create_task_sites_max: int


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words no name may contain, and the names the package offers."""

    forbidden: list[str]
    public: list[str]


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that starting must not import."""

    slow: list[str]


class Ratchets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ratchets.toml."""

    counts: Counts
    names: Names
    start: Start


RATCHETS = msgspec.convert(tomllib.loads(Path(__file__).with_name("ratchets.toml").read_text()), Ratchets)


@cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project, committed or about to be: what git does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = (ROOT / name for name in sorted(set(names)) if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def python_files(*folders: str) -> list[Path]:
    """The project's Python files under the given top folders."""
    return [path for path in project_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def package_files() -> list[Path]:
    """Python files of the product: the package without what it ships for tests."""
    return [path for path in python_files("src") if PACKAGE / "testing" not in path.parents]


@cache
def text(path: Path) -> str:
    """What a file says."""
    return path.read_text(encoding="utf-8")


@contextmanager
def without_collector() -> Generator[None]:
    """Without the garbage collector, which would look through all trees each time one more is made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    with without_collector():
        return ast.parse(text(path), filename=str(path))


@cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a tree, in the order of ast.walk."""
    return tuple(ast.walk(module))


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file, nested ones too."""
    return (node for node in nodes(tree(path)) if isinstance(node, type_of_function))


def where(path: Path, node: ast.expr | ast.stmt | ast.excepthandler | None = None, name: str = "") -> str:
    """Where an offence stands: path, line, and a name if there is one."""
    line = f":{node.lineno}" if node else ""
    return f"{path.relative_to(ROOT)}{line} {name}".rstrip()
