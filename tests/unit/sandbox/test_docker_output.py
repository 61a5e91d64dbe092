"""The report of a container's shell never appears in the output, in whatever pieces it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.sandbox.docker_output import ExecOutput

MARK = "pid:[4026531836] 2606/0123456789abcdef."
REPORT = f"\0{MARK} 3 4\n".encode()


def seen_in_pieces(output: bytes, cuts: list[int]) -> tuple[bytes, ExecOutput]:
    seen: list[bytes] = []
    collected = ExecOutput(1_000, MARK, see=lambda _, data: seen.append(data))
    bounds = sorted({0, len(output), *(cut % (len(output) + 1) for cut in cuts)})
    for begin, end in pairwise(bounds):
        collected.take(2, output[begin:end])
    assert collected.result(collected.code).stderr == b"".join(seen)
    return b"".join(seen), collected


@given(
    st.lists(st.sampled_from([b"wrong", b"\n", b"\0", MARK.encode(), b" 3", b"p"]), max_size=8),
    st.lists(st.integers(0, 500)),
)
def test_the_text_before_a_report_is_seen_complete(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    seen, collected = seen_in_pieces(text + REPORT, cuts)
    assert seen == text
    assert (collected.code, collected.processes) == (3, 4)


@pytest.mark.parametrize("end", [b"", b"\0", REPORT[:20], REPORT[:-1]])
def test_an_incomplete_report_is_ordinary_output(end: bytes) -> None:
    seen, collected = seen_in_pieces(b"killed" + end, [3, 8])
    assert seen == b"killed" + end
    assert collected.code is None


def test_a_line_is_seen_as_soon_as_it_ends() -> None:
    seen: list[bytes] = []
    collected = ExecOutput(1_000, MARK, see=lambda _, data: seen.append(data))
    collected.take(2, b"ready\n")
    assert seen == [b"ready\n"]
