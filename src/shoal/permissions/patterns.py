"""Regular expressions of rules, matched in one step a character whatever the pattern and the text are.

Python's `re` backtracks: a rule such as `.*a.*b.*c` can be made to cost hours by the text it is matched with, and that
text is written by a model. So a pattern is parsed into a program, and all programs of a profile run together as one
deterministic automaton that is built as it is used. A state is the set of places in the programs that the text so far
can have led to. The move from a state by a character is computed once and kept, so a known text costs one dictionary
lookup a character; the cost of a move that is not kept yet is bounded by the programs' length. What no automaton can
run (backreferences, lookbehind, atomic groups) or what would grow too large is refused when the profile is loaded.
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


PLACES_KEPT_MAX = 200_000

_AT_START, _OTHER, _WORD, _ASCII_WORD, _AT_END = range(5)

Promise: TypeAlias = tuple[bool, int, "State"]
"""What a lookahead still asks for: wanted or not, the number of its program, and how far that has come."""

Thread: TypeAlias = tuple[int, frozenset[Promise]]
_FREE: frozenset[Promise] = frozenset()


class State:
    """Where a text can have led to. `moves` is filled as texts come by; nothing matches after a `dead` one."""

    __slots__ = ("accepted", "before", "core", "dead", "moves", "threads")

    def __init__(self, core: frozenset[Thread], before: int) -> None:
        self.core = core
        self.before = before
        self.dead = not core
        self.moves: dict[str, State] = {}
        self.threads: tuple[Thread, ...] | None = None
        self.accepted: tuple[int, ...] | None = None


def _kind(char: str) -> int:
    if char.isalnum() or char == "_":
        return _ASCII_WORD if char.isascii() else _WORD
    return _OTHER


class Automaton:
    """All patterns of a program. Matching is deterministic, total and linear in the text's length.

    States with at most `PLACES_KEPT_MAX` places in all are kept (some tens of megabytes in the worst case, some tens of
    kilobytes as a rule); past that they are forgotten and computed again.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ahead = [Automaton(ahead) for ahead in program.ahead]
        self._sees_places = any(isinstance(step, Check) for step in program.instructions) or bool(self._ahead)
        self._states: dict[tuple[frozenset[Thread], int], State] = {}
        self._kept_places = 0
        self._first = self.start()

    def match(self, text: str) -> tuple[int, ...]:
        """The numbers of the patterns that match the whole text, ascending."""
        state = self._first
        for char in text:
            following = state.moves.get(char)
            state = self._move(state, char) if following is None else following
            if state.dead:
                return ()
        return self.accepted(state)

    def start(self, before: int = _AT_START) -> State:
        """The state before the first character."""
        core = frozenset((start, _FREE) for start in self._program.starts)
        return self._state(core, before)

    def accepted(self, state: State) -> tuple[int, ...]:
        """The patterns that match if the text ends here."""
        if state.accepted is None:
            found: set[int] = set()
            for place, promises in self._closure(state, _AT_END):
                step = self._program.instructions[place]
                if isinstance(step, Accept) and all(self._kept(promise) for promise in promises):
                    found.add(step.pattern)
            state.accepted = tuple(sorted(found))
        return state.accepted

    def after(self, prefix: str) -> tuple[frozenset[int], frozenset[int]]:
        """Of texts with this prefix: the patterns that may match some of them, and those that surely match all."""
        state = self.start()
        for char in prefix:
            state = self._move(state, char)
        alive = frozenset(self._program.owners[place] for place, promises in state.core if self._can_be_kept(promises))
        return alive, self._matching_all(state)

    def _can_be_kept(self, promises: frozenset[Promise]) -> bool:
        """Whether some text that follows keeps them: not when one that is unwanted has come true whatever follows."""
        return not any(not wanted and self._ahead[number].is_certain(state) for wanted, number, state in promises)

    def is_certain(self, state: State) -> bool:
        """Whether every text that follows is accepted, for the automaton that looks ahead with this one."""
        return bool(self._matching_all(state))

    def _matching_all(self, state: State) -> frozenset[int]:
        """The patterns of which `.*` is left, with a dot that matches every character."""
        found: set[int] = set()
        for place, promises in self._closure(state, _OTHER):
            if promises or not isinstance(self._program.instructions[place], Every):
                continue
            again = {at for at, _ in self._closure(self._state(frozenset({(place + 1, _FREE)}), _OTHER), _AT_END)}
            here = {at for at, _ in self._closure(state, _AT_END)}
            ends = {at for at in again & here if isinstance(self._program.instructions[at], Accept)}
            if place in again:
                found |= {self._program.owners[at] for at in ends}
        return frozenset(found)

    def _state(self, core: frozenset[Thread], before: int) -> State:
        key = (core, before)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(core, before)
        return state

    def _move(self, state: State, char: str) -> State:
        """The state after one more character, kept for the next time."""
        kind = _kind(char)
        core: set[Thread] = set()
        instructions = self._program.instructions
        for place, promises in self._closure(state, kind):
            step = instructions[place]
            if isinstance(step, One):
                passes = step.char == char
            elif isinstance(step, Test):
                passes = step.passes(char) is not None
            else:
                passes = isinstance(step, Every)
            if passes:
                left = self._advance(promises, char)
                if left is not None:
                    core.add((place + 1, left))
        if self._kept_places >= PLACES_KEPT_MAX:
            self._states = {}
            self._kept_places = 0
            self._first = self.start()
        following = self._state(frozenset(core), kind if self._sees_places else _OTHER)
        state.moves[char] = following
        self._kept_places += 1 + len(core)
        return following

    def _advance(self, promises: frozenset[Promise], char: str) -> frozenset[Promise] | None:
        """What lookaheads ask for after one more character; None when one was broken."""
        if not promises:
            return _FREE
        left: set[Promise] = set()
        for wanted, number, state in promises:
            ahead = self._ahead[number]
            following = state.moves.get(char) or ahead.move(state, char)
            if not following.dead:
                left.add((wanted, number, following))
            elif wanted:
                return None
        return frozenset(left)

    def move(self, state: State, char: str) -> State:
        """One step, for the automaton that looks ahead with this one."""
        return self._move(state, char)

    def _kept(self, promise: Promise) -> bool:
        wanted, number, state = promise
        return bool(self._ahead[number].accepted(state)) == wanted

    def _closure(self, state: State, following: int) -> Sequence[Thread]:
        """The places that consume or accept, reached without a character when the next one is of kind `following`."""
        if state.threads is not None:
            return state.threads
        seen: set[Thread] = set()
        found: list[Thread] = []
        stack = list(state.core)
        while stack:
            thread = stack.pop()
            if thread in seen:
                continue
            seen.add(thread)
            onward = self._onward(thread, state.before, following)
            if onward is None:
                found.append(thread)
            else:
                stack.extend(onward)
        threads = tuple(found)
        if not self._sees_places:
            state.threads = threads
        return threads

    def _onward(self, thread: Thread, before: int, following: int) -> Iterable[Thread] | None:
        """Where a thread goes without a character; None when it consumes or accepts."""
        place, promises = thread
        step = self._program.instructions[place]
        if isinstance(step, Fork):
            return [(target, promises) for target in step.targets]
        if isinstance(step, Check):
            return [(place + 1, promises)] if _holds(step, before, following) else []
        if isinstance(step, Look):
            promise = (step.wanted, step.ahead, self._ahead[step.ahead].start(before))
            return [(place + 1, promises | {promise})]
        return None


def _holds(check: Check, before: int, following: int) -> bool:
    match check.place:
        case "begin":
            return before == _AT_START
        case "end":
            return following == _AT_END
        case _:
            words = (_ASCII_WORD,) if check.ascii else (_ASCII_WORD, _WORD)
            boundary = (before in words) != (following in words)
            return boundary == (check.place == "boundary")
