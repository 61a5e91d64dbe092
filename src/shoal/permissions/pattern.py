"""Regular expressions of rules, read by Python's own parser into programs for the linear-time automaton.

Python's `re` backtracks: a rule such as `.*a.*b.*c` can be made to cost hours by the text it is matched with, and that
text is written by a model. So a pattern is parsed with the grammar of `re` (its own parser), and run by
`shoal.permissions.automaton`, which needs one step a character whatever the pattern is. What no automaton can run
(backreferences, lookbehind, atomic groups) or what would grow too large is refused when the profile is loaded.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias, cast

import msgspec

PATTERN_CHARS_MAX = 1000
PROGRAM_STEPS_MAX = 600
COUNTED_STEPS_MAX = 100

_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_ANCHORS = {"AT_BEGINNING": "begin", "AT_BEGINNING_STRING": "begin", "AT_END": "end", "AT_END_STRING": "end"}
_BOUNDARIES = {"AT_BOUNDARY": "boundary", "AT_NON_BOUNDARY": "inside"}
_REFUSED = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}
_TEST_FLAGS = int(re.IGNORECASE | re.ASCII)


class PatternRefused(ValueError):
    """A pattern cannot be used; the text says why, without naming the pattern."""


class One(msgspec.Struct, frozen=True):
    """Consume this character."""

    char: str


class Test(msgspec.Struct, frozen=True):
    """Consume a character that passes."""

    passes: Callable[[str], object]


class Every(msgspec.Struct, frozen=True):
    """Consume any character."""


class Fork(msgspec.Struct, frozen=True):
    """Go on at every target."""

    targets: tuple[int, ...]


class Check(msgspec.Struct, frozen=True):
    """Go on if the place is right: `begin`, `end`, a word `boundary`, or `inside` (no boundary)."""

    place: str
    ascii: bool


class Look(msgspec.Struct, frozen=True):
    """Go on, provided that what follows does (`wanted`) or does not match the other program."""

    wanted: bool
    ahead: int


class Accept(msgspec.Struct, frozen=True):
    """The pattern with this number matches if the text ends here."""

    pattern: int


Instruction: TypeAlias = One | Test | Every | Fork | Check | Look | Accept
Node: TypeAlias = tuple[object, object]


class _Parsed(Protocol):
    """What Python's parser returns."""

    @property
    def state(self) -> "_ParserState": ...

    def __iter__(self) -> Iterable[Node]: ...


class _ParserState(Protocol):
    @property
    def flags(self) -> int: ...


def _parse(pattern: str, flags: int) -> _Parsed:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternRefused(f"it is longer than {PATTERN_CHARS_MAX} characters")
    parse = cast("Callable[[str, int], _Parsed]", importlib.import_module("re._parser").parse)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = parse(pattern, flags)
    except Warning as warning:
        raise PatternRefused(f"it may mean something else to a later Python: {warning}") from warning
    except re.error as error:
        raise PatternRefused(f"it is not a regular expression: {error}") from error
    except (RecursionError, OverflowError) as error:
        raise PatternRefused("it is nested too deeply or counts too far") from error
    if parsed.state.flags & (re.MULTILINE | re.LOCALE):
        raise PatternRefused("the flags m and L are not supported")
    return parsed


@lru_cache(maxsize=512)
def _test(source: str, flags: int) -> Callable[[str], object]:
    """Whether one character matches, by `re` itself, so that classes mean exactly what they mean there."""
    return re.compile(source, flags & (_TEST_FLAGS | re.DOTALL)).fullmatch


def _code(char: object) -> str:
    return f"\\U{cast('int', char):08x}"


def _class_source(items: Sequence[Node]) -> str:
    """The text of a character class from its parsed items."""
    parts: list[str] = []
    for op, value in items:
        match str(op):
            case "NEGATE":
                parts.append("^")
            case "LITERAL":
                parts.append(_code(value))
            case "RANGE":
                low, high = cast("tuple[int, int]", value)
                parts.append(f"{_code(low)}-{_code(high)}")
            case _:
                parts.append(_CATEGORIES[str(value)])
    return f"[{''.join(parts)}]"


