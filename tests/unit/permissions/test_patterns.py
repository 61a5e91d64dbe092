"""Patterns match like `re`, but in linear time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.permissions.patterns import Automaton, PatternRefused, literal_prefixes

ATOMS = [
    "a", "b", ".", "[ab]", "[^a]", r"\b", r"\w", r"\d", r"\S", "^", "$", "(?:a|b)", "(ab)*", "(?:a|)", "a{0,2}", "b+",
    "(?i:A)", "x?", r"\Z", "(?:|b){3}", r"\B", "(?!ab)", "(?=a.)", "(?!.*b)", "(?s:.)", "a*?", "[a-c_]", r"\.", "é",
    r"(?a:\w)",
]  # fmt: skip


@st.composite
def patterns(draw: st.DrawFn) -> str:
    text = "".join(draw(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=5)))
    if draw(st.booleans()):
        text = f"(?:{text})" + draw(st.sampled_from(["", "*", "+", "?", "{2}", "a", "|b"]))
    return text


def matches(pattern: str, text: str, *, dotall: bool = False) -> bool:
    automaton = Automaton()
    automaton.add(pattern, dotall=dotall)
    return bool(automaton.match(text))


@settings(max_examples=400, deadline=None)
@given(patterns(), st.text("abA_ 0é\n.", min_size=1, max_size=7))
def test_a_pattern_matches_what_re_matches(pattern: str, text: str) -> None:
    try:
        found = matches(pattern, text)
    except PatternRefused:
        return
    if "$" in pattern and text.endswith("\n"):
        return  # in `re`, $ also matches before a final newline
    assert found == bool(re.fullmatch(pattern, text))


@settings(max_examples=100, deadline=None)
@given(st.lists(patterns(), min_size=1, max_size=6), st.text("ab A_\n", min_size=1, max_size=6))
def test_combined_patterns_match_like_single_ones(several: list[str], text: str) -> None:
    automaton = Automaton()
    kept: list[str] = []
    for pattern in several:
        try:
            Automaton().add(pattern)
        except PatternRefused:
            continue
        automaton.add(pattern)
        kept.append(pattern)
    alone = tuple(number for number, pattern in enumerate(kept) if matches(pattern, text))
    assert automaton.match(text) == alone


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not a regular expression"),
        ("[z-a]", "not a regular expression"),
        (r"(a)\1", "backreference"),
        (r"(a)?(?(1)b|c)", "conditional"),
        ("(?<=a)b", "has a lookbehind"),
        ("(?<!a)b", "has a lookbehind"),
        ("(?>a)", "atomic"),
        ("a*+b", "possessive"),
        (".*(?!x)", "has a lookahead"),
        ("(?:(?!x)a)*", "has a lookahead"),
        ("(?!(?!a)b)", "has a lookahead"),
        ("(?m)a", "flags"),
        ("[[a]", "future Python"),
        ("a{1000000}", "counted quantifier"),
        ("((((a{50}){50}){50}))", "counted quantifier"),
        ("a" * 1001, "longer than"),
        ("ab" * 301, "expands to more"),
        ("(" * 400 + "x" * 3 + ")" * 399, "regular expression|nested too deeply"),
    ],
)
def test_an_unsupported_pattern_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(PatternRefused, match=reason):
        Automaton().add(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+b", "a" * 30_000),
        ("(a|a)*b", "a" * 30_000),
        (".*x.*y.*z.*w", "xyz" * 10_000),
        ("(.*)(.*)(.*)b", "a" * 30_000),
        ("(?:(?:){65535}){65535}a", "a" * 3),
    ],
)
def test_patterns_that_are_slow_in_re_finish(pattern: str, text: str) -> None:
    assert not matches(pattern, text)


def test_evicting_states_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, forgetting = Automaton(), Automaton()
    for automaton in (kept, forgetting):
        automaton.add(".*a.{5}")
        automaton.add("b.*")
    for text in ("bbabbbbb", "abbbbb", "bab", "b", "", "aaaaaaaaaaaa"):
        found = kept.match(text)
        with monkeypatch.context() as patched:
            patched.setattr("shoal.permissions.patterns.PLACES_KEPT_MAX", 3)
            assert forgetting.match(text) == found


def test_a_dot_matches_a_newline_only_if_configured() -> None:
    assert not matches("a.b", "a\nb")
    assert matches("a.b", "a\nb", dotall=True)
    assert matches("(?s:a.b)", "a\nb")


@pytest.mark.parametrize(
    ("pattern", "prefixes"),
    [
        ("tool:bash:sudo ls.*", {"tool:bash:sudo ls"}),
        ("tool:bash:(sudo|doas|su) .*", {"tool:bash:sudo ", "tool:bash:doas ", "tool:bash:su "}),
        ("tool:bash:[ab]c", {"tool:bash:ac", "tool:bash:bc"}),
        ("tool:.*", {"tool:"}),
        ("(?i:tool):x", {""}),
        ("(?i)tool", {""}),
        ("(?s:.*)", {""}),
        ("ab?c", {"a"}),
        ("(a|b*)c", {"a", ""}),
        ("(a|b)(c|d)e", {"ace", "ade", "bce", "bde"}),
        ("(a|b|[c-d])x", {""}),
    ],
)
def test_the_literal_prefixes_of_a_pattern_are_found(pattern: str, prefixes: set[str]) -> None:
    found = literal_prefixes(pattern)
    assert found == prefixes or {""} == prefixes <= found


@settings(max_examples=150, deadline=None)
@given(patterns(), st.text("abA_ ", min_size=1, max_size=6))
def test_every_match_starts_with_a_literal_prefix(pattern: str, text: str) -> None:
    try:
        found = matches(pattern, text)
        prefixes = literal_prefixes(pattern)
    except PatternRefused:
        return
    if found:
        assert any(text.startswith(prefix) for prefix in prefixes)
