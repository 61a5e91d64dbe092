"""Terminal output for people: quoting, wrapping, and approvals."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.kernel.events import ApprovalRequested
from shoal.kernel.ids import ApprovalId, CallId, CardId
from shoal.kernel.permissions import CardItem
from shoal.surfaces.cli.output import is_dumb, request_lines, worded, wrapped


def test_text_in_backticks_is_quoted() -> None:
    assert worded("Set `a.b` or `c`.") == "Set 'a.b' or 'c'."


@given(st.text(alphabet="`a\n '"), st.booleans())
@example('near "{`: null}". Correct it.', False)
def test_no_message_contains_a_backtick(text: str, colour: bool) -> None:
    assert "`" not in worded(text, colour=colour)


def test_an_overlong_line_continues_under_its_text() -> None:
    assert wrapped("home     Shoal runs at its address.", 24) == "home     Shoal runs at\n         its address."
    assert wrapped("  6  Another server", 12) == "  6  Another\n     server"


def test_a_command_is_not_wrapped() -> None:
    assert wrapped("Then run `shoal setup` again.", 18) == "Then run\n`shoal setup`\nagain."


@given(st.text(alphabet="ab `\n"), st.integers(0, 12))
def test_wrapping_changes_only_whitespace(text: str, columns: int) -> None:
    assert wrapped(text, columns).split() == text.split()
    assert all(
        len(line) <= columns or " " not in line.strip() or "`" in line for line in wrapped(text, columns).split("\n")
    )


@pytest.mark.parametrize(("terminal", "dumb"), [("dumb", True), (None, True), ("xterm-256color", False)])
def test_an_unknown_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch, terminal: str | None, dumb: bool) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if terminal is not None:
        monkeypatch.setenv("TERM", terminal)
    assert is_dumb() is dumb


def asked(number: int, *, staged: bool = False) -> list[str]:
    item = CardItem(CardId("C"), number, 2, why="I build, then test.", staged=staged)
    expires = datetime(2026, 3, 5, tzinfo=UTC)
    call = CallId(f"c{number}")
    return list(
        request_lines(ApprovalRequested(ApprovalId("a"), call, "bash", (), "make\nmake test", expires, item=item))
    )


def test_a_card_of_several_calls_states_the_reason_once_and_ends_with_the_choices() -> None:
    first, last = asked(1), asked(2)
    assert first[:2] == ["  The model says: “I build, then test.”", "  ? The agent asks to run call 1 of 2, bash:"]
    assert [line.split()[-1] for line in first[2:4]] == ["make", "test"]
    assert last[0] == "  ? The agent asks to run call 2 of 2, bash:"
    answer = "  Answer y for all 2, n for none, or choose: allow 1 2"
    assert (answer in first, last[-1]) == (False, answer)


def test_a_card_of_staged_calls_says_that_nothing_ran_yet() -> None:
    assert asked(2, staged=True)[0] == "  ? Not done yet, 2 of 2: bash"
    assert asked(2, staged=True)[-1] == "  Write `do all` to run all calls, `do 1 2` to run only those, or `discard`."
