"""Changes one operator of a module after the other and runs tests on what comes out: `mutant.py FILE TEST…`.

The tests are collected once. Each change is made in a process of its own, which starts from this one: there the code of
the module's functions is exchanged under everybody who holds them. Prints a line for each change: 1 when a test noticed
it, 0 when none did, the file, and what was changed.
"""

import ast
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

EXAMPLES = 30
NO_PLUGINS = tuple(f"-pno:{name}" for name in ("cacheprovider", "xdist", "xdist.looponfail"))

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
WORDS = {"any": "all", "all": "any"}


class Mutator(ast.NodeTransformer):
    """Makes the change with a given number and counts how many there are."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = 0
        self.where = ""

    def _chosen(self, node: ast.expr, change: str) -> bool:
        self.count += 1
        if self.count - 1 == self.wanted:
            self.where = f"line {node.lineno}: {change} in {ast.unparse(node)}"
            return True
        return False

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Other comparisons, one operator at a time."""
        for place, operator in enumerate(list(node.ops)):
            for other in SWAPS.get(type(operator), ()):
                if self._chosen(node, other.__name__):
                    changed = other()
                    assert isinstance(changed, ast.cmpop)
                    node.ops[place] = changed
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """`and` for `or`, and the other way round."""
        if self._chosen(node, "and/or"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """No `not`."""
        if isinstance(node.op, ast.Not) and self._chosen(node, "without not"):
            return self.visit(node.operand)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`any` for `all`, and the other way round."""
        if isinstance(node.func, ast.Name) and node.func.id in WORDS and self._chosen(node, WORDS[node.func.id]):
            node.func.id = WORDS[node.func.id]
        return self.generic_visit(node)


def mutations(path: Path) -> int:
    """How many changes a file has."""
    mutator = Mutator(-1)
    mutator.visit(ast.parse(path.read_text(encoding="utf-8")))
    return mutator.count


def functions(scope: dict[str, object]) -> Iterator[FunctionType]:
    """The functions of a module or class, methods, properties and those behind a cache too."""
    for value in list(scope.values()):
        found = getattr(value, "__wrapped__", getattr(value, "fget", getattr(value, "__func__", value)))
        if isinstance(found, FunctionType):
            yield found
        elif isinstance(value, type):
            yield from functions(dict(vars(value)))


def codes(code: CodeType) -> Iterator[CodeType]:
    """A module's code and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def exchange(path: Path, number: int) -> str:
    """Make the change with this number in the imported module; says where it is."""
    mutator = Mutator(number)
    tree = ast.fix_missing_locations(mutator.visit(ast.parse(path.read_text(encoding="utf-8"))))
    module = importlib.import_module(".".join(path.with_suffix("").parts[-3:]))
    changed = {(code.co_qualname, code.co_firstlineno): code for code in codes(compile(tree, str(path), "exec"))}
    for function in functions(vars(module)):
        code = changed.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if function.__module__ == module.__name__ and code is not None:
            function.__code__ = code
    return mutator.where


class Loop:
    """Takes pytest's loop over the collected tests: all of them for each change, up to the first that fails."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Make each change in a child. Plain tests come before those that try many examples, and what has noticed one
        change comes first for the next, which is near it."""
        items = sorted(session.items, key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))
        for number in range(mutations(self._path)):
            sys.stdout.flush()
            receive, send = os.pipe()
            child = os.fork()
            if child == 0:
                where = exchange(self._path, number)
                place = self._noticed_by(items)
                os.write(1, f"{int(place is not None)} {self._path.name} {where}\n".encode())
                os.write(send, str(place or 0).encode())
                os._exit(0)
            os.close(send)
            with os.fdopen(receive) as answer:
                place = int(answer.read() or 0)
            os.waitpid(child, 0)
            items.insert(0, items.pop(place))
        return True

    def _noticed_by(self, items: list[pytest.Item]) -> int | None:
        """The place of the first test that fails."""
        for place, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                return place
        return None


if __name__ == "__main__":
    # Nothing has to be made smaller, since nobody looks at what broke.
    settings.register_profile("mutant", max_examples=EXAMPLES, database=None, deadline=None, phases=[Phase.generate])
    settings.load_profile("mutant")
    loop = Loop(Path(sys.argv[1]))
    quiet = ("-q", "--capture=no", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    sys.exit(pytest.main([*quiet, *NO_PLUGINS, *sys.argv[2:]], plugins=[loop]))
