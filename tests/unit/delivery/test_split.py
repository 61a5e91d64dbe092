"""Splitting loses nothing, keeps to the limit and leaves no fence open."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.delivery.split import split_markdown

line = st.one_of(
    st.text(alphabet="ab 漢字.!`~*_", max_size=120),
    st.sampled_from(["```python", "```", "~~~", "| a | b |", "", "- item", "x" * 300]),
)
markdown = st.lists(line, max_size=60).map("\n".join)


def fences_open(text: str) -> bool:
    opened = ""
    for found in re.finditer(r"^(`{3,}|~{3,})([^\n`]*)$", text, re.MULTILINE):
        marker, info = found.group(1), found.group(2).strip()
        if not opened:
            opened = marker
        elif not info and marker[0] == opened[0] and len(marker) >= len(opened):
            opened = ""
    return bool(opened)


@given(markdown, st.integers(64, 500))
def test_pieces_are_short_enough_and_hold_every_character(text: str, chars_max: int) -> None:
    pieces = split_markdown(text, chars_max)
    assert all(len(piece) <= chars_max for piece in pieces)
    counted = "".join(pieces)
    for character in set(text) - set("`~\n") - set("python"):
        assert counted.count(character) == text.count(character)


@given(st.text(alphabet="ab c.\n漢", max_size=3000), st.integers(64, 300))
def test_without_fences_the_pieces_joined_are_the_text(text: str, chars_max: int) -> None:
    assert "".join(split_markdown(text, chars_max)) == text


@given(markdown, st.integers(100, 500))
def test_every_piece_but_the_last_closes_its_fences(text: str, chars_max: int) -> None:
    for piece in split_markdown(text, chars_max)[:-1]:
        assert not fences_open(piece)


def test_a_cut_fence_is_opened_again_with_its_language() -> None:
    code = "\n".join(f"line {number}" for number in range(40))
    pieces = split_markdown(f"Look:\n```python\n{code}\n```\nDone.", 120)
    assert len(pieces) > 2
    assert all(piece.startswith("```python\n") for piece in pieces[1:-1])
    assert all(piece.endswith("\n```") for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("text", "first"),
    [("a" * 40 + "\n\n" + "b" * 40, "a" * 40 + "\n\n"), ("word " * 20, "word " * 12), ("x" * 100, "x" * 64)],
)
def test_the_cut_is_at_the_best_boundary(text: str, first: str) -> None:
    assert split_markdown(text, 64)[0] == first
