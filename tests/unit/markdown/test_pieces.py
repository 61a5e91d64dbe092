"""Cutting text: open blocks are closed and reopened, and no link, emoji or letter is split."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects import DIALECTS

from shoal.kernel.posts import ChatLimits
from shoal.markdown.pieces import pieces_of
from shoal.markdown.render import render_markup, rendered_length

DIALECT = DIALECTS["matrix"]
word = st.sampled_from(["low", "潮汐", "🦈", "pier", "https://docs.example/a_b_c", "pkg/__init__.py", "end."])
words = st.lists(word, min_size=1, max_size=30).map(" ".join)
block = st.one_of(
    words,
    words.map("**{}**".format),
    words.map(lambda text: f"- {text}\n  - {text}\n- {text}"),
    words.map(lambda text: f"> {text}\n> {text}"),
    words.map(lambda text: f"```python\n{text}\n{text}\n```"),
)


def split(text: str, chars: int = 100) -> list[str]:
    return pieces_of(text, ChatLimits(chars))


def visible(markdown: str) -> str:
    return re.sub(r"[\s•`>\u200b]|python", "", render_markup(markdown, DIALECTS["plain"]))


@given(st.lists(block, min_size=1, max_size=5).map("\n\n".join), st.integers(80, 400))
def test_pieces_preserve_the_text(text: str, chars: int) -> None:
    assert "".join(map(visible, split(text, chars))) == visible(text)


@pytest.mark.parametrize(
    "whole",
    [
        "👨‍👩‍👧‍👦",
        "👍🏽",
        "🇩🇪",
        "e\u0301",
        "क्षि",
        "\u1112\u1161\u11ab",
        "1\ufe0f\u20e3",
        "กำ",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)
@pytest.mark.parametrize("shift", range(8))
def test_no_cut_splits_a_grapheme(whole: str, shift: int) -> None:
    pieces = split("x" * shift + whole * 60, 64)
    assert len(pieces) > 1
    assert "".join(pieces) == "x" * shift + whole * 60
    assert all(piece.endswith(whole) for piece in pieces)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("**", "**"), ("*", "*"), ("~~", "~~"), ("[", "](https://docs.example/a_\\(b\\))"), ("`", "`")],
)
def test_open_markup_is_reopened_after_a_cut(opening: str, closing: str) -> None:
    inner = " ".join(f"w{number}" for number in range(60))
    for piece in split(f"{opening}{inner}{closing}"):
        assert piece.strip().startswith(opening)
        assert len(render_markup(piece, DIALECT)) > len(render_markup(piece.strip("*~`"), DIALECT)) - 1


def test_a_link_is_moved_whole() -> None:
    link = "[the tide table](https://docs.example/tides_of_today)"
    for length in range(20, 100, 5):
        pieces = split("w " * (length // 2) + link)
        assert any(link in piece for piece in pieces)


@pytest.mark.parametrize("markup", DIALECTS)
def test_an_address_longer_than_a_message_is_cut_into_pieces_that_fit(markup: str) -> None:
    limits = ChatLimits(text_chars_max=400, markup=DIALECTS[markup])
    pieces = pieces_of(f"See http://host/{'x' * 700}", limits)
    assert all(rendered_length(piece, limits) <= 400 for piece in pieces)
    assert "".join(pieces).count("x") == 700


def test_a_table_repeats_its_header() -> None:
    pieces = split("| tide | at |\n|---|---|\n" + "\n".join(f"| t{number} | {number} |" for number in range(20)))
    assert len(pieces) > 2
    assert all(piece.startswith("| tide | at |\n|---|---|\n") for piece in pieces)


@pytest.mark.parametrize(
    "whole", ["👨‍👩‍👧‍👦", "🇩🇪", "क्षि", "[the pier](https://x.example/a_b)", "`ls -l`", "lighthouse"]
)
@pytest.mark.parametrize("shift", range(6))
def test_an_oversized_cell_is_cut_between_graphemes(whole: str, shift: int) -> None:
    apart = " " if whole.isascii() else ""
    cell = "x" * shift + apart + apart.join([whole] * 40)
    pieces = split(f"| key | value |\n|---|---|\n| a | {cell} |\n| b | end |", 120)
    assert len(pieces) > 1
    assert all(piece.startswith("| key | value |\n|---|---|\n") for piece in pieces)
    assert sum(piece.count(whole) for piece in pieces) == 40
    assert len(pieces) < 2 * (len(cell) // 120 + 40)


def test_lists_continue_their_numbers_and_fences_their_language() -> None:
    text = "\n".join(f"{number}. item {number}\n\n   ```py\n   x = {number}\n   ```" for number in range(7, 15))
    pieces = split(text)
    assert "".join(map(visible, pieces)) == visible(text)
    assert all("```py\n" in piece for piece in pieces)


def test_a_continued_item_has_no_second_bullet() -> None:
    first, second, *_ = split("- " + "word " * 60)
    assert render_markup(first, DIALECTS["telegram"]).startswith("• word")
    assert render_markup(second, DIALECTS["telegram"]).startswith("  word")


@pytest.mark.parametrize("part", ["[", "*a ", "_a", "> ", "- ", "|a", "\n", "x", "🇩🇪", "`", "a\u0301\u0301"])
def test_any_text_can_be_cut(part: str) -> None:
    text = part * (6_000 // len(part))
    pieces = split(text, 1000)
    assert all(len(piece) <= 1000 for piece in pieces)
