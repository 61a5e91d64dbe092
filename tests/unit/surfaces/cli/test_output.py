"""What is printed for a person."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.surfaces.cli.output import is_dumb, worded, wrapped


def test_what_stands_in_backticks_is_quoted() -> None:
    assert worded("Set `a.b` or `c`.") == "Set 'a.b' or 'c'."


@given(st.text(alphabet="`a\n '"), st.booleans())
@example('near "{`: null}". Correct it.', False)
def test_a_message_has_no_backtick_whatever_it_tells_of(text: str, colour: bool) -> None:
    assert "`" not in worded(text, colour=colour)


def test_a_line_that_is_too_wide_goes_on_under_its_text() -> None:
    assert wrapped("home     Shoal runs at its address.", 24) == "home     Shoal runs at\n         its address."
    assert wrapped("  6  Another server", 12) == "  6  Another\n     server"


def test_a_command_is_not_broken() -> None:
    assert wrapped("Then run `shoal setup` again.", 18) == "Then run\n`shoal setup`\nagain."


@given(st.text(alphabet="ab `\n"), st.integers(0, 12))
def test_wrapping_changes_nothing_but_space(text: str, columns: int) -> None:
    assert wrapped(text, columns).split() == text.split()
    assert all(
        len(line) <= columns or " " not in line.strip() or "`" in line for line in wrapped(text, columns).split("\n")
    )


@pytest.mark.parametrize(("terminal", "dumb"), [("dumb", True), (None, True), ("xterm-256color", False)])
def test_a_terminal_that_names_no_kind_gets_plain_text(
    monkeypatch: pytest.MonkeyPatch, terminal: str | None, dumb: bool
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if terminal is not None:
        monkeypatch.setenv("TERM", terminal)
    assert is_dumb() is dumb
