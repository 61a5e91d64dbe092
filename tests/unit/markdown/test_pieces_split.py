"""Splitting text: nothing is lost, no part exceeds its limit, fences are closed, and no part is needlessly short."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.kernel.posts import ChatLimits
from shoal.markdown.pieces import TAIL_SHARE, pieces_of

line = st.one_of(
    st.text(alphabet="ab 漢字.!`~*_", max_size=120),
    st.sampled_from(["```python", "```", "~~~", "| a | b |", "", "- item", "x" * 300]),
)
markdown = st.lists(line, max_size=60).map("\n".join)


def split(text: str, chars_max: int) -> list[str]:
    return pieces_of(text, ChatLimits(chars_max))


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
@example("~~~_\n" + "x" * 300, 64)  # each part reopens the block with the same language
def test_pieces_fit_the_limit_and_keep_every_character(text: str, chars_max: int) -> None:
    pieces = split(text, chars_max)
    assert all(len(piece) <= chars_max for piece in pieces)
    counted = "".join(pieces)
    languages = "".join(re.findall(r"^(?:`{3,}|~{3,})([^\n`]*)$", text, re.MULTILINE))
    for character in set(text) - set("`~\n*_ -") - set(languages):  # a continued list repeats its marker
        assert counted.count(character) == text.count(character)


@given(st.text(alphabet="ab c.\n漢", max_size=3000), st.integers(64, 300))
def test_unfenced_pieces_join_to_the_text_except_line_ends_at_cuts(text: str, chars_max: int) -> None:
    pieces = split(text, chars_max)
    at = 0
    for piece in pieces:
        skipped = len(text[at:]) - len(text[at:].lstrip("\n"))
        at += 0 if text.startswith(piece, at) and not (at and skipped) else skipped
        assert text.startswith(piece, at)
        at += len(piece)
    assert text[at:].strip("\n") == ""


words = st.lists(st.text(alphabet="ab.", min_size=1, max_size=12), max_size=400)


@given(words.map(" ".join), st.integers(64, 300))
def test_no_part_is_a_short_tail(text: str, chars_max: int) -> None:
    pieces = split(text, chars_max)
    assert len(pieces) == 1 or len(pieces[-1]) >= chars_max // TAIL_SHARE - 2


@given(st.integers(64, 300), st.integers(1, 6), st.integers(0, 6))
def test_text_without_boundaries_makes_the_fewest_pieces(chars_max: int, whole: int, more: int) -> None:
    text = "x" * (chars_max * whole + more)
    assert len(split(text, chars_max)) == whole + bool(more)


@pytest.mark.parametrize("break_", ["\n\n", "\n", "\n\n\n"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_paragraphs_of_piece_length_make_one_piece_each(break_: str, count: int) -> None:
    paragraphs = [letter * 2000 for letter in "abcde"[:count]]
    assert [piece.strip() for piece in split(break_.join(paragraphs), 2000)] == paragraphs


@pytest.mark.parametrize("length", [2001, 2002, 2010, 2100, 4001])
def test_a_small_excess_does_not_become_a_separate_message(length: int) -> None:
    words = " ".join(["tide"] * (length // 5 + 1))[:length]
    for text in ("x" * length, words):
        pieces = split(text, 2000)
        assert len(pieces) == -(-length // 2000)
        assert len(pieces[-1]) >= 2000 // TAIL_SHARE - 5


def test_code_that_ends_at_the_cut_is_not_reopened() -> None:
    code = "x" * 100
    for after in ("", "\n", "\nDone.", "\n\nDone."):
        pieces = split(f"```python\n{code}\n```{after}", 114)
        assert pieces == [f"```python\n{code}\n```", *([after.strip()] if after.strip() else [])]


def test_code_that_begins_at_the_cut_leaves_no_empty_block() -> None:
    text = "Look at this, it is long enough to fill a piece:\n```python\n" + "x = 1\n" * 20 + "```"
    pieces = split(text, 64)
    assert pieces[0] == "Look at this, it is long enough to fill a piece:"
    assert pieces[1].startswith("```python\nx = 1\n")


def test_a_fence_within_a_fence_is_text() -> None:
    text = f"```\n{'x' * 80}\n```python\n{'y' * 80}\n```"
    first, second = split(text, 110)
    assert "x" * 80 in first
    assert second == f"```\n{'y' * 80}\n```"


@given(st.text(alphabet="`~ ax\n", max_size=600), st.integers(64, 200))
def test_any_fence_can_be_cut(text: str, chars_max: int) -> None:
    pieces = split(text, chars_max)
    assert all(len(piece) <= chars_max for piece in pieces)
    assert "".join(pieces).count("a") >= text.count("a")


@given(markdown, st.integers(100, 500))
def test_every_piece_but_the_last_closes_its_fences(text: str, chars_max: int) -> None:
    for piece in split(text, chars_max)[:-1]:
        assert not fences_open(piece)


def test_a_cut_fence_is_reopened_with_its_language() -> None:
    code = "\n".join(f"line {number}" for number in range(40))
    pieces = split(f"Look:\n```python\n{code}\n```\nDone.", 120)
    assert len(pieces) > 2
    assert all(piece.startswith("```python\n") for piece in pieces[1:-1])
    assert all(piece.endswith("\n```") for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("text", "first"),
    [("a" * 40 + "\n\n" + "b" * 40, "a" * 40), ("word " * 20, "word " * 13), ("x" * 100, "x" * 64)],
)
def test_the_cut_is_at_the_best_boundary(text: str, first: str) -> None:
    assert split(text, 64)[0].strip() == first.strip()
