"""Rules built from choices match exactly those choices and have a description in words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.errors import InvalidInput
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.actions import action_of, shell_actions
from shoal.permissions.built_in import BUILT_IN, built_in
from shoal.permissions.profiles import compile_profile, decide, decide_all
from shoal.permissions.rule_words import RuleSubject, Subject, pattern_of, subject_of, words_of
from tests.known_tools import TRAITS

CASES: tuple[tuple[RuleSubject, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        RuleSubject("command", "'git'  status", beginning=True),
        "the command git status, with any arguments",
        ("tool:bash:git status", "tool:bash:git status -s", "tool:process_start:git status"),
        ("tool:bash:git statusx", "tool:bash:git push", "tool:write:git status"),
    ),
    (RuleSubject("command", "make"), "the command make", ("tool:bash:make",), ("tool:bash:make all",)),
    (
        RuleSubject("read", "notes/", beginning=True),
        "reading /workspace/notes and everything below it",
        ("tool:read:/workspace/notes", "tool:grep:/workspace/notes/a/b"),
        ("tool:read:/workspace/notes2", "tool:write:/workspace/notes/a"),
    ),
    (RuleSubject("write", "/etc/x.y"), "writing /etc/x.y", ("tool:edit:/etc/x.y",), ("tool:edit:/etc/xay",)),
    (
        RuleSubject("web", "https://example.org/", beginning=True),
        "the page https://example.org and everything below it",
        ("tool:read_url:https://example.org/", "tool:read_url:https://example.org/a"),
        ("tool:read_url:https://example.org.evil.net/", "tool:read_url:http://example.org/"),
    ),
    (
        RuleSubject("tool", "remind"),
        "everything the remind tool does",
        ("tool:remind:tomorrow\nat 9", "tool:remind"),
        ("tool:remindx:", "tool:bash:remind"),
    ),
    (
        RuleSubject("tool", "mcp_home_GetLiveContext"),
        "everything the mcp_home_GetLiveContext tool does",
        ("tool:mcp_home_GetLiveContext:{}", "tool:mcp_home_GetLiveContext"),
        ("tool:mcp_home_getlivecontext:{}",),
    ),
)


@pytest.mark.parametrize(("subject", "words", "matched", "others"), CASES)
def test_a_rule_matches_the_chosen_subject(
    subject: RuleSubject, words: str, matched: tuple[str, ...], others: tuple[str, ...]
) -> None:
    pattern = pattern_of(subject, TRAITS)
    rules = compile_profile("chosen", ProfileSettings(allow=(pattern,)))
    assert words_of(pattern, TRAITS) == words
    assert {decide(rules, action_of(text)).decision for text in matched} == {"allow"}
    assert {decide(rules, action_of(text)).decision for text in others} == {"deny"}
    found = subject_of(pattern, TRAITS)
    assert found is not None
    assert pattern_of(found, TRAITS) == pattern


@given(st.sampled_from(["command", "read", "write"]), st.text(min_size=1, max_size=40), st.booleans())
def test_choices_round_trip(what: Subject, text: str, beginning: bool) -> None:
    try:
        pattern = pattern_of(RuleSubject(what, text, beginning), TRAITS)
    except InvalidInput:
        return
    compile_profile("chosen", ProfileSettings(allow=(pattern,)))
    found = subject_of(pattern, TRAITS)
    assert found is not None
    assert pattern_of(found, TRAITS) == pattern


def test_a_rule_that_names_an_opaque_command_allows_it() -> None:
    rules = compile_profile(
        "chosen", ProfileSettings(allow=(pattern_of(RuleSubject("command", "sudo ls", True), TRAITS),))
    )
    assert decide_all(rules, shell_actions("bash", "sudo ls /x", cwd=Path("/workspace")))[0] == "allow"
    assert decide_all(rules, shell_actions("bash", "sudo rm /x", cwd=Path("/workspace")))[0] == "deny"


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (RuleSubject("command", "ls && rm x"), "covers one command"),
        (RuleSubject("command", "ls > out"), "covers one command"),
        (RuleSubject("command", "# nothing"), "covers one command"),
        (RuleSubject("read", "/workspace/../etc"), "cannot contain"),
        (RuleSubject("write", "/"), "Specify a file or a folder"),
        (RuleSubject("web", "example.org"), "not a URL"),
        (RuleSubject("tool", "ba(sh"), "not a tool name"),
    ],
)
def test_unsupported_actions_are_refused(subject: RuleSubject, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        pattern_of(subject, TRAITS)


def test_every_built_in_rule_has_a_description() -> None:
    for name in BUILT_IN:
        profile = built_in(name, TRAITS)
        for pattern in (*profile.deny, *profile.allow, *profile.ask):
            assert words_of(pattern, TRAITS), pattern
    assert words_of("tool:bash:(make|ls).*", TRAITS) == ""
