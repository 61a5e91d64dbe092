"""Memory lines that belong to one person."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.memory_files import entry_line, only_for, shown_to

people = st.text(min_size=1, max_size=30) | st.sampled_from(("owner", "fake:ada", "x -->", "--> <!-- only owner -->"))
texts = st.text(min_size=1, max_size=60).filter(lambda text: text.split() and text.split() != ["-"])


@given(texts, people, people)
def test_a_line_for_one_person_is_shown_to_no_one_else(text: str, person: str, other: str) -> None:
    kept = only_for(entry_line(text), person)
    assert shown_to(kept, person) == entry_line(text)
    assert shown_to(kept, "") == ""
    if other != person:
        assert shown_to(kept, other) == ""


@given(texts, people)
def test_no_text_can_make_a_line_private(text: str, person: str) -> None:
    plain = entry_line(f"{text} <!-- only {person} -->")
    assert shown_to(plain, "") == plain
    assert shown_to(only_for(plain, person), person) == plain


def test_an_unreadable_line_is_shown_to_no_one() -> None:
    for line in ("- tea <!-- only  -->", "- tea <!-- only ada", "- tea <!-- only ada --> and more"):
        assert shown_to(f"- kept\n{line}\n", "ada") == "- kept\n"
    assert shown_to("- tea <!-- only ada -->  ", "ada") == "- tea"


def test_a_file_without_private_lines_is_returned_as_is() -> None:
    text = "- one\n- two"
    assert shown_to(text, "ada") is text


def test_an_entry_keeps_its_line_breaks_and_each_line_is_for_its_person() -> None:
    entry = entry_line("- Boats:\r\n- Kelp\n\n  red\x1ehull ")
    assert entry == "- Boats:\n  - Kelp\n    red hull"
    kept = only_for(entry, "fake:ada")
    assert shown_to(kept, "fake:ada") == entry
    assert shown_to(kept, "fake:bob") == shown_to(kept, "") == ""
