"""Match the regular expressions of rules in linear time, with one automaton for all patterns.

Python's `re` backtracks: a model that writes the text can make a rule such as `.*a.*b.*c` take hours. This module
therefore uses `re` only to check whether a pattern is valid and which characters a class matches. It parses each
pattern into instructions, and runs all patterns of a profile together as one deterministic automaton that is built
on demand.

A state is the set of instructions that may be active after the text so far. Each transition is computed once and
cached, so a known text costs one dictionary lookup per character. The length of the patterns limits the cost of a
new transition. Constructs that no automaton can run (backreferences, lookbehind, atomic groups) and patterns that
would become too large are rejected when the profile is loaded. docs/decisions/021-google-re2.md explains why Shoal
does not use RE2.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re

PATTERN_CHARS_MAX = 1000
PROGRAM_STEPS_MAX = 600
COUNTED_STEPS_MAX = 100
PLACES_KEPT_MAX = 200_000
PREFIXES_MAX = 64


class PatternRefused(ValueError):
    """Raised if a pattern cannot be used. The message gives the reason without the pattern."""


# ---- parsed patterns ----


class One(msgspec.Struct, frozen=True):
    """One literal character."""

    char: str


class Test(msgspec.Struct, frozen=True):
    """A character class. `chars` contains its characters if the pattern lists them one by one."""

    passes: Callable[[str], object]
    chars: str = ""


class Every(msgspec.Struct, frozen=True):
    pass


class Check(msgspec.Struct, frozen=True):
    """A zero-width assertion: `begin`, `end`, a word `boundary`, or `inside` (no boundary)."""

    place: Literal["begin", "end", "boundary", "inside"]
    ascii: bool

    def holds(self, before: int, following: int) -> bool:
        if self.place == "begin":
            return before == _AT_START
        if self.place == "end":
            return following == _AT_END
        words = (_ASCII_WORD,) if self.ascii else (_ASCII_WORD, _WORD)
        return ((before in words) != (following in words)) == (self.place == "boundary")


class Choice(msgspec.Struct, frozen=True):
    """Alternatives. A group without `|` has a single alternative."""

    options: "tuple[tuple[Node, ...], ...]"


class Repeat(msgspec.Struct, frozen=True):
    """At least `low` and at most `high` repetitions. None means no limit."""

    low: int
    high: int | None
    body: "Node"


class Look(msgspec.Struct, frozen=True):
    """A lookahead. If `wanted` is true, the following text must begin with a match of `ahead`. Otherwise it
    must not.
    """

    wanted: bool
    ahead: Choice


class Accept(msgspec.Struct, frozen=True):
    """The end of a pattern, which matches if the text ends here."""


Node: TypeAlias = One | Test | Every | Check | Choice | Repeat | Look

_FLAGS = {"i": re.IGNORECASE, "s": re.DOTALL, "x": re.VERBOSE, "a": re.ASCII, "u": re.UNICODE}
_TEST_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
_PLAIN = lazy_re.compile(r"[^\\.^$*+?{}\[\]|()]+")
_GROUP = lazy_re.compile(r"\((?:\?(P<[^>]*>|P=[^)]*\)|#[^)]*\)|\(|<?[=!]|>|[A-Za-z]*(?:-[A-Za-z]*)?[:)]))?")
_CLASS = lazy_re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_SPELLED_OUT = lazy_re.compile(r"\[((?!\^)-?(?:[^-\\]|\\[^A-Za-z0-9])*-?)\]", re.DOTALL)
_ESCAPE = lazy_re.compile(r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|0[0-7]{0,2}|[1-3][0-7]{2}|.)", re.DOTALL)
_QUANTIFIER = lazy_re.compile(r"([*+?]|\{(?!\})([0-9]*)(,?)([0-9]*)\})([?+]?)")
_IGNORED_IF_VERBOSE = lazy_re.compile(r"(?:[ \t\n\r\v\f]|#[^\n]*)*")
_REFUSED = {
    "P=": "has a backreference",
    "(": "has a conditional group",
    ">": "has an atomic group",
    "<=": "has a lookbehind",
    "<!": "has a lookbehind",
}


@lru_cache(maxsize=512)
def _test(source: str, flags: int) -> Callable[[str], object]:
    """Return a function that tests one character. The function uses `re`, so classes keep the same meaning."""
    return re.compile(source, flags & _TEST_FLAGS).fullmatch


class _Parser:
    """Parses a pattern that `re` has accepted. Raises PatternRefused for constructs that cannot be matched in
    linear time.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.moved = False  # Whether an unlimited repeat precedes this position.
        self.looking = False
        self.looks = 0

    def _take(self, form: re.Pattern[str]) -> re.Match[str] | None:
        match = form.match(self.pattern, self.at)
        self.at = match.end() if match is not None else self.at
        return match

    def choice(self, flags: int) -> Choice:
        options: list[tuple[Node, ...]] = []
        before, moved = self.moved, False
        while not options or self.pattern[self.at - 1 : self.at] == "|":
            self.moved = before
            options.append(self._sequence(flags))
            moved |= self.moved
            self.at += 1
        self.moved = moved
        return Choice(tuple(options))

    def _sequence(self, flags: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        looks = self.looks
        while True:
            if flags & re.VERBOSE:
                self._take(_IGNORED_IF_VERBOSE)
            elif not flags & re.IGNORECASE and (plain := self._take(_PLAIN)) is not None:
                nodes += map(One, plain[0])
                looks = self.looks
            char = self.pattern[self.at : self.at + 1]
            if char in ("", "|", ")"):
                return tuple(nodes)
            if nodes and char in "*+?{" and (quantifier := self._take(_QUANTIFIER)) is not None:
                if self.looks > looks:
                    raise PatternRefused(_LOOKS_TOO_LATE)
                nodes[-1] = self._repeat(nodes[-1], *quantifier.groups())
            else:
                looks = self.looks
                if (node := self._atom(char, flags)) is not None:
                    nodes.append(node)

    def _repeat(self, body: Node, sign: str, low: str, comma: str, high: str, mode: str) -> Repeat:
        if mode == "+":
            raise PatternRefused("it has a possessive quantifier, which cannot be matched in linear time")
        if sign in ("*", "+", "?"):
            repeat = Repeat(int(sign == "+"), 1 if sign == "?" else None, body)
        elif comma:
            repeat = Repeat(int(low or 0), int(high) if high else None, body)
        else:
            repeat = Repeat(int(low), int(low), body)
        self.moved |= repeat.high is None
        return repeat

    def _atom(self, char: str, flags: int) -> Node | None:
        if char == "(" and (match := self._take(_GROUP)) is not None:
            return self._group(match[1] or "", flags)
        if char == "[" and (match := self._take(_CLASS)) is not None:
            plain = None if flags & re.IGNORECASE else _SPELLED_OUT.fullmatch(match[0])
            return Test(_test(match[0], flags), re.sub(r"\\(.)", r"\1", plain[1], flags=re.DOTALL) if plain else "")
        if char == "\\" and (match := self._take(_ESCAPE)) is not None:
            return self._escape(match[0], flags)
        self.at += 1
        if char in "^$":
            return Check("begin" if char == "^" else "end", bool(flags & re.ASCII))
        if char == ".":
            return Every() if flags & re.DOTALL else Test(_test(".", 0))
        return Test(_test(re.escape(char), flags)) if flags & re.IGNORECASE else One(char)

    def _escape(self, source: str, flags: int) -> Node:
        kind = source[1]
        if kind in "dDsSwW":
            return Test(_test(source, flags))
        if kind in "AZz":
            return Check("begin" if kind == "A" else "end", bool(flags & re.ASCII))
        if kind in "bB":
            return Check("boundary" if kind == "b" else "inside", bool(flags & re.ASCII))
        if len(source) == 2 and kind in "123456789":
            raise PatternRefused("it has a backreference, which cannot be matched in linear time")
        char = source.encode().decode("unicode_escape") if kind.isascii() and kind.isalnum() else kind
        return Test(_test(re.escape(char), flags)) if flags & re.IGNORECASE else One(char)

    def _group(self, kind: str, flags: int) -> Node | None:
        if kind.startswith("#"):
            return None
        if (reason := _REFUSED.get(kind[:2] if kind[:1] in ("P", "<") else kind)) is not None:
            raise PatternRefused(f"it {reason}, which cannot be matched in linear time")
        if kind in ("=", "!"):
            if self.moved or self.looking:
                raise PatternRefused(_LOOKS_TOO_LATE)
            self.looks += 1
            self.looking = True
            ahead = self.choice(flags)
            self.looking = self.moved = False
            return Look(kind == "=", ahead)
        if not kind.startswith("P<"):
            on, _, off = kind[:-1].partition("-")
            if "m" in on or "L" in on:
                raise PatternRefused("the flags m and L are not supported")
            if kind.endswith(")"):
                return None  # Flags that apply to the whole pattern.
            if "u" in on or "a" in on:
                flags &= ~re.ASCII
            for flag in on:
                flags |= _FLAGS[flag]
            for flag in off:
                flags &= ~_FLAGS.get(flag, 0)
        return self.choice(flags)


_LOOKS_TOO_LATE = "it has a lookahead inside or after a quantifier; put (?!…) first, or write a deny pattern"


def _parse(pattern: str, flags: int) -> Choice:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternRefused(f"it is longer than {PATTERN_CHARS_MAX} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            flags = re.compile(pattern, flags).flags
        return _Parser(pattern).choice(flags)
    except Warning as warning:
        raise PatternRefused(f"a future Python version may interpret it differently: {warning}") from warning
    except re.error as error:
        raise PatternRefused(f"it is not a regular expression: {error}") from error
    except (RecursionError, OverflowError) as error:
        raise PatternRefused("it is nested too deeply or has too high a repeat count") from error


@lru_cache(maxsize=512)
def literal_prefixes(pattern: str) -> frozenset[str]:
    """Return the literal texts with which matches of a pattern begin, one per alternative.

    For example, `(sudo|doas) ls.*` has two. If a pattern has more than PREFIXES_MAX, the only prefix is an empty
    string. Raises PatternRefused.
    """
    prefixes, _ = _prefixes((_parse(pattern, 0),))
    return frozenset(prefixes)


def _prefixes(nodes: Sequence[Node]) -> tuple[set[str], bool]:
    literals = {""}
    for node in nodes:
        ends, whole = {""}, False
        if isinstance(node, One):
            ends, whole = {node.char}, True
        elif isinstance(node, Test) and node.chars:
            ends, whole = set(node.chars), True
        elif isinstance(node, Choice):
            options = [_prefixes(option) for option in node.options]
            ends, whole = {text for texts, _ in options for text in texts}, all(is_whole for _, is_whole in options)
        if len(literals) * len(ends) > PREFIXES_MAX:
            return {""}, False
        literals = {begin + end for begin in literals for end in ends}
        if not whole:
            return literals, False
    return literals, True


# ---- compiled patterns ----


class Instruction:
    """A node of the pattern with the number `pattern`, and the instructions that follow.

    An instruction without a node is a branch. `ahead` is the first instruction inside a lookahead.
    """

    __slots__ = ("ahead", "node", "onward", "pattern")

    def __init__(self, pattern: int, node: Node | Accept | None, *onward: "Instruction") -> None:
        self.pattern = pattern
        self.node = node
        self.onward = list(onward)
        self.ahead: Instruction | None = None


class _Compiler:
    """Compiles a pattern into instructions, from its end to its beginning."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0
        self.sees_places = False

    def step(self, node: Node | Accept | None, *onward: Instruction) -> Instruction:
        if self.steps >= PROGRAM_STEPS_MAX:
            raise PatternRefused(
                f"it expands to more than {PROGRAM_STEPS_MAX} steps; shorten it or lower its repeat counts"
            )
        self.steps += 1
        return Instruction(self.number, node, *onward)

    def build(self, node: Node, onward: Instruction) -> Instruction:
        match node:
            case Choice(options):
                starts: list[Instruction] = []
                for option in options:
                    start = onward
                    for part in reversed(option):
                        start = self.build(part, start)
                    starts.append(start)
                return starts[0] if len(starts) == 1 else self.step(None, *starts)
            case Repeat():
                return self._repeat(node, onward)
            case Look(ahead=ahead):
                self.sees_places = True
                steps, self.steps = self.steps, 0  # a lookahead has its own limit of steps
                start = self.build(ahead, self.build(Repeat(0, None, Every()), self.step(Accept())))
                self.steps = steps
                look = self.step(node, onward)
                look.ahead = start
                return look
            case _:
                self.sees_places |= isinstance(node, Check)
                return self.step(node, onward)

    def _repeat(self, node: Repeat, onward: Instruction) -> Instruction:
        end = onward
        if node.high is None:
            onward = self.step(None)
            onward.onward += [self.build(node.body, onward), end]
        begin = self.steps
        for number in range(node.low if node.high is None else node.high):
            if self.steps - begin > COUNTED_STEPS_MAX:  # every step may be active at each character of the text
                raise PatternRefused(
                    f"a counted quantifier in it expands to more than {COUNTED_STEPS_MAX} steps; use * or +"
                )
            before, onward = self.steps, self.build(node.body, onward)
            if node.high is not None and number < node.high - node.low:
                onward = self.step(None, onward, end)
            if self.steps == before:
                break
        return onward


# ---- matching ----

_AT_START, _OTHER, _WORD, _ASCII_WORD, _AT_END = range(5)

Promise: TypeAlias = "tuple[bool, State]"
"""A pending lookahead. The boolean is True for a positive lookahead. The state is its current position."""

Thread: TypeAlias = tuple[Instruction, frozenset[Promise]]
_FREE: frozenset[Promise] = frozenset()


class State:
    """A state of the automaton. `moves` is filled on demand. After a `dead` state, nothing can match."""

    __slots__ = ("accepted", "before", "core", "dead", "moves", "threads")

    def __init__(self, core: frozenset[Thread], before: int) -> None:
        self.core = core
        self.before = before
        self.dead = not core
        self.moves: dict[str, State] = {}
        self.threads: list[Thread] | None = None
        self.accepted: tuple[int, ...] | None = None


class Automaton:
    """Matches any number of patterns at once, in time linear in the length of the text.

    States are cached until they contain `PLACES_KEPT_MAX` instructions in total. This usually takes tens of kilobytes,
    and at worst tens of megabytes. The cache is then cleared.
    """

    def __init__(self) -> None:
        self._starts: list[Instruction] = []
        self._sees_places = False
        self._states: dict[tuple[frozenset[Thread], int], State] = {}
        self._kept_places = 0
        self._first = State(frozenset(), _AT_START)

    def add(self, pattern: str, *, dotall: bool = False) -> int:
        """Compile a pattern and return its number. Raises PatternRefused."""
        compiler = _Compiler(len(self._starts))
        try:
            tree = _parse(pattern, re.DOTALL if dotall else 0)
            self._starts.append(compiler.build(tree, Instruction(compiler.number, Accept())))
        except RecursionError as error:
            raise PatternRefused("it is nested too deeply") from error
        self._sees_places |= compiler.sees_places
        self._forget()
        return compiler.number

    def match(self, text: str) -> tuple[int, ...]:
        """Return the numbers of the patterns that match the complete text, in ascending order."""
        state = self._first
        for char in text:
            following = state.moves.get(char)
            state = self._move(state, char) if following is None else following
            if state.dead:
                return ()
        return self._accepted(state)

    def after(self, prefix: str) -> tuple[frozenset[int], frozenset[int]]:
        """Return the patterns that may match a text with this prefix, and those that match every text with this
        prefix.
        """
        state = self._first
        for char in prefix:
            state = state.moves.get(char) or self._move(state, char)
        alive = {
            step.pattern
            for step, promises in state.core
            # a negative lookahead that matches any further text
            if not any(not wanted and self._matching_all(ahead) for wanted, ahead in promises)
        }
        return frozenset(alive), self._matching_all(state)

    def _forget(self) -> None:
        self._states = {}
        self._kept_places = 0
        self._first = self._state(((start, _FREE) for start in self._starts), _AT_START)

    def _state(self, core: Iterable[Thread], before: int) -> State:
        key = (frozenset(core), before)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(*key)
        return state

    def _accepted(self, state: State) -> tuple[int, ...]:
        if state.accepted is None:
            steps = {
                step.pattern
                for step, promises in self._closure(state, _AT_END)
                if isinstance(step.node, Accept)
                and all(bool(self._accepted(ahead)) == wanted for wanted, ahead in promises)
            }
            state.accepted = tuple(sorted(steps))
        return state.accepted

    def _matching_all(self, state: State) -> frozenset[int]:
        """Return the patterns that match any further text, such as `.*` with a dot that matches every character."""
        steps: set[int] = set()
        here = {step for step, _ in self._closure(state, _AT_END)}
        for step, promises in self._closure(state, _OTHER):
            if isinstance(step.node, Every) and not promises:
                further = self._state([(step.onward[0], _FREE)], _OTHER)
                again = {step_again for step_again, _ in self._closure(further, _AT_END)}
                if step in again and any(isinstance(thread.node, Accept) for thread in again & here):
                    steps.add(step.pattern)
        return frozenset(steps)

    def _move(self, state: State, char: str) -> State:
        kind = _OTHER
        if char.isalnum() or char == "_":
            kind = _ASCII_WORD if char.isascii() else _WORD
        core: set[Thread] = set()
        for step, promises in self._closure(state, kind):
            node = step.node
            if isinstance(node, One):
                passes = node.char == char
            elif isinstance(node, Test):
                passes = node.passes(char) is not None
            else:
                passes = isinstance(node, Every)
            if passes and (left := self._advance(promises, char)) is not None:
                core.add((step.onward[0], left))
        if self._kept_places >= PLACES_KEPT_MAX:
            self._forget()
        following = self._state(core, kind if self._sees_places else _OTHER)
        state.moves[char] = following
        self._kept_places += 1 + len(core)
        return following

    def _advance(self, promises: frozenset[Promise], char: str) -> frozenset[Promise] | None:
        if not promises:
            return _FREE
        left: set[Promise] = set()
        for wanted, ahead in promises:
            following = ahead.moves.get(char) or self._move(ahead, char)
            if not following.dead:
                left.add((wanted, following))
            elif wanted:
                return None
        return frozenset(left)

    def _closure(self, state: State, following: int) -> Sequence[Thread]:
        """Return the consuming and accepting instructions that can be reached without consuming a character.

        `following` is the kind of the next character.
        """
        if state.threads is not None:
            return state.threads
        seen: set[Thread] = set()
        threads: list[Thread] = []
        stack = list(state.core)
        checked = False
        while stack:
            thread = stack.pop()
            if thread in seen:
                continue
            seen.add(thread)
            step, promises = thread
            node = step.node
            if node is None:
                stack += [(onward, promises) for onward in step.onward]
            elif isinstance(node, Check):
                checked = True
                if node.holds(state.before, following):
                    stack.append((step.onward[0], promises))
            elif isinstance(node, Look):
                assert step.ahead is not None
                ahead = self._state([(step.ahead, _FREE)], state.before)
                stack.append((step.onward[0], promises | {(node.wanted, ahead)}))
            else:
                threads.append(thread)
        if not checked:
            state.threads = threads
        return threads
