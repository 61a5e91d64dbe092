"""Rules: a pattern is either rejected with a reason or matches exactly what `re` matches, and profiles decide any
action.
"""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager

from shoal.kernel.permissions import Action
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.patterns import Automaton, PatternRefused
from shoal.permissions.profiles import Profile, decide, hidden
from tests.fuzz.target import Attempt

_SINGLE = list("ab.*+?()[]{}|^$\\1,-:!=<>sdwbAZ ")
_CHARS = [*_SINGLE, "(?:", "(?!", "(?=", "(?i:", "(?s:", ".*", "{2,3}", "[^", "\\b", "tool:"]


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def attempt(source: random.Random) -> None:
    pattern = "".join(source.choice(_CHARS) for _ in range(source.randint(1, 12)))
    automaton = Automaton()
    try:
        automaton.add(pattern)
    except PatternRefused:
        return
    text = "".join(source.choice("ab:1 -\nA") for _ in range(source.randint(1, 8)))
    if "\n" not in text and r"\B" not in pattern:
        matched = bool(automaton.match(text))
        assert matched == bool(re.fullmatch(pattern, text)), f"{pattern!r} on {text!r}: {matched}"
    profile = Profile("fuzzed", [ProfileSettings(deny=(pattern,), allow=(pattern,), ask=(".*",))])
    verdict = decide(profile, Action(text))
    assert verdict.decision in ("deny", "ask"), f"{pattern!r} on {text!r}: {verdict}"
    hidden(profile, "bash")
