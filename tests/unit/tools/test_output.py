"""Output for a model: bounded with the whole in a file, binary named, control characters visible."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.errors import ToolError
from shoal.tools.jail import FILE_BYTES_MAX
from shoal.tools.output import BoundedOutput, OutputBounds, bound_output, is_binary, text_of, visible

BOUNDS = OutputBounds(chars_max=1000)
NOTICE_CHARS_MAX = 400


def bound(text: str, folder: Path, call_id: str = "c1") -> BoundedOutput:
    """Bounded to 1000 characters."""
    return bound_output(text, folder / "scratch", call_id, BOUNDS, lambda path: f"/scratch/{path.name}")


def test_short_output_is_itself_and_makes_no_file(tmp_path: Path) -> None:
    assert bound("x" * 1000, tmp_path) == BoundedOutput("x" * 1000)
    assert not (tmp_path / "scratch").exists()


def test_long_output_is_an_excerpt_with_the_whole_in_a_file(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(5000))
    bounded = bound(text, tmp_path)
    assert bounded.artifact == "/scratch/output-c1.txt"
    assert (tmp_path / "scratch" / "output-c1.txt").read_text() == text
    assert bounded.text.startswith("line 0\nline 1\n")
    assert "line 4999\n" in bounded.text
    assert "characters left out" in bounded.text
    assert bounded.text.endswith(
        "[The output has 48,890 characters in 5,000 lines; all of it is in /scratch/output-c1.txt. This is an excerpt.]"
    )
    assert len(bounded.text) < BOUNDS.chars_max + NOTICE_CHARS_MAX


def test_an_excerpt_of_one_long_line_is_cut_anywhere(tmp_path: Path) -> None:
    bounded = bound("a" * 600 + "b" * 1000 + "c" * 400, tmp_path)
    assert bounded.text.startswith("a" * 600 + "\n[… 1,000 characters left out …]\n" + "c" * 400)


def test_50_megabytes_are_taken(tmp_path: Path) -> None:
    bounded = bound("0123456789" * 5_000_000, tmp_path)
    assert (tmp_path / "scratch" / "output-c1.txt").stat().st_size == FILE_BYTES_MAX
    assert f"the first {FILE_BYTES_MAX:,} bytes of it are in" in bounded.text
    assert len(bounded.text) < BOUNDS.chars_max + NOTICE_CHARS_MAX


def test_a_call_id_cannot_name_another_file(tmp_path: Path) -> None:
    bounded = bound("x" * 2000, tmp_path, call_id="../../../etc/x\0" + "y" * 500)
    assert [path.parent for path in (tmp_path / "scratch").iterdir()] == [tmp_path / "scratch"]
    assert bounded.artifact.startswith("/scratch/output-_etc_x_yyy")


def test_a_link_planted_in_the_scratch_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "scratch" / "output-c1.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ToolError):
        bound("x" * 2000, tmp_path)
    assert (tmp_path / "secret").read_text() == "secret"


def test_control_and_direction_characters_become_visible() -> None:
    assert visible("a\x1b[31mb\x00c\x7f\u202ed\u200b\ufeff\r") == r"a\x1b[31mb\x00c\x7f\u202ed\u200b\ufeff\x0d"
    assert visible("plain\ttext\nwith ünïcödé 👩‍👩‍👧\n") == "plain\ttext\nwith ünïcödé 👩‍👩‍👧\n"
    assert visible("one\r\ntwo\x07\r\n") == "one\ntwo\\x07\n"
    assert visible("\ud800") == r"\ud800"


@given(st.text())
def test_what_is_visible_can_be_written_and_stays_so(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert visible(shown) == shown
    assert not [character for character in shown if ord(character) < 32 and character not in "\t\n"]


def test_binary_is_named() -> None:
    assert text_of(b"\x7fELF\0\0\0") == "[7 bytes of binary data, not shown]"
    assert text_of("grün".encode("latin-1") * 3) == "[12 bytes of binary data, not shown]"
    assert text_of(b"mostly text with one \xff in it") == "mostly text with one \ufffd in it"
    assert text_of(b"") == ""
    assert not is_binary("текст".encode())
    assert not is_binary("é".encode() * 5000)