class Program:
    """The instructions of any number of patterns; `owners` tells for each instruction which pattern it is of."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.owners: list[int] = []
        self.starts: list[int] = []
        self.ahead: list[Program] = []

    def add(self, pattern: str, *, dotall: bool = False) -> int:
        """Compile one more pattern and return its number. Raises PatternRefused."""
        parsed = _parse(pattern, int(re.DOTALL) if dotall else 0)
        number = len(self.starts)
        self.starts.append(len(self.instructions))
        try:
            _Compiler(self, number).sequence(cast("Sequence[Node]", parsed), parsed.state.flags)
        except RecursionError as error:
            raise PatternRefused("it is nested too deeply") from error
        self.instructions.append(Accept(number))
        self.owners.append(number)
        return number


class _Compiler:
    """Appends one pattern's instructions to a program."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number
        self.begin = len(program.instructions)
        self.repeats = 0
        self.moved = False  # an unlimited repeat stands before this place
        self.looking = False

    def emit(self, instruction: Instruction) -> int:
        place = len(self.program.instructions)
        if place - self.begin >= PROGRAM_STEPS_MAX:
            raise PatternRefused(f"it expands to more than {PROGRAM_STEPS_MAX} steps; count less or write it shorter")
        self.program.instructions.append(instruction)
        self.program.owners.append(self.number)
        return place

    def set(self, place: int, *targets: int) -> None:
        self.program.instructions[place] = Fork(targets)

    @property
    def here(self) -> int:
        return len(self.program.instructions)

    def sequence(self, nodes: Iterable[Node], flags: int) -> None:
        for op, value in nodes:
            self.node(str(op), value, flags)

    def node(self, op: str, value: object, flags: int) -> None:
        """Compile one node of the parsed pattern."""
        match op:
            case "LITERAL" if not flags & re.IGNORECASE:
                self.emit(One(chr(cast("int", value))))
            case "LITERAL":
                self.emit(Test(_test(_code(value), flags)))
            case "NOT_LITERAL":
                self.emit(Test(_test(f"[^{_code(value)}]", flags)))
            case "ANY":
                self.emit(Every() if flags & re.DOTALL else Test(_test(".", 0)))
            case "IN":
                self.emit(Test(_test(_class_source(cast("Sequence[Node]", value)), flags)))
            case "BRANCH":
                self.branch(cast("tuple[object, Sequence[Sequence[Node]]]", value)[1], flags)
            case "SUBPATTERN":
                _, add, remove, body = cast("tuple[object, int, int, Sequence[Node]]", value)
                self.sequence(body, (flags | add) & ~remove)
            case "MAX_REPEAT" | "MIN_REPEAT":
                self.repeat(cast("tuple[int, int, Sequence[Node]]", value), flags)
            case "AT":
                self.emit(_check(str(value), flags))
            case "ASSERT" | "ASSERT_NOT":
                direction, body = cast("tuple[int, Sequence[Node]]", value)
                self.look(op == "ASSERT", direction, body, flags)
            case "FAILURE":
                self.emit(Fork(()))
            case _:
                raise PatternRefused(f"it has {_REFUSED.get(op, op.lower())}, which cannot be matched in linear time")

    def branch(self, choices: Sequence[Sequence[Node]], flags: int) -> None:
        fork = self.emit(Fork(()))
        starts: list[int] = []
        ends: list[int] = []
        before, moved = self.moved, False
        for choice in choices:
            self.moved = before
            starts.append(self.here)
            self.sequence(choice, flags)
            ends.append(self.emit(Fork(())))
            moved = moved or self.moved
        self.moved = moved
        self.set(fork, *starts)
        for end in ends:
            self.set(end, self.here)

    def repeat(self, value: tuple[int, int, Sequence[Node]], flags: int) -> None:
        low, high, body = value
        unlimited = str(high) == "MAXREPEAT"
        self.repeats += 1
        begin = self.here
        for _ in range(low):
            before = self.here
            self.counted(begin)
            self.sequence(body, flags)
            if self.here == before:
                break
        if unlimited:
            fork = self.emit(Fork(()))
            self.sequence(body, flags)
            self.emit(Fork((fork,)))
            self.set(fork, fork + 1, self.here)
            self.moved = True
        else:
            forks: list[int] = []
            for _ in range(high - low):
                self.counted(begin)
                forks.append(self.emit(Fork(())))
                self.sequence(body, flags)
            for fork in forks:
                self.set(fork, fork + 1, self.here)
        self.repeats -= 1

    def counted(self, begin: int) -> None:
        """Bound what {m,n} unrolls to: each step of it may be active at every character of a text."""
        if self.here - begin > COUNTED_STEPS_MAX:
            raise PatternRefused(f"a counted repeat in it unrolls to more than {COUNTED_STEPS_MAX} steps; use * or +")

    def look(self, wanted: bool, direction: int, body: Sequence[Node], flags: int) -> None:
        if direction < 0:
            raise PatternRefused("it looks behind, which cannot be matched in linear time")
        if self.repeats or self.moved or self.looking:
            raise PatternRefused("it looks ahead inside or after a repeat; put (?!…) first, or write a deny pattern")
        ahead = Program()
        ahead.starts.append(0)
        compiler = _Compiler(ahead, 0)
        compiler.looking = True
        compiler.sequence(body, flags)
        loop = compiler.emit(Fork(()))
        compiler.emit(Every())
        compiler.emit(Fork((loop,)))
        compiler.set(loop, loop + 1, compiler.here)
        compiler.emit(Accept(0))
        self.program.ahead.append(ahead)
        self.emit(Look(wanted, len(self.program.ahead) - 1))


