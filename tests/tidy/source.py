"""The project's files as the tidy tests see them: paths, syntax trees, and the limits of ratchets.toml."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "shoal"

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one function or file, in lines, parameters or levels."""

    function_lines_max: int
    parameters_max: int
    nesting_max: int
    file_lines_max: int
    test_file_lines_max: int
    public_module_lines_max: int


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits over the whole product."""

    broad_excepts_max: int
    create_task_sites_max: int
    turn_loop_imports_max: int


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words no name may contain, and the names the package offers."""

    forbidden: list[str]
    public: list[str]


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that starting must not import."""

    slow: list[str]


class Ratchets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ratchets.toml."""

    sizes: Sizes
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
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file, nested ones too."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, type_of_function))


def where(path: Path, node: ast.expr | ast.stmt | ast.excepthandler | None = None, name: str = "") -> str:
    """Where an offence stands: path, line, and a name if there is one."""
    line = f":{node.lineno}" if node else ""
    return f"{path.relative_to(ROOT)}{line} {name}".rstrip()
