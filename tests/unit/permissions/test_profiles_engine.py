"""Properties that hold for every profile and every action."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernel.permissions import STRICTNESS, Action, Decision, Ruling
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.profiles import Profile, compile_profile, decide, decide_all, hidden, hidden_by

PATTERNS = [
    "tool:bash:.*", "tool:bash:ls.*", "tool:bash:rm .*", "tool:bash:sudo .*", "tool:.*", "(?s:.*)", "tool:read:.*",
    ".*", "tool:bash:(ls|rm).*", "tool:bash:ls", "tool:write:/workspace/.*", "tool:[a-z]+:.*", "(?s:tool:bash:.*)",
    "nothing",
]  # fmt: skip
TEXTS = [
    "tool:bash:ls", "tool:bash:ls -l", "tool:bash:rm x", "tool:bash:sudo ls", "tool:bash:", "tool:read:/x",
    "tool:time:", "tool:write:/workspace/a", "tool:write:/etc/a", "tool:bash:ls\nrm x", "", "nothing",
    "tool:bash:sudo",
]  # fmt: skip

lists = st.lists(st.sampled_from(PATTERNS), max_size=3).map(tuple)
sources = st.builds(ProfileSettings, deny=lists, allow=lists, ask=lists)
plain = st.builds(Action, st.sampled_from(TEXTS))
actions = st.builds(
    Action,
    st.sampled_from(TEXTS),
    opaque=st.booleans(),
    whole=st.booleans(),
    naming=st.sampled_from(["", "tool:bash:sudo"]),
    also=st.lists(st.sampled_from(TEXTS), max_size=1).map(tuple),
)


def profile(*layers: ProfileSettings) -> Profile:
    return Profile("test", layers)


def strictness(layers: tuple[ProfileSettings, ...], action: Action) -> int:
    return STRICTNESS[decide(profile(*layers), action).decision]


def strict(ruling: Ruling) -> int:
    return STRICTNESS[ruling.decision]


def test_the_order_is_deny_allow_ask_deny() -> None:
    everything = ("tool:x:.*",)
    assert (
        decide(profile(ProfileSettings(deny=everything, allow=everything, ask=everything)), Action("tool:x:y")).decision
        == "deny"
    )
    assert decide(profile(ProfileSettings(allow=everything, ask=everything)), Action("tool:x:y")).decision == "allow"
    assert decide(profile(ProfileSettings(ask=everything)), Action("tool:x:y")).decision == "ask"
    assert decide(profile(ProfileSettings()), Action("tool:x:y")).decision == "deny"


def test_the_rule_that_decided_is_named() -> None:
    found = profile(ProfileSettings(deny=("tool:a:.*",), allow=("tool:b:.*", "tool:.:.*"), ask=("tool:c:.*",)))
    assert decide(found, Action("tool:a:x")).rule == "deny tool:a:.*"
    assert decide(found, Action("tool:b:x")).rule == "allow tool:b:.*"
    assert decide(profile(ProfileSettings(ask=("tool:c:.*",))), Action("tool:c:x")).rule == "ask tool:c:.*"
    assert decide(found, Action("tool:cc:x")).rule == ""


def test_a_pattern_must_match_the_whole_action() -> None:
    found = profile(ProfileSettings(allow=("tool:bash:ls",)))
    assert decide(found, Action("tool:bash:ls")).decision == "allow"
    assert decide(found, Action("tool:bash:ls -l")).decision == "deny"
    assert decide(found, Action("xtool:bash:ls")).decision == "deny"


def test_allow_and_ask_do_not_match_across_lines_and_deny_does() -> None:
    text = Action("tool:bash:ls\nrm -rf x")
    assert decide(profile(ProfileSettings(allow=("tool:bash:ls.*",))), text).decision == "deny"
    assert decide(profile(ProfileSettings(ask=("tool:bash:ls.*",))), text).rule == ""
    denied = decide(profile(ProfileSettings(deny=("tool:bash:.*rm.*",), allow=("(?s:.*)",))), text)
    assert denied.rule == "deny tool:bash:.*rm.*"


@settings(max_examples=100, deadline=None)
@given(st.lists(sources, min_size=1, max_size=3), actions)
def test_every_action_gets_one_stable_decision(layers: list[ProfileSettings], action: Action) -> None:
    one, other = decide(profile(*layers), action), decide(profile(*layers), action)
    assert one == other
    assert one.decision in get_args(Decision)
    assert one.action == action.text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_without_rules_everything_is_denied(text: str) -> None:
    assert decide(profile(ProfileSettings()), Action(text)).decision == "deny"


@settings(max_examples=100, deadline=None)
@given(st.lists(sources, min_size=1, max_size=3), actions, st.sampled_from(PATTERNS), st.integers(0, 2))
def test_adding_a_deny_never_widens(layers: list[ProfileSettings], action: Action, pattern: str, place: int) -> None:
    place %= len(layers)
    more = msgspec.structs.replace(layers[place], deny=(*layers[place].deny, pattern))
    changed = (*layers[:place], more, *layers[place + 1 :])
    assert strictness(changed, action) >= strictness(tuple(layers), action)


@settings(max_examples=100, deadline=None)
@given(st.lists(sources, min_size=1, max_size=3), actions, st.sampled_from(PATTERNS), st.integers(0, 2))
def test_adding_an_allow_never_narrows(layers: list[ProfileSettings], action: Action, pattern: str, place: int) -> None:
    place %= len(layers)
    more = msgspec.structs.replace(layers[place], allow=(*layers[place].allow, pattern))
    changed = (*layers[:place], more, *layers[place + 1 :])
    assert strictness(changed, action) <= strictness(tuple(layers), action)


@settings(max_examples=100, deadline=None)
@given(st.lists(sources, min_size=1, max_size=3), actions)
def test_a_deny_of_any_layer_wins(layers: list[ProfileSettings], action: Action) -> None:
    for layer in layers:
        if decide(profile(ProfileSettings(deny=layer.deny)), action).rule:
            assert decide(profile(*layers), action).decision == "deny"


@settings(max_examples=100, deadline=None)
@given(sources, actions)
def test_an_opaque_action_is_never_freer_than_a_plain_one(source: ProfileSettings, action: Action) -> None:
    opaque, clear = (msgspec.structs.replace(action, opaque=value) for value in (True, False))
    assert strictness((source,), opaque) >= strictness((source,), clear)


@settings(max_examples=100, deadline=None)
@given(sources, st.lists(actions, max_size=4))
def test_the_strictest_part_wins(source: ProfileSettings, several: list[Action]) -> None:
    rules = profile(source)
    decision, rulings = decide_all(rules, several)
    parts = [decide(rules, action) for action in several if not action.whole]
    denied_views = [found for found in (decide(rules, a) for a in several if a.whole) if found.rule.startswith("deny ")]
    if parts:
        assert decision == max([*parts, *denied_views], key=strict).decision
    else:
        assert decision == "deny"
    assert sorted(rulings, key=repr) == sorted([*parts, *denied_views], key=repr)


def test_views_alone_never_allow() -> None:
    everything = profile(ProfileSettings(allow=("(?s:.*)",)))
    assert decide_all(everything, [])[0] == "deny"
    assert decide_all(everything, [Action("tool:bash:ls", whole=True)])[0] == "deny"
    assert decide_all(everything, [Action("tool:bash:ls", whole=True), Action("tool:bash:ls")])[0] == "allow"


def test_a_view_only_denies() -> None:
    rules = profile(ProfileSettings(deny=("tool:bash:.*evil.*",), allow=("tool:bash:ls",), ask=("tool:bash:.*",)))
    part = Action("tool:bash:ls")
    assert decide_all(rules, [part, Action("tool:bash:ls; pwd", whole=True)])[0] == "allow"
    decision, rulings = decide_all(rules, [part, Action("tool:bash:ls; evil", whole=True)])
    assert decision == "deny"
    assert rulings[1].rule == "deny tool:bash:.*evil.*"


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("tool:bash:.*", False),
        ("tool:bash:s.*", False),
        ("(?s:tool:bash:.*)", False),
        ("tool:bash:(.*)sudo.*", False),
        ("tool:bash:sud[o] .*", True),
        ("tool:bash:sudo ls", True),
        ("tool:bash:sudo .*", True),
        ("tool:bash:(sudo|doas) .*", True),
        ("tool:bash:(sudo|.*) ls", False),
        ("tool:bash:(.*|sudo) ls", False),
        ("tool:bash:(sudo|s)(.*| ls)", False),
        ("(?s:.*)", True),
    ],
)
def test_an_opaque_action_must_be_named(pattern: str, allowed: bool) -> None:
    action = Action("tool:bash:sudo ls", opaque=True, naming="tool:bash:sudo")
    rules = profile(ProfileSettings(allow=(pattern,)))
    assert decide(rules, action).decision == ("allow" if allowed else "deny")
    assert decide(rules, Action("tool:bash:sudo ls")).decision == "allow"


def test_an_opaque_action_without_a_name_must_be_spelled_out() -> None:
    action = Action("tool:bash:ls 'x", opaque=True)
    assert decide(profile(ProfileSettings(allow=("tool:bash:ls .*",))), action).decision == "deny"
    assert decide(profile(ProfileSettings(allow=("tool:bash:ls 'x",))), action).decision == "allow"


def test_an_ask_rule_covers_an_opaque_action_without_naming_it() -> None:
    action = Action("tool:bash:eval x", opaque=True, naming="tool:bash:eval")
    assert decide(profile(ProfileSettings(allow=(".*",), ask=(".*",))), action).decision == "ask"


def test_either_name_of_an_action_matches() -> None:
    action = Action("tool:bash:> /workspace/x", also=("tool:write:/workspace/x",))
    assert decide(profile(ProfileSettings(allow=("tool:write:/workspace/.*",))), action).decision == "allow"
    assert decide(profile(ProfileSettings(allow=("tool:bash:.*",))), action).decision == "allow"
    both = ProfileSettings(deny=("tool:write:/workspace/x",), allow=("tool:bash:.*",))
    assert decide(profile(both), action).rule == "deny tool:write:/workspace/x"


def test_the_nearest_layer_decides_first() -> None:
    asking, allowing = ProfileSettings(ask=("tool:x:.*",)), ProfileSettings(allow=("tool:x:.*",))
    assert decide(profile(asking, allowing), Action("tool:x:y")).decision == "ask"
    assert decide(profile(allowing, asking), Action("tool:x:y")).decision == "allow"


@pytest.mark.parametrize(
    ("source", "is_hidden"),
    [
        (ProfileSettings(), True),
        (ProfileSettings(allow=("tool:bash:ls",)), False),
        (ProfileSettings(ask=("tool:bash:ls",)), False),
        (ProfileSettings(ask=("tool:b.*",)), False),
        (ProfileSettings(trusted_allow=("tool:bash:.*",)), True),
        (ProfileSettings(allow=("tool:read:.*",)), True),
        (ProfileSettings(allow=("tool:bas:.*",)), True),
        (ProfileSettings(allow=(".*",), deny=("tool:bash:.*",)), True),
        (ProfileSettings(allow=(".*",), deny=("tool:ba.*",)), True),
        (ProfileSettings(allow=(".*",), deny=("tool:bash:r.*",)), False),
        (ProfileSettings(allow=(".*",), deny=("tool:bash:.+",)), False),
        (ProfileSettings(allow=(".*",), deny=("tool:bash:(?!ls).*",)), False),
        (ProfileSettings(allow=(".*",), deny=(".*x",)), False),
        (ProfileSettings(allow=("(?s:tool:(?!(ba|re)).*)",)), True),
        (ProfileSettings(allow=("(?s:tool:(?!bash:r).*)",)), False),
        (ProfileSettings(allow=("tool:(?!.*h:.*x).*",)), False),
    ],
)
def test_a_tool_is_hidden_when_all_its_actions_are_denied(source: ProfileSettings, is_hidden: bool) -> None:
    assert hidden(profile(source), "bash") is is_hidden


def test_a_tool_denied_by_one_profile_is_hidden() -> None:
    open_to_all = profile(ProfileSettings(allow=(".*",)))
    closed = profile(ProfileSettings(allow=(".*",), deny=("tool:bash:.*",)))
    hides = hidden_by((open_to_all, closed))
    assert (hides("bash"), hides("read")) == (True, False)
    assert hides is hidden_by((open_to_all, closed))


@settings(max_examples=100, deadline=None)
@given(sources, st.sampled_from(TEXTS))
def test_a_hidden_tool_is_denied(source: ProfileSettings, text: str) -> None:
    rules = profile(source)
    tool = text.removeprefix("tool:").split(":")[0]
    if text.startswith("tool:") and hidden(rules, tool):
        assert decide(rules, Action(text)).decision == "deny"


def test_a_profile_is_compiled_from_its_source() -> None:
    assert compile_profile("mine", ProfileSettings(allow=("x",))).matching("x")[0].shown == "allow x"
