"""Output for a model: bounded, with the full text in a file, binary data described, and control characters visible."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.files import DIGEST_CHARS
from shoal.store.files import LocalFiles
from shoal.tools.output import (
    ARTIFACT_BYTES_MAX,
    BoundedOutput,
    OutputBounds,
    bound_output,
    bound_piece,
    is_binary,
    text_of,
    visible,
)

BOUNDS = OutputBounds(stored_chars_min=600, excerpt_chars_max=1000, piece_chars_max=1500)
NOTICE_CHARS_MAX = 400


def bound(text: str, folder: Path) -> BoundedOutput:
    return bound_output(text, BOUNDS, LocalFiles(folder / "artifacts").keep)


def stored(folder: Path, bounded: BoundedOutput) -> str:
    return LocalFiles(folder / "artifacts").read(bounded.artifact).decode()


def test_short_output_is_unchanged_and_creates_no_file(tmp_path: Path) -> None:
    assert bound("x" * 600, tmp_path) == BoundedOutput("x" * 600)
    assert not (tmp_path / "artifacts").exists()


def test_short_stored_output_is_shown_whole(tmp_path: Path) -> None:
    bounded = bound("x" * 601, tmp_path)
    assert bounded.text == f"{'x' * 601}\n[Stored as artifact {bounded.artifact}: 601 characters in 1 line.]"
    assert stored(tmp_path, bounded) == "x" * 601


def test_long_output_is_an_excerpt_with_the_whole_stored(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(5000))
    bounded = bound(text, tmp_path)
    assert bounded.artifact == hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
    assert bounded.size_bytes == len(text)
    assert stored(tmp_path, bounded) == text
    assert bounded.text.startswith("line 0\nline 1\n")
    assert "line 4999\n" in bounded.text
    assert "characters omitted" in bounded.text
    assert bounded.text.endswith(
        "[This is an excerpt of 48,890 characters in 5,000 lines. "
        f"The complete output is stored as artifact {bounded.artifact}: see read_artifact.]"
    )
    assert len(bounded.text) < BOUNDS.excerpt_chars_max + NOTICE_CHARS_MAX


def test_the_same_output_is_stored_once(tmp_path: Path) -> None:
    first, again = bound("y" * 5000, tmp_path), bound("y" * 5000, tmp_path)
    assert first == again
    assert len([path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]) == 1


def test_an_excerpt_may_cut_one_long_line_anywhere(tmp_path: Path) -> None:
    bounded = bound("a" * 600 + "b" * 1000 + "c" * 400, tmp_path)
    assert bounded.text.startswith("a" * 600 + "\n[… 1,000 characters omitted …]\n" + "c" * 400)


def test_output_of_50_megabytes_is_handled(tmp_path: Path) -> None:
    bounded = bound("0123456789" * 5_000_000, tmp_path)
    assert bounded.size_bytes == len(stored(tmp_path, bounded)) == ARTIFACT_BYTES_MAX
    assert f"The first {ARTIFACT_BYTES_MAX:,} bytes of the output are stored" in bounded.text
    assert len(bounded.text) < BOUNDS.excerpt_chars_max + NOTICE_CHARS_MAX


def test_an_oversized_piece_is_truncated_and_not_stored(tmp_path: Path) -> None:
    assert bound_piece("x" * 1500, BOUNDS) == BoundedOutput("x" * 1500)
    bounded = bound_piece("x" * 1501, BOUNDS)
    assert not bounded.artifact
    assert "Request a smaller part." in bounded.text


def test_a_failing_disk_is_reported(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file where the directory should be")
    with pytest.raises(NotADirectoryError):
        bound("x" * 2000, tmp_path)


def test_control_and_direction_characters_become_visible() -> None:
    assert visible("a\x1b[31mb\x00c\x7f\u202ed\u200b\ufeff\r") == r"a\x1b[31mb\x00c\x7f\u202ed\u200b\ufeff\x0d"
    assert visible("plain\ttext\nwith ünïcödé 👩‍👩‍👧\n") == "plain\ttext\nwith ünïcödé 👩‍👩‍👧\n"
    assert visible("one\r\ntwo\x07\r\n") == "one\ntwo\\x07\n"
    assert visible("\ud800") == r"\ud800"


@given(st.text())
def test_visible_text_is_encodable_and_stable(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert visible(shown) == shown
    assert not [character for character in shown if ord(character) < 32 and character not in "\t\n"]


def test_binary_data_is_not_shown_and_legacy_text_is_decoded() -> None:
    assert text_of(b"\x7fELF\0\0\0") == "[7 bytes of binary data, not shown]"
    assert text_of("grün".encode("latin-1") * 3) == "grüngrüngrün"
    assert text_of(b"mostly text with one \xff in it") == "mostly text with one \ufffd in it"
    assert text_of(b"") == ""
    assert not is_binary("текст".encode())
    assert not is_binary("é".encode() * 5000)
