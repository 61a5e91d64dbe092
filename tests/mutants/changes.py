"""Finds possible small changes to a module's functions and applies them in the running process.

Only code inside functions changes, because no other code can be replaced at run time. Parameter defaults,
decorators, and attributes of modules and classes stay the same, as do strings and log calls.
"""

import ast
import copy
import importlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple, TypeAlias

SOURCE = Path("src")
PLACES = tuple(
    SOURCE / "shoal" / place
    for place in ("turn", "threads", "delivery", "engine", "store", "permissions", "kernel/turnstate.py")
)
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
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


def functions(scope: dict[str, object]) -> Iterator[FunctionType]:
    for value in list(scope.values()):
        function = getattr(value, "__wrapped__", getattr(value, "fget", getattr(value, "__func__", value)))
        if isinstance(function, FunctionType):
            yield function
        elif isinstance(value, type):
            yield from functions(dict(vars(value)))


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


class Change(NamedTuple):
    """A change to one function. `file`, `function` and `what` identify it even if its line number changes."""

    file: Path
    function: str
    what: str
    function_line: int
    number: int
    lines: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.file}:{self.lines[0]} {self.function}: {self.what}"


class Place(NamedTuple):
    """A node that can be replaced, and the lines that show whether it was executed."""

    lines: tuple[int, int]
    put: Callable[[ast.AST], object]


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Option: TypeAlias = tuple[Place, str, ast.AST]


def changes(file: Path) -> list[Change]:
    all_changes: list[Change] = []
    for function, name in _functions(ast.parse(_text(file)).body):
        seen: Counter[str] = Counter()
        for number, (place, what, _) in enumerate(_options(function)):
            seen[what] += 1
            label = f"{what} ({seen[what]})" if seen[what] > 1 else what
            all_changes.append(Change(file, name, label, function.lineno, number, place.lines))
    return all_changes


def make(change: Change) -> bool:
    """Replace the function's code in every object that refers to it. Return False if no object does."""
    tree = ast.parse(_text(change.file))
    function = next(node for node, _ in _functions(tree.body) if node.lineno == change.function_line)
    place, _, changed = next(itertools.islice(_options(function), change.number, None))
    place.put(ast.copy_location(changed, function.body[0]))
    code = compile(ast.fix_missing_locations(tree), str(change.file.resolve()), "exec")
    module = importlib.import_module(".".join(change.file.with_suffix("").relative_to(SOURCE).parts))
    first_line = min(node.lineno for node in (function, *function.decorator_list))
    wanted = (change.function, first_line)
    (new,) = (candidate for candidate in codes(code) if (candidate.co_qualname, candidate.co_firstlineno) == wanted)
    holders = [
        holder
        for holder in functions(vars(module))
        if holder.__module__ == module.__name__
        and (holder.__code__.co_qualname, holder.__code__.co_firstlineno) == wanted
        and holder.__code__.co_freevars == new.co_freevars
    ]
    for holder in holders:
        holder.__code__ = new
    return bool(holders)


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _options(function: Function) -> Iterator[Option]:
    place = Place(_lines(function), partial(_begin, function))
    body = function.body[ast.get_docstring(function) is not None :]
    if len(body) > 1:
        yield place._replace(lines=_lines(body[0])), "return at once", ast.Return()
    yield from _within(function, place)


def _begin(function: Function, new: ast.AST) -> None:
    assert isinstance(new, ast.stmt)
    function.body.insert(0, new)


def _functions(body: Iterable[ast.stmt], within: str = "") -> Iterator[tuple[Function, str]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node, within + node.name
            case ast.ClassDef():
                yield from _functions(node.body, f"{within}{node.name}.")
            case _:
                pass


def _lines(node: ast.stmt) -> tuple[int, int]:
    """Return the lines that show whether a statement was executed. For a compound statement, these are the lines
    before its block.
    """
    match node:
        case ast.If() | ast.While():
            last: ast.expr | ast.stmt = node.test
        case ast.For() | ast.AsyncFor():
            last = node.iter
        case ast.With() | ast.AsyncWith():
            last = node.items[-1].context_expr
        case ast.Match():
            last = node.subject
        case ast.Try() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.lineno, node.lineno
        case _:
            last = node
    return node.lineno, last.end_lineno or last.lineno


def _of_statement(node: ast.stmt, place: Place) -> Iterator[Option]:
    text = ast.unparse(node)
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Continue():
            yield place, f"without {text}", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield place, f"without {text}", ast.Pass()
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield place, f"{text} → return None", ast.Return(ast.Constant(None))
        case ast.Break():
            yield place, "break → continue", ast.Continue()
        case ast.If(test=test) | ast.While(test=test) if not _is_swapped(test):
            negated = place._replace(put=partial(setattr, node, "test"))
            yield negated, f"if {ast.unparse(test)} → not", ast.UnaryOp(ast.Not(), copy.deepcopy(test))
        case _:
            pass
    yield from _within(node, place)


def _is_swapped(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) or (isinstance(test, ast.Compare) and len(test.ops) == 1)


def _within(node: ast.AST, place: Place) -> Iterator[Option]:
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "annotation", "returns", "args") and not isinstance(node, ast.Call):
            continue
        for child, put in _children(node, field, value):
            inner = place._replace(put=put)
            match child:
                case ast.stmt():
                    yield from _of_statement(child, inner._replace(lines=_lines(child)))
                case ast.match_case():
                    yield from _of_case(child, inner)
                case ast.expr():
                    yield from ((inner, what, new) for what, new in _of_expression(child))
                    yield from _within(child, inner)
                case _:
                    yield from _within(child, inner)


def _children(node: ast.AST, field: str, value: object) -> Iterator[tuple[ast.AST, Callable[[ast.AST], object]]]:
    if isinstance(value, list):
        for number, child in enumerate(value):
            if isinstance(child, ast.AST):
                yield child, partial(value.__setitem__, number)
    elif isinstance(value, ast.AST):
        yield value, partial(setattr, node, field)


def _of_case(case: ast.match_case, place: Place) -> Iterator[Option]:
    guard = case.guard
    within = place._replace(lines=(case.pattern.lineno, (guard or case.pattern).end_lineno or case.pattern.lineno))
    if guard is not None:
        always = within._replace(put=partial(setattr, case, "guard"))
        yield always, f"case if {ast.unparse(guard)} → True", ast.Constant(True)
    yield from _within(case, within)


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            for number, keyword in enumerate(keywords):
                if keyword.arg is not None:
                    what = f"{ast.unparse(func)}({keyword.arg}={ast.unparse(keyword.value)}) → without"
                    yield what, ast.Call(func, args, keywords[:number] + keywords[number + 1 :])
        case _:
            for new in _instead(node):
                yield f"{ast.unparse(node)} → {ast.unparse(new)}", new


def _instead(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for number, operator in enumerate(ops):
                for other in SWAPS[type(operator)]:
                    new = other()
                    assert isinstance(new, ast.cmpop)
                    yield ast.Compare(left, [*ops[:number], new, *ops[number + 1 :]], comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as truth):
            yield ast.Constant(not truth)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            for number, generator in enumerate(node.generators):
                for condition in generator.ifs:
                    new = copy.deepcopy(node)
                    new.generators[number].ifs = [other for other in generator.ifs if other is not condition]
                    yield new
        case _:
            pass
