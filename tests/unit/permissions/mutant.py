"""Changes one operator of a module after the other and runs tests on what comes out: `mutant.py FILE FIRST STEP TEST…`.

Prints a line for each change: pytest's code (0 when no test noticed it), the file, and what was changed.
"""

import ast
import importlib
import io
import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

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


def run(path: Path, number: int, tests: list[str]) -> int:
    """Put the changed module in the place of the real one and run the tests; pytest's code."""
    mutator = Mutator(number)
    tree = ast.fix_missing_locations(mutator.visit(ast.parse(path.read_text(encoding="utf-8"))))
    module = importlib.import_module(".".join(path.with_suffix("").parts[-3:]))
    exec(compile(tree, str(path), "exec"), module.__dict__)
    with redirect_stdout(io.StringIO()):
        code = int(
            pytest.main(
                ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]
            )
        )
    print(f"{code} {path.name} {mutator.where}", flush=True)
    return code


def main(path: Path, numbers: Iterable[int], tests: list[str]) -> None:
    """Make each change in a process of its own, which starts from this one with everything imported."""
    for number in numbers:
        child = os.fork()
        if child == 0:
            os._exit(run(path, number, tests))
        os.waitpid(child, 0)


if __name__ == "__main__":
    first, step = int(sys.argv[2]), int(sys.argv[3])
    file = Path(sys.argv[1])
    importlib.import_module("hypothesis.strategies")
    importlib.import_module("shoal.permissions.engine")
    main(file, range(first, mutations(file), step), sys.argv[4:])
