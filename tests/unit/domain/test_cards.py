"""What a card shows of what would run: all of it, or as much as fits, and then that something is missing."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.cards import CARD_CHARS_MAX, card_edit, card_text
from shoal.domain.ids import ApprovalId, ThreadId


@given(st.text(min_size=0, max_size=300), st.integers(30, 100))
def test_a_long_text_is_shown_in_part_and_says_so(text: str, chars_max: int) -> None:
    shown = card_text("A1", text, chars_max)
    if len(text) <= chars_max:
        assert shown == text
        return
    cut, _, note = shown.rpartition("\n\n")
    begin, _, rest = cut.partition("\n… ")
    assert "`shoal approvals show A1`" in note
    assert text.startswith(begin[: chars_max // 3])
    assert text.endswith(rest[-(chars_max // 3) :])
    assert f"{len(text) - chars_max} characters are not shown here" in cut


def test_an_edited_card_is_no_longer_than_the_first_one() -> None:
    edit = card_edit(ThreadId("a:b:c"), ApprovalId("A1"), "x" * 100_000, "ran")
    assert edit.text.startswith("✅ Allowed; it ran.")
    assert len(edit.text) < CARD_CHARS_MAX + 300
