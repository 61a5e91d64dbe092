"""Matches a text with many patterns at once, in one step a character: a deterministic automaton, built as it is used.

A state is the set of places in the patterns' programs that the text so far can have led to. The move from a state by a
character is computed once and kept, so a known text costs one dictionary look-up a character. The cost of a move that
is not kept yet is bounded by the programs' length; there is no backtracking, so no text can make a pattern slow.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from shoal.permissions.pattern import Accept, Check, Every, Fork, Look, One, Program, Test

PLACES_KEPT_MAX = 200_000

_START, _OTHER, _WORD, _ASCII_WORD, _END = range(5)

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

    def start(self, before: int = _START) -> State:
        """The state before the first character."""
        core = frozenset((start, _FREE) for start in self._program.starts)
        return self._state(core, before)

    def accepted(self, state: State) -> tuple[int, ...]:
        """The patterns that match if the text ends here."""
        if state.accepted is None:
            found: set[int] = set()
            for place, promises in self._closure(state, _END):
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
            again = {at for at, _ in self._closure(self._state(frozenset({(place + 1, _FREE)}), _OTHER), _END)}
            here = {at for at, _ in self._closure(state, _END)}
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
            return before == _START
        case "end":
            return following == _END
        case _:
            words = (_ASCII_WORD,) if check.ascii else (_ASCII_WORD, _WORD)
            boundary = (before in words) != (following in words)
            return boundary == (check.place == "boundary")
