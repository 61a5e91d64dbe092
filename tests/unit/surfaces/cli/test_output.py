"""What is printed for a person."""

from hypothesis import example, given
from hypothesis import strategies as st

from shoal.surfaces.cli.output import worded


def test_what_stands_in_backticks_is_quoted() -> None:
    assert worded("Set `a.b` or `c`.") == "Set 'a.b' or 'c'."


@given(st.text(alphabet="`a\n '"), st.booleans())
@example('near "{`: null}". Correct it.', False)
def test_a_message_has_no_backtick_whatever_it_tells_of(text: str, colour: bool) -> None:
    assert "`" not in worded(text, colour=colour)
