"""A command's output as a terminal would finally show it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tools.output import OutputBounds, bound_output
from shoal.tools.terminal import last_state


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain  \n\ttext\r\n", "plain  \n\ttext\r\n"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("100%\rok", "ok0%"),
        ("100%\r\x1b[Kok", "ok"),
        ("\x1b[1;31mred\x1b[0m x", "red x"),
        ("one\ntwo\n\x1b[2A\x1b[2KONE\n\x1b[2KTWO\n", "ONE\nTWO\n"),
        ("pull a\npull b\x1b[1F\x1b[2Kdone a\x1b[1E\x1b[2Kdone b\n", "done a\ndone b\n"),
        ("ab\bc", "ac"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("⠋ wait\r⠙ wait\r✔ ready\n", "✔ ready\n"),
        ("a\n\x1b[1A\x1b[Jnew", "new"),
        ("cut\x1b[", "cut"),
        ("x\x1b[99999999999Cy", "x y"),
    ],
)
def test_only_the_last_terminal_state_is_kept(written: str, shown: str) -> None:
    assert last_state(written) == shown


@given(st.text())
def test_text_without_sequences_is_unchanged(text: str) -> None:
    plain = re.sub("[\x08\x1b\x9b\r]", "", text)
    assert last_state(plain) == plain


@given(st.text("ab\n\r\b\x1b[;0123456789ABCDEFGJKPm]\x07\\", max_size=300))
def test_no_escape_sequence_remains_and_the_text_is_bounded(text: str) -> None:
    shown = last_state(text)
    assert not {"\x08", "\x1b"} & set(shown)
    assert len(shown) <= 401 * (len(text) + 1)


def test_the_raw_output_is_stored_whole() -> None:
    stored: list[bytes] = []

    def keep(data: bytes) -> str:
        stored.append(data)
        return "digest"

    found = bound_output("100%", OutputBounds(), keep, "1%\r100%")
    assert (found.artifact, stored) == ("digest", [b"1%\r100%"])
    assert found.text.startswith("100%\n[")
