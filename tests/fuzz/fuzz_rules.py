"""Patterns are refused with a reason or match what `re` matches; profiles answer whatever the action is."""

import random
import re
import time

from shoal.domain.permissions import Action
from shoal.permissions.automaton import Automaton
from shoal.permissions.engine import decide, hidden
from shoal.permissions.pattern import PatternRefused, Program
from shoal.permissions.rules import Profile, ProfileSource

_SINGLE = list("ab.*+?()[]{}|^$\\1,-:!=<>sdwbAZ ")
_CHARS = [*_SINGLE, "(?:", "(?!", "(?=", "(?i:", "(?s:", ".*", "{2,3}", "[^", "\\b", "tool:"]


def run(seconds: float, seed: int) -> str:
    """Try random patterns. Raises AssertionError with a pattern and a text on which the two engines differ."""
    source = random.Random(seed)
    until = time.monotonic() + seconds
    tried = compared = 0
    while time.monotonic() < until:
        pattern = "".join(source.choice(_CHARS) for _ in range(source.randint(1, 12)))
        tried += 1
        program = Program()
        try:
            program.add(pattern)
        except PatternRefused:
            continue
        text = "".join(source.choice("ab:1 -\nA") for _ in range(source.randint(1, 8)))
        if "\n" not in text and r"\B" not in pattern:
            compared += 1
            matched = bool(Automaton(program).match(text))
            assert matched == bool(re.fullmatch(pattern, text)), f"{pattern!r} on {text!r}: {matched}"
        profile = Profile("fuzzed", [ProfileSource(deny=(pattern,), allow=(pattern,), ask=(".*",))])
        found = decide(profile, Action(text))
        assert found.decision in ("deny", "ask"), f"{pattern!r} on {text!r}: {found}"
        hidden(profile, "bash")
    return f"{tried} patterns, {compared} compared with re"
