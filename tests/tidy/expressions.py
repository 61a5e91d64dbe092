"""Finds all regular expressions in the product and inputs that could make them slow, and measures their CPU time.

`python -m tests.tidy.expressions` prints as JSON which expressions take superlinear time. The inputs are derived
from the expression: a prefix that leads to a repetition, then the repeated characters many times, then nothing or a
character that makes the match fail. Python's own engine runs them, because only it shows which expressions it
optimizes.

CPU time is compared with a reference that runs at the same moment (`tests/growth.py`).
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
from typing import Any  # noqa: TID251 (the parser of regular expressions has no types)

import msgspec

from tests.growth import GROWTH, seconds, slower, stopped_by_timer
from tests.tidy.source import ROOT, nodes, package_files, tree

SIEVES = ((1_000, 0.00004), (8_000, 0.0025))
"""(characters, CPU seconds) below which an expression is fast enough: even quadratic growth would stay near
ENOUGH_SECONDS for the longest text. Slower ones are measured.
"""
CHARS = (16_000, 64_000)
ENOUGH_SECONDS = 0.08
"""CPU time for the longer text, in seconds, that always counts as fast enough."""
TEXTS_MAX = 800
CALLS = ("compile", "sub", "subn", "search", "match", "fullmatch", "split", "findall", "finditer")
ANCHORED = {"match", "fullmatch"}
LINEAR = partial(re.compile(r"[a-z]+ ").sub, "", "tide reef " * (CHARS[1] // 10))
"""Reference for the time over a bounded text."""
LINEAR_TIMES = 50

BOUNDED: dict[str, tuple[int, str]] = {
    "shoal.permissions.patterns": (1_000, "patterns of rules: PATTERN_CHARS_MAX"),
    "shoal.models.demo": (1_000, "the demo model: WORDS_CHARS_MAX of a message"),
    "shoal.models.failures": (2_000, "what a provider says: COMPLAINT_CHARS_MAX"),
    "shoal.store.driver": (0, "the package's own SQL files"),
    "shoal.shell.options": (0, "the package's own table of programs"),
}
"""Maximum length of the texts that a module's expressions read, or 0 if nobody else writes them, with the reason."""

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
"""Expressions that a function builds or takes from a table: code for samples, to run in their module, and the
method.
"""
PLAIN = (
    "shoal.kernel.lazy_re: pattern",  # the patterns are found at the callers of this function
    "re.escape",  # escapes file names in the home, or a literal text
    "shoal.features.mcp.schemas: pattern",  # parsed but never run
    "shoal.permissions.patterns: ",  # matches a single character, or is parsed but never run
    "shoal.markdown.unfinished: f'(?<!`)`{{{run}}}(?!`)'",
)
"""Expressions that are built at run time and need no sample."""


class Expression(msgspec.Struct, frozen=True):
    """A regular expression, where it is defined, and the methods that run it."""

    place: str
    pattern: str | bytes
    flags: int
    methods: tuple[str, ...]


class Slow(msgspec.Struct, frozen=True):
    """An input that makes an expression slow."""

    place: str
    pattern: str
    method: str
    text: str
    seconds: tuple[float, float]


# ---- finding expressions ----


def expressions() -> tuple[list[Expression], list[str], list[str]]:
    """Return all expressions, those known only at run time, and entries in the table of samples that match no
    expression.
    """
    everything: list[Expression] = []
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
                patterns = _value(ast.parse(samples, mode="eval").body, name)
                everything += [Expression(place, pattern, flag, (method,)) for pattern in patterns]
                continue
            if isinstance(value, re.Pattern):
                value, flag = value.pattern, value.flags & ~re.UNICODE
            owner = owners.get(id(node))
            methods = (
                used.get(_known_as(name, owner.id), {"search", "match"}) if isinstance(owner, ast.Name) else {call}
            )
            if call != "compile":
                methods = {call}
            everything.append(Expression(place, value, flag, tuple(sorted(methods))))
    return everything, unknown, list(unused)


def _expression_of(node: ast.Call) -> tuple[str, ast.expr, ast.expr | None] | None:
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
    """Return a name for a constant that is unique in the product. Only private names need the module."""
    return f"{module}.{name}" if name.startswith("_") else name


def _value(node: ast.expr, module: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    scope = {"re": re} if all(name.id == "re" for name in ast.walk(node) if isinstance(name, ast.Name)) else None
    scope = vars(importlib.import_module(module)) if scope is None else scope
    return eval(compile(ast.Expression(node), "<expression>", "eval"), dict(scope))


def _methods_by_name() -> dict[str, set[str]]:
    """Return the methods called on each constant. A constant that is passed to a function counts as used by all
    methods.
    """
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


# ---- slow inputs ----

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
    """Yield candidates for slow inputs, each as a prefix, a part to repeat, and a suffix."""
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
    letters: dict[str, None] = {}
    for op, argument in _walk(parsed):
        if op is codes.LITERAL:
            letters.setdefault(chr(argument))
        elif op in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            for letter in _members(op, argument):
                letters.setdefault(letter)
    return list(dict.fromkeys([*list(letters)[:8], *_USUAL]))[:12]


def _members(op: Any, argument: Any) -> list[str]:
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
    text = before
    for op, argument in parsed:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT) and argument[1] > 20:
            yield text, [_sample(argument[2], choice) for choice in range(3)]
        for inner in _inside(op, argument):
            yield from _repetitions(inner, text)
        text += _sample([(op, argument)], 0)


def _sample(parsed: Any, choice: int) -> str:
    """Return a short text that the expression should match. Lookarounds and back references are ignored."""
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


# ---- measuring ----


def runner(expression: Expression, method: str) -> Callable[[Any], object]:
    """Return a function that runs the expression over a complete text. `search` finds all matches."""
    compiled = re.compile(expression.pattern, expression.flags)
    if method in ANCHORED:
        return getattr(compiled, method)
    return lambda text: sum(1 for _ in compiled.finditer(text))


def _text(recipe: tuple[str, str, str], size: int, *, pattern: str | bytes) -> Any:
    start, pump, end = recipe
    text = start + pump * (size // len(pump)) + end
    return text if isinstance(pattern, str) else text.encode("latin-1", "replace")


def measured(expression: Expression) -> Slow | None:
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
    everything, unknown, unused = expressions()
    slow = [result for result in map(measured, everything) if result is not None]
    result = {"expressions": len(everything), "unknown": unknown, "unused": unused, "slow": slow}
    sys.stdout.write(json.dumps(msgspec.to_builtins(result)))


if __name__ == "__main__":
    main()
