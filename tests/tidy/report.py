"""Measures how much code a reader must understand. The numbers are information, not a goal: `make report`."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.footprint import footprint
from tests.tidy.source import PACKAGE, ROOT, Function, functions, nodes, package_files, python_files, text, tree

WIRING, LOOP, PUBLIC = PACKAGE / "app.py", PACKAGE / "turn/loop.py", PACKAGE / "__init__.py"
ADAPTER = ROOT / "packages/shoal-irc/src/shoal_irc/adapter.py"


def lines_of(*paths: Path) -> int:
    return sum(len(text(path).splitlines()) for path in paths)


def modules() -> int:
    return len(package_files())


def class_names_used_twice() -> list[str]:
    counts = Counter(node.name for _, node in _classes(package_files()))
    return sorted(name for name, count in counts.items() if count > 1)


def lonely_protocols() -> list[str]:
    """Return the protocols that have at most one implementation in the product and no fake in the tests."""
    everything = [*python_files("src"), *python_files("tests")]
    members = {node.name: _members(node) for _, node in _classes(everything) if not _is_protocol(node)}
    bases = {node.name: _bases(node) for _, node in _classes(everything)}
    whole = {
        name: set(own).union(*(members.get(base, ()) for base in _ancestors(name, bases)))
        for name, own in members.items()
    }
    of_product = {node.name for _, node in _classes(package_files())}
    lonely: list[str] = []
    for _, node in _classes(package_files()):
        if _is_protocol(node) and (wanted := _members(node) - {"__init__"}) and "__call__" not in wanted:
            able = {name for name, has in whole.items() if wanted <= has}
            if len(able & of_product) < 2 and not able - of_product:
                lonely.append(node.name)
    return lonely


def private_functions_called_once() -> float:
    """Return the private functions and methods that are used once in their file, as a percentage of all functions."""
    once = total = 0
    for path in package_files():
        mentioned = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in nodes(tree(path))
            if isinstance(node, ast.Name | ast.Attribute)
        )
        own = list(functions(path))
        total += len(own)
        once += sum(mentioned[function.name] == 1 for function in own if _is_private(function))
    return 100 * once / total


def imports_of(path: Path, package: str = "") -> int:
    """Return the number of third-party modules that a file imports from. With `package`, count only modules of
    that package.
    """
    imported_modules = {node.module for node in nodes(tree(path)) if isinstance(node, ast.ImportFrom) and node.module}
    tops = {name: name.partition(".")[0] for name in imported_modules}
    return sum(top == package if package else top not in sys.stdlib_module_names for top in tops.values())


def _is_private(function: Function) -> bool:
    return function.name.startswith("_") and not function.name.startswith("__")


def _classes(paths: list[Path]) -> Iterator[tuple[Path, ast.ClassDef]]:
    return ((path, node) for path in paths for node in nodes(tree(path)) if isinstance(node, ast.ClassDef))


def _bases(node: ast.ClassDef) -> list[str]:
    names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [
        base.id if isinstance(base, ast.Name) else base.attr
        for base in names
        if isinstance(base, ast.Name | ast.Attribute)
    ]


def _is_protocol(node: ast.ClassDef) -> bool:
    return "Protocol" in _bases(node) and not any(ast.unparse(base) == "asyncio.Protocol" for base in node.bases)


def _ancestors(name: str, bases: dict[str, list[str]]) -> set[str]:
    ancestors: set[str] = set()
    left = list(bases.get(name, ()))
    while left:
        base = left.pop()
        if base not in ancestors:
            ancestors.add(base)
            left += bases.get(base, ())
    return ancestors


def _members(node: ast.ClassDef) -> set[str]:
    members: set[str] = set()
    for statement in node.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                members.add(statement.name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                members.add(name)
            case _:
                continue
    own = (inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store))
    return members | {inner.attr for inner in own if isinstance(inner.value, ast.Name) and inner.value.id == "self"}


def report() -> list[str]:
    lonely, twice = lonely_protocols(), class_names_used_twice()
    files, functions_passed, depth = footprint()
    return [
        f"a Telegram message: {files} files, {functions_passed} functions, {depth} deep",
        f"lines: product {lines_of(*package_files())}, tests {lines_of(*python_files('tests', 'packages'))},"
        f" shoal/__init__.py {lines_of(PUBLIC)}, adapter of IRC {lines_of(ADAPTER)}",
        f"modules: product {modules()}, imported by app.py {imports_of(WIRING, 'shoal')},"
        f" by turn/loop.py {imports_of(LOOP)}",
        f"private functions called once: {private_functions_called_once():.1f} %",
        f"Protocols with one implementation and no fake: {len(lonely)}: {', '.join(lonely)}",
        f"class names used twice: {len(twice)}: {', '.join(twice)}",
    ]


if __name__ == "__main__":
    print(*report(), sep="\n")
