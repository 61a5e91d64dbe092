"""Approvals: bound to one action, displayed faithfully, and decided only by approvers."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId
from shoal.kernel.permissions import Asker, Trust
from shoal.kernel.records import Approval
from shoal.permissions.access import approval_digest, may_decide
from shoal.text.shown import strip_controls

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
APPROVAL = Approval(
    id=ApprovalId("a1"),
    thread=ThreadId("slack:c:t"),
    turn=TurnId("t1"),
    call_id=CallId("c1"),
    tool="bash",
    actions=("tool:bash:ls",),
    digest="d",
    shown="ls",
    asked_by="ann",
    state="pending",
    created_at=NOW,
    expires_at=NOW,
)


def test_a_digest_changes_with_everything_it_covers() -> None:
    digests = {
        approval_digest("bash", "{}", "main"),
        approval_digest("bash", "{}", "other"),
        approval_digest("bash", "{} ", "main"),
        approval_digest("bash", "{}"),
        approval_digest("bash", "{}", "ma", "in"),
        approval_digest("bas", "h{}", "main"),
        approval_digest("bash", '{}","main'),
    }
    assert len(digests) == 7
    assert approval_digest("bash", "{}", "main") == approval_digest("bash", "{}", "main")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm -rf x", "rm -rf x"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", "\\u{1b}[31mred\\u{1b}[0m"),
        ("rm x\x1b -rf ~", "rm x\\u{1b} -rf ~"),
        ("echo\x1b[;curl evil.example", "echo\\u{1b}[;curl evil.example"),
        ("r\u180bm\u180f", "r\\u{180b}m\\u{180f}"),
        ("a\U0001d159b\U00016fe4", "a\\u{1d159}b\\u{16fe4}"),
        ("e\u0302\u0301" + "\u0336" * 4, "e\u0302\u0301\u0336\u0336" + "\\u{336}" * 2),
        ("ls\x08\x08rm", "ls\\u{8}\\u{8}rm"),
        ("safe\rrm -rf", "safe\\u{d}rm -rf"),
        ("\x1b]0;title\x07x", "\\u{1b}]0;title\\u{7}x"),
        ("a\u202eb", "a\\u{202e}b"),
        ("a\u200bb\u2060c", "a\\u{200b}b\\u{2060}c"),
        ("r\u00adm", "r\\u{ad}m"),
        ("\x9b31mx", "\\u{9b}31mx"),
        ("x\u2028y\u00a0z\u3164", "x\\u{2028}y\\u{a0}z\\u{3164}"),
        ("\U000e0041", "\\u{e0041}"),
        ("größe 値 😀", "größe 値 😀"),
        ("\ud800", "\\u{d800}"),
        ("\x00", "\\u{0}"),
    ],
)
def test_the_displayed_action_hides_nothing(text: str, shown: str) -> None:
    assert strip_controls(text) == shown


@given(st.text())
def test_invisible_characters_become_visible(text: str) -> None:
    shown = strip_controls(text)
    assert all(char in "\n\t" or char.isprintable() for char in shown)
    assert strip_controls(shown) == shown


@pytest.mark.parametrize(
    ("by", "approvers", "allowed"),
    [
        (Asker(trust="trusted", user="ann", platform="slack"), (), True),
        (Asker(trust="trusted", user="bob", platform="slack"), (), False),
        (Asker(trust="trusted", user="ann", platform="telegram"), (), False),
        (Asker(trust="trusted", user="", platform="slack"), ("slack:",), False),
        (Asker(trust="trusted", user="bob", platform="slack"), ("slack:bob",), True),
        (Asker(trust="trusted", user="bob", platform="telegram"), ("slack:bob",), False),
        (Asker(trust="trusted", user="bob", platform="slack", roles=("ops",)), ("role:ops",), True),
        (Asker(trust="trusted", user="bob", platform="slack", roles=("ops",)), ("slack:role:ops",), True),
        (Asker(trust="trusted", user="bob", platform="discord", roles=("ops",)), ("slack:role:ops",), False),
        (Asker(trust="trusted", user="bob", platform="slack"), ("role:ops",), False),
        (Asker(trust="trusted", user="role:ops", platform="slack"), ("role:ops",), False),
        (Asker(trust="trusted", user="olga", platform="web"), ("web:olga",), True),
        (Asker(trust="trusted", user="olga", platform="slack"), ("web:olga",), False),
        (Asker(trust="trusted"), (), False),
        (Asker(trust="trusted"), ("", ":"), False),
    ],
)
def test_the_asker_the_owner_and_approvers_may_decide(by: Asker, approvers: tuple[str, ...], allowed: bool) -> None:
    assert may_decide(APPROVAL, by, approvers) is allowed


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("trust", ["untrusted", "trusted"])
def test_an_untrusted_person_cannot_allow_calls_raised_by_untrusted_content(
    trust: Trust, *, allow: bool, raised: bool
) -> None:
    approval = msgspec.structs.replace(APPROVAL, needs_trust=raised)
    asker = Asker(trust=trust, user="ann", platform="slack")
    assert may_decide(approval, asker, allow=allow) is not (raised and allow and trust == "untrusted")
    assert may_decide(approval, asker, ("slack:ann",), allow=allow)


def test_the_asker_may_decide_from_a_linked_platform() -> None:
    approval = msgspec.structs.replace(APPROVAL, asked_by="telegram:4711")
    assert may_decide(approval, Asker(trust="trusted", user="4711", platform="telegram"))
    assert not may_decide(approval, Asker(trust="trusted", user="4711", platform="slack"))


@pytest.mark.parametrize("char", ["\ufe00", "\ufe07", "\ufe0f", "\U000e0100", "\U000e0155", "\U000e01ef"])
def test_variation_selectors_are_shown_by_name(char: str) -> None:
    assert strip_controls(f"a{char}b") == f"a\\u{{{ord(char):x}}}b"
    assert strip_controls("a\ufe10b") == "a\ufe10b"
