"""Replaying past checks under other rules, and suggesting rules from past approvals."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.kernel.permissions import Coverage, CoveredFile, Decision
from shoal.kernel.records import Approval, PastCheck
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.actions import action_of
from shoal.permissions.hindsight import ASKED_MIN, changed_decisions, suggestions
from shoal.permissions.profiles import Profiles, compile_profile, decide
from tests.known_tools import TRAITS

AT = datetime(2026, 1, 5, tzinfo=UTC)
THREAD = ThreadId("web:lobby:d")
STANDARD = Profiles(TRAITS).get("standard")


def check(action: str, decision: Decision, count: int = 1) -> PastCheck:
    return PastCheck(action, decision, count, THREAD, AT)


def allowed(*actions: str) -> Approval:
    return Approval(
        id=ApprovalId("a"),
        call_id=CallId("c"),
        tool="bash",
        actions=actions,
        digest="",
        shown="shown",
        asked_by="ada",
        expires_at=AT,
        thread=THREAD,
        turn=TurnId("t"),
        state="used",
        created_at=AT,
    )


def suggested(*approvals: Approval) -> list[tuple[str, ...]]:
    return [one.allow for one in suggestions(approvals, {THREAD: "main"}, {"main": STANDARD})]


def test_changed_decisions_are_sorted_by_frequency() -> None:
    rules = compile_profile("x", ProfileSettings(deny=(r"tool:write:.*",), allow=(r"tool:bash:git .*",), ask=(".*",)))
    checks = [
        check("tool:write:/workspace/a", "allow", 2),
        check("tool:bash:git pull", "ask", 9),
        check("tool:time", "ask"),
    ]
    found = changed_decisions(checks, rules)
    assert [(one.action, one.before, one.after, one.count) for one in found] == [
        ("tool:bash:git pull", "ask", "allow", 9),
        ("tool:write:/workspace/a", "allow", "deny", 2),
    ]
    assert found[1].rule == "deny tool:write:.*"


@given(st.lists(st.sampled_from(["tool:bash:git pull", "tool:bash:rm -rf /workspace/x", "tool:read:/workspace/a"])))
def test_the_same_rules_change_nothing(actions: list[str]) -> None:
    checks = [check(action, decide(STANDARD, action_of(action)).decision) for action in actions]
    assert changed_decisions(checks, STANDARD) == []


def test_an_always_allowed_action_is_suggested_exactly() -> None:
    (patterns,) = suggested(*[allowed("tool:bash:touch a.txt")] * ASKED_MIN)
    assert patterns == (r"tool:bash:touch a\.txt",)
    rules = compile_profile("x", ProfileSettings(allow=patterns))
    assert decide(rules, action_of("tool:bash:touch a.txt")).decision == "allow"
    assert decide(rules, action_of("tool:bash:touch a_txt")).decision == "deny"


@pytest.mark.parametrize(
    "other",
    [
        replace(allowed("tool:bash:touch a.txt"), state="expired"),
        replace(allowed("tool:bash:touch a.txt"), state="cancelled"),
        replace(allowed("tool:bash:touch a.txt"), state="pending"),
        replace(allowed("tool:bash:touch a.txt"), needs_trust=True),
        replace(allowed("tool:bash:touch a.txt"), reason="Untrusted content was read in this conversation."),
        replace(allowed("tool:bash:touch a.txt"), covers=Coverage(sends=True)),
    ],
)
def test_undecided_and_content_raised_approvals_do_not_affect_suggestions(
    other: Approval,
) -> None:
    (rule,) = suggestions(
        [*[allowed("tool:bash:touch a.txt")] * ASKED_MIN, *[other] * 9], {THREAD: "main"}, {"main": STANDARD}
    )
    assert rule.asked == ASKED_MIN
    assert suggested(*[allowed("tool:bash:touch a.txt")] * (ASKED_MIN - 1), *[other] * 9) == []


def test_a_git_command_is_suggested_only_if_it_covers_nothing_but_git_configuration() -> None:
    def pulled(*files: str, others: int = 0) -> Approval:
        covers = Coverage(
            tuple(CoveredFile(file, 1, "d") for file in files), others, "d", "it may run what git fetched"
        )
        return replace(allowed("tool:bash:git pull"), covers=covers)

    gits = "/workspace/.git/config", "/workspace/.git/hooks", "/home/ada/.gitconfig", "/home/ada/.config/git/config"
    assert suggested(*[pulled(*gits)] * ASKED_MIN) == [("tool:bash:git pull",)]
    assert suggested(*[pulled(*gits, "/workspace/hooks/pre-push")] * ASKED_MIN) == []
    assert suggested(*[pulled(*gits, others=1)] * ASKED_MIN) == []
    for action in ("tool:write:/workspace/.git/hooks/post-merge", "tool:write:/workspace/.git/config"):
        assert decide(STANDARD, action_of(action)).decision == "ask"


def test_a_single_denial_prevents_a_suggestion() -> None:
    no = replace(allowed("tool:bash:touch a.txt"), state="deny")
    assert suggested(*[allowed("tool:bash:touch a.txt")] * 9, no) == []
    assert suggested(*[allowed("tool:bash:touch a.txt")] * 9, replace(no, needs_trust=True)) == []


def test_rare_hidden_or_denied_actions_are_never_suggested() -> None:
    assert suggested(*[allowed("tool:bash:touch a.txt")] * (ASKED_MIN - 1)) == []
    assert suggested(*[allowed("tool:bash:sh -c 'touch a'")] * 9) == []
    denying = compile_profile("x", ProfileSettings(deny=(".*secret.*",), ask=(".*",)))
    asked = [allowed("tool:bash:touch secret")] * 9
    assert suggestions(asked, {THREAD: "main"}, {"main": denying}) == []
    assert suggestions(asked, {}, {"main": denying}) == []


@given(st.text(min_size=1, max_size=40))
def test_a_suggested_pattern_matches_only_its_own_action(detail: str) -> None:
    asks = compile_profile("x", ProfileSettings(ask=("(?s:.*)",)))
    text = f"tool:message:{detail}"
    for one in suggestions([allowed(text)] * ASKED_MIN, {THREAD: "main"}, {"main": asks}):
        assert all(re.fullmatch(pattern, text) and not re.fullmatch(pattern, f"{text}x") for pattern in one.allow)