def _check(at: str, flags: int) -> Check:
    ascii_only = bool(flags & re.ASCII)
    if at in _ANCHORS:
        return Check(_ANCHORS[at], ascii_only)
    return Check(_BOUNDARIES[at], ascii_only)


@lru_cache(maxsize=512)
def literal_prefixes(pattern: str) -> frozenset[str]:
    """What every match of the pattern begins with: one prefix for each alternative, e.g. `(sudo|doas) ls.*` has two.

    At most 64; a pattern with more alternatives counts as having the empty prefix. Raises PatternRefused.
    """
    parsed = _parse(pattern, 0)
    if parsed.state.flags & re.IGNORECASE:
        return frozenset({""})
    prefixes, _ = _prefixes(cast("Sequence[Node]", parsed))
    return frozenset(prefixes)


def _prefixes(nodes: Iterable[Node]) -> tuple[set[str], bool]:
    """The literal beginnings of a sequence, and whether the sequence is literal to its end."""
    found = {""}
    for op, value in nodes:
        ends, whole = _node_prefixes(str(op), value)
        if len(found) * len(ends) > 64:
            return ({""}, False)
        found = {begin + end for begin in found for end in ends}
        if not whole:
            return found, False
    return found, True


def _node_prefixes(op: str, value: object) -> tuple[set[str], bool]:
    match op:
        case "LITERAL":
            return {chr(cast("int", value))}, True
        case "IN":
            items = cast("Sequence[Node]", value)
            if all(str(kind) == "LITERAL" for kind, _ in items):
                return {chr(cast("int", char)) for _, char in items}, True
        case "SUBPATTERN":
            _, add, _, body = cast("tuple[object, int, int, Sequence[Node]]", value)
            if not add & re.IGNORECASE:
                return _prefixes(body)
        case "BRANCH":
            choices = [_prefixes(choice) for choice in cast("tuple[object, Sequence[Sequence[Node]]]", value)[1]]
            return {text for texts, _ in choices for text in texts}, all(whole for _, whole in choices)
        case _:
            pass
    return {""}, False
