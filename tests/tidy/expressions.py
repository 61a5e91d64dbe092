"""Every regular expression of the product, the texts that would make it slow, and the CPU time it takes over them.

`python -m tests.tidy.expressions` prints as JSON which of them take time that grows faster than their text. The texts
are made of the expression itself: what leads to a repetition, then its characters over and over, then nothing or
something that fails. Python's own engine runs them, because what it optimizes and what it does not is the question.

What counts is CPU time, compared with a reference of the same moment (`tests/growth.py`).
"""

import ast
import importlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from re import _constants as codes  # pyrefly: ignore[missing-module-attribute]
from re import _parser as parser  # pyrefly: ignore[missing-module-attribute]
from typing import Any  # noqa: TID251 (what the parser of expressions gives has no types)

import msgspec

from tests.growth import GROWTH, seconds, slower, stopped_by_timer
from tests.tidy.source import ROOT, nodes, package_files, tree

SIEVES = ((1_000, 0.00004), (8_000, 0.0025))
"""A text of so many characters that takes less is fast enough: even quadratic growth would stay near ENOUGH_SECONDS for
the longest. What takes longer is measured."""
CHARS = (16_000, 64_000)
ENOUGH_SECONDS = 0.08
"""CPU time for the longer text. What takes less is fast enough, and nothing is compared."""
TEXTS_MAX = 800
CALLS = ("compile", "sub", "subn", "search", "match", "fullmatch", "split", "findall", "finditer")
ANCHORED = {"match", "fullmatch"}
LINEAR = partial(re.compile(r"[a-z]+ ").sub, "", "tide reef " * (CHARS[1] // 10))
"""What the time over a bounded text is compared with."""
LINEAR_TIMES = 50

BOUNDED: dict[str, tuple[int, str]] = {
    "shoal.permissions.patterns": (1_000, "patterns of rules: PATTERN_CHARS_MAX"),
    "shoal.models.demo": (1_000, "the demo model: WORDS_CHARS_MAX of a message"),
    "shoal.models.failures": (2_000, "what a provider says: COMPLAINT_CHARS_MAX"),
    "shoal.store.driver": (0, "the package's own SQL files"),
    "shoal.shell.options": (0, "the package's own table of programs"),
}
"""Modules whose expressions only read texts of at most so many characters; 0 where nobody else writes them."""

BUILT: dict[str, tuple[str, str]] = {
    "shoal.platforms.matrix.wire: f'\\\\s*(?:(?:{marked}){end}|(?:{plain}){bare})\\\\s*'": (
        "[_leading(MatrixBot('@bot:example.org', 'Bot'), named=named).pattern for named in (False, True)]",
        "match",
    ),
    "shoal.platforms.slack.wire: f'<@{re.escape(me.user_id)}(\\\\|[^<>]*)?>[ \\\\t]*'": (
        r"[r'<@U1(\|[^<>]*)?>[ \t]*']",
        "sub",
    ),
    "shoal.permissions.actions: fnmatch.translate(shown)": ("[fnmatch.translate('*a*b*c*')]", "match"),
    "shoal.shell.known_commands: f'(?:{addressed})*+[\\\\s;]*'": (
        "[_sed_pattern(_SED_TEXT).pattern, _sed_pattern(_SED_WITH_BRACKETS).pattern]",
        "fullmatch",
    ),
    "shoal.permissions.redact: shape.pattern": ("[shape.pattern for shape in _SHAPES]", "sub"),
    "shoal.permissions.redact: shape.glimpse": ("[shape.glimpse for shape in _SHAPES if shape.glimpse]", "search"),
    "shoal.models.quirks: pattern": ("[pattern for pattern, _ in _LESSONS]", "search"),
    "shoal.models.demo: pattern": ("[pattern for _, pattern in _PATTERNS]", "search"),
    "shoal.setup.choices: shape": ("[shape for _, shape in shapes()]", "match"),
    "shoal.kernel.schema: pattern": ("[pattern for pattern, _ in _TOML_PROBLEMS]", "fullmatch"),
    "shoal.features.triggers.schedules: pattern": ("[pattern for pattern, _ in _PLAINER]", "sub"),
}
"""Expressions that a function builds or takes from a table: how to make samples in their module, and what runs them."""
PLAIN = (
    "shoal.kernel.lazy_re: pattern",  # those of its callers are found there
    "re.escape",  # nothing but a name of the home's own files, or a text as it is
    "shoal.features.mcp.schemas: pattern",  # only parsed
    "shoal.permissions.patterns: ",  # one character is matched, or the pattern is only parsed
    "shoal.markdown.unfinished: f'(?<!`)`{{{run}}}(?!`)'",
)
"""Expressions built at run time that need no sample."""


class Expression(msgspec.Struct, frozen=True):
    """One expression of the product: where it is, and the methods that run it."""

    place: str
    pattern: str | bytes
    flags: int
    methods: tuple[str, ...]


class Slow(msgspec.Struct, frozen=True):
    """What makes an expression slow."""

    place: str
    pattern: str
    method: str
    text: str
    seconds: tuple[float, float]


# ---- finding them ----


def expressions() -> tuple[list[Expression], list[str], list[str]]:
    """Every expression of the product, those that are only known when they run, and samples that fit none."""
    found: list[Expression] = []
    unknown: list[str] = []
    unused = dict.fromkeys(BUILT)
    used = _methods_by_name()
    for path in package_files():
        name = _module(path)
        module = tree(path)
        owners = {id(node.value): node.targets[0] for node in nodes(module) if isinstance(node, ast.Assign)}
        for node in nodes(module):
            if not isinstance(node, ast.Call) or (source := _expression_of(node)) is None:
                continue
            call, pattern, flags = source
            place = f"{name}:{node.lineno}"
            try:
                value = _value(pattern, name)
                flag = int(_value(flags, name)) if flags is not None else 0
            except NameError:
                said = f"{name}: {ast.unparse(pattern)}"
                unused.pop(said, None)
                samples, method = BUILT.get(said, ("()", ""))
                if not method and not any(plain in said for plain in PLAIN):
                    unknown.append(said)
                flag = re.DOTALL if call == "search" else 0
                made = _value(ast.parse(samples, mode="eval").body, name)
                found += [Expression(place, one, flag, (method,)) for one in made]
                continue
            if isinstance(value, re.Pattern):
                value, flag = value.pattern, value.flags & ~re.UNICODE
            owner = owners.get(id(node))
            methods = (
                used.get(_known_as(name, owner.id), {"search", "match"}) if isinstance(owner, ast.Name) else {call}
            )
            if call != "compile":
                methods = {call}
            found.append(Expression(place, value, flag, tuple(sorted(methods))))
    return found, unknown, list(unused)


def _expression_of(node: ast.Call) -> tuple[str, ast.expr, ast.expr | None] | None:
    """The function, the pattern and the flags of a call that takes an expression."""
    named = {word.arg: word.value for word in node.keywords}
    match node.func:
        case ast.Attribute(value=ast.Name(id="re" | "lazy_re"), attr=call) if call in CALLS and node.args:
            at = {"sub": 4, "subn": 4, "split": 3}.get(call, 1 if call == "compile" else 2)
            return call, node.args[0], named.get("flags") or (node.args[at] if len(node.args) > at else None)
        case ast.Name(id="Meta") | ast.Attribute(attr="Meta") if "pattern" in named:
            return "search", named["pattern"], None
        case _:
            return None


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def _known_as(module: str, name: str) -> str:
    """A private name means something in its module alone."""
    return f"{module}.{name}" if name.startswith("_") else name


def _value(node: ast.expr, module: str) -> Any:
    """What an expression of a module is worth there; the module is only imported where that matters."""
    if isinstance(node, ast.Constant):
        return node.value
    scope = {"re": re} if all(name.id == "re" for name in ast.walk(node) if isinstance(name, ast.Name)) else None
    scope = vars(importlib.import_module(module)) if scope is None else scope
    return eval(compile(ast.Expression(node), "<expression>", "eval"), dict(scope))


def _methods_by_name() -> dict[str, set[str]]:
    """The methods by which a constant is used anywhere; all of them where it is handed on."""
    used: dict[str, set[str]] = {}
    for path in package_files():
        module, home = tree(path), _module(path)
        owned = {id(node.value) for node in nodes(module) if isinstance(node, ast.Attribute)}
        for node in nodes(module):
            if not isinstance(node, ast.Attribute | ast.Name):
                continue
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr in CALLS:
                    used.setdefault(_known_as(home, name), set()).add(attr)
                case ast.Attribute(value=ast.Attribute(attr=name), attr=attr) if attr in CALLS:
                    used.setdefault(_known_as(home, name), set()).add(attr)
                case ast.Name(id=name, ctx=ast.Load()) if id(node) not in owned:
                    used.setdefault(_known_as(home, name), set()).update(("search", "match"))
                case _:
                    pass
    return used


# ---- texts that make one slow ----

_BY_CATEGORY = {
    codes.CATEGORY_DIGIT: "07",
    codes.CATEGORY_NOT_DIGIT: "a ",
    codes.CATEGORY_SPACE: " \n\t",
    codes.CATEGORY_NOT_SPACE: "a.",
    codes.CATEGORY_WORD: "a0_",
    codes.CATEGORY_NOT_WORD: " .<",
}
_USUAL: str = "a0 \n<>\"'\\`/.-_"
_FAILS = ("", "\n\0")


def recipes(pattern: str | bytes, flags: int) -> Iterator[tuple[str, str, str]]:
    """What a text begins with, repeats and ends with, made of what the expression itself looks for."""
    parsed = parser.parse(pattern, flags)
    repeated = list(_repetitions(parsed, ""))
    if not repeated:
        return
    letters = _letters(parsed)
    bodies = [body for _, several in repeated for body in several]
    pairs = [f"{a}{b}" for a, b in itertools.permutations(letters[:5], 2)]
    whole = _sample(parsed, 0)
    starts = dict.fromkeys(start for start, _ in repeated)
    longer = [whole, whole[: len(whole) // 2], whole[:-1], *starts, *pairs]
    for start, pumps in (("", [*letters, *bodies, *longer]), *((start, [*letters, *bodies]) for start in starts)):
        for pump in dict.fromkeys(pumps):
            if pump:
                yield from ((start, pump, end) for end in _FAILS)


def _letters(parsed: Any) -> list[str]:
    """Characters that the expression looks for, the rarest first, and a few that it may not."""
    found: dict[str, None] = {}
    for op, argument in _walk(parsed):
        if op is codes.LITERAL:
            found.setdefault(chr(argument))
        elif op in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            for letter in _members(op, argument):
                found.setdefault(letter)
    return list(dict.fromkeys([*list(found)[:8], *_USUAL]))[:12]


def _members(op: Any, argument: Any) -> list[str]:
    """A few characters that a class matches."""
    if op is codes.ANY:
        return ["a", " ", "<"]
    if op is codes.NOT_LITERAL:
        return [letter for letter in _USUAL if letter != chr(argument)][:4]
    if op is codes.LITERAL:
        return [chr(argument)]
    ranges: list[tuple[int, int]] = []
    letters: list[str] = []
    negated = argument and argument[0][0] is codes.NEGATE
    for kind, value in argument:
        if kind is codes.LITERAL:
            letters.append(chr(value))
        elif kind is codes.RANGE:
            ranges.append(value)
            letters += [chr(value[0]), chr(value[1])]
        elif kind is codes.CATEGORY:
            letters += _BY_CATEGORY.get(value, "a")
    if not negated:
        return letters[:6]
    shape = re.compile("[^" + "".join(re.escape(letter) for letter in letters) + "]")
    return [
        letter
        for letter in _USUAL
        if shape.match(letter) and not any(low <= ord(letter) <= high for low, high in ranges)
    ][:5] or ["\1"]


def _walk(parsed: Any) -> Iterator[tuple[Any, Any]]:
    for op, argument in parsed:
        yield op, argument
        for inner in _inside(op, argument):
            yield from _walk(inner)


def _inside(op: Any, argument: Any) -> Sequence[Any]:
    """The expressions within one."""
    if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return (argument[2],)
    if op is codes.SUBPATTERN:
        return (argument[3],)
    if op is codes.BRANCH:
        return tuple(argument[1])
    if op in (codes.ASSERT, codes.ASSERT_NOT):
        return (argument[1],)
    if op is codes.ATOMIC_GROUP:
        return (argument,)
    return ()


def _repetitions(parsed: Any, before: str) -> Iterator[tuple[str, list[str]]]:
    """For each repetition a text that leads to it, and texts that it repeats."""
    text = before
    for op, argument in parsed:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT) and argument[1] > 20:
            yield text, [_sample(argument[2], choice) for choice in range(3)]
        for inner in _inside(op, argument):
            yield from _repetitions(inner, text)
        text += _sample([(op, argument)], 0)


def _sample(parsed: Any, choice: int) -> str:
    """A short text that the expression matches, as far as that can be told without running it."""
    parts: list[str] = []
    for op, argument in parsed:
        if op is codes.LITERAL:
            parts.append(chr(argument))
        elif op in (codes.IN, codes.ANY, codes.NOT_LITERAL):
            members = _members(op, argument) or ["a"]
            parts.append(members[choice % len(members)])
        elif op is codes.BRANCH:
            parts.append(_sample(argument[1][choice % len(argument[1])], choice))
        elif op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            parts.append(_sample(argument[2], choice) * max(argument[0], min(1, argument[1])))
        elif op in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            parts.append("".join(_sample(inner, choice) for inner in _inside(op, argument)))
    return "".join(parts)


# ---- running them ----


def runner(expression: Expression, method: str) -> Callable[[Any], object]:
    """Run an expression over a whole text, as the method does."""
    compiled = re.compile(expression.pattern, expression.flags)
    if method in ANCHORED:
        return getattr(compiled, method)
    return lambda text: sum(1 for _ in compiled.finditer(text))


def _text(recipe: tuple[str, str, str], size: int, *, pattern: str | bytes) -> Any:
    start, pump, end = recipe
    text = start + pump * (size // len(pump)) + end
    return text if isinstance(pattern, str) else text.encode("latin-1", "replace")


def measured(expression: Expression) -> Slow | None:
    """The first text over which an expression takes more than its length allows, if there is one."""
    with stopped_by_timer():
        return _slow(expression)


def _slow(expression: Expression) -> Slow | None:
    bound, _ = BOUNDED.get(expression.place.partition(":")[0], (CHARS[1], ""))
    for method in sorted({method if method in ANCHORED else "search" for method in expression.methods if bound}):
        run = runner(expression, method)
        for recipe in itertools.islice(recipes(expression.pattern, expression.flags), TEXTS_MAX):
            texts = partial(_text, recipe, pattern=expression.pattern)
            if any(seconds(partial(run, texts(min(chars, bound)))) < enough for chars, enough in SIEVES):
                continue
            short, long = (texts(min(chars, bound)) for chars in CHARS)
            reference, times = (LINEAR, LINEAR_TIMES) if bound < CHARS[1] else (partial(run, short), GROWTH)
            if (times_seconds := slower(partial(run, long), reference, times, ENOUGH_SECONDS)) is not None:
                shown = f"{texts(24)[:24]!r}…{texts(24)[-6:]!r}"
                return Slow(expression.place, str(expression.pattern), method, shown, times_seconds)
    return None


def main() -> None:
    """Print what is slow and what is unknown, as JSON."""
    found, unknown, unused = expressions()
    slow = [one for one in map(measured, found) if one is not None]
    result = {"expressions": len(found), "unknown": unknown, "unused": unused, "slow": slow}
    sys.stdout.write(json.dumps(msgspec.to_builtins(result)))


if __name__ == "__main__":
    main()
