"""Live output of a running command: a bounded tail without secrets, shown only to watchers."""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.events import Event, LiveData, OutputShown
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.permissions.redact import Redactor
from shoal.testing.clock import ManualClock
from shoal.tools import live_output
from shoal.tools.live_output import KEEP_BYTES, QUIET_SHOWS, SHOWN_BYTES_MAX, LiveOutput, StreamText

THREAD, TURN, CALL = ThreadId("web:lobby:1"), TurnId("t1"), CallId("c1")
KNOWN = "correct horse battery staple"
KEY = "sk-Abcd1234Efgh5678Ijkl9012"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow1234567890\nabcdefghijklmnop\n-----END RSA PRIVATE KEY-----"
SECRETS = (KNOWN, "line one of it\nline two of it", KEY, f"Authorization: Bearer {KEY[3:]}", PEM)
PARTS = (KNOWN[:12], KEY[:10], KEY[10:], "line one of it", "two of it", "MIIEow", "abcdefghijklmnop")
"""Telling parts of secrets. Output shows them only together with the whole text, which is then not a secret by any
rule."""


class Watchers:
    """A hub that records the output it shows."""

    def __init__(self) -> None:
        self.are_there = False
        self.shown: list[OutputShown] = []
        self.came = asyncio.Event()

    def publish(self, events: Sequence[Event]) -> None:
        raise AssertionError("output is no part of the journal")

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        assert (thread, turn) == (THREAD, TURN)
        assert isinstance(data, OutputShown)
        self.shown.append(data)
        self.came.set()

    def watched(self, thread: ThreadId) -> bool:
        return self.are_there


class Stand:
    def __init__(self) -> None:
        self.watchers = Watchers()
        self.clock = ManualClock()
        redactor = Redactor((KNOWN, SECRETS[1]))
        self.output = LiveOutput(self.watchers, THREAD, TURN, CALL, redactor, self.clock)

    def says(self, *pieces: str | bytes, stream: int = 1) -> None:
        for piece in pieces:
            self.output.take(stream, piece.encode() if isinstance(piece, str) else piece)

    def now(self) -> str:
        self.watchers.shown.clear()
        self.output.show()
        (shown,) = self.watchers.shown
        return shown.text


@pytest.fixture
async def stand() -> AsyncGenerator[Stand]:
    stand = Stand()
    stand.watchers.are_there = True
    yield stand
    stand.output.close()


async def test_output_is_shown_soon_after_it_was_written(stand: Stand) -> None:
    await stand.clock.advance(12)
    stand.says("one\n", "two\n")
    await asyncio.wait_for(stand.watchers.came.wait(), 60)
    assert stand.watchers.shown == [OutputShown(CALL, "one\ntwo\n", 12.0)]


async def test_unwatched_output_is_not_rendered_but_late_watchers_see_it(stand: Stand) -> None:
    stand.watchers.are_there = False
    stand.says("one\n")
    stand.output.show()
    assert stand.watchers.shown == []
    stand.watchers.are_there = True
    stand.says("two\n")
    assert stand.now() == "one\ntwo\n"


async def test_unchanged_output_is_repeated_for_new_watchers(stand: Stand) -> None:
    stand.says("one\n")
    for _ in range(QUIET_SHOWS * 2 + 1):
        stand.output.show()
    assert [shown.text for shown in stand.watchers.shown] == ["one\n"] * 3


async def test_nothing_is_shown_after_the_call_has_ended(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_output, "SHOW_SECONDS", 0)
    stand.says("one\n")
    stand.output.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert stand.watchers.shown == []


async def test_only_the_last_whole_lines_are_shown(stand: Stand) -> None:
    stand.says("".join(f"line {number}\n" for number in range(5000)))
    text = stand.now()
    assert text.startswith("line ")
    assert text.endswith("line 4999\n")
    assert SHOWN_BYTES_MAX - 20 < len(text.encode()) <= SHOWN_BYTES_MAX


async def test_dropped_output_leaves_no_part_of_a_secret(stand: Stand) -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            stand.says(PEM[:40], "MIIEow\n" * 1000, f"line {number}\n" * 1000)
        assert tracemalloc.get_traced_memory()[0] < 2 * KEEP_BYTES
    finally:
        tracemalloc.stop()
    assert "MIIEow" not in stand.now()


async def test_an_endless_line_is_dropped(stand: Stand) -> None:
    stand.says("before\n")
    for _ in range(200):
        stand.says("x" * 1000)
        stand.output.show()
    stand.says("\nafter\n")
    assert stand.now() == "before\nafter\n"


async def test_an_overwritten_line_is_shown_like_in_a_terminal(stand: Stand) -> None:
    stand.says("get it\r\n", *(f"\r{percent} %" for percent in range(100)), "\r")
    assert stand.now() == "get it\n99 %"
    stand.says("\rdone  \n")
    assert stand.now() == "get it\ndone  \n"


async def test_no_character_moves_the_cursor_or_colors(stand: Stand) -> None:
    stand.says("\x1b[1;31mred\x1b[0m \x07 \u202e \x1b]0;title\x07\n")
    assert stand.now() == "red \\x07 \\u202e \\x1b]0;title\\x07\n"


async def test_a_split_character_is_joined(stand: Stand) -> None:
    fish = "🐟 \n".encode()
    stand.says(*(fish[at : at + 1] for at in range(len(fish))))
    assert stand.now() == "🐟 \n"


async def test_the_last_word_of_an_unfinished_line_is_held_back(stand: Stand) -> None:
    stand.says("loading .....")
    assert stand.now() == "loading ....."
    stand.says(" pass")
    assert stand.now() == "loading ..... "
    stand.says("ed\n")
    assert stand.now() == "loading ..... passed\n"


@given(
    st.lists(st.sampled_from((*SECRETS, "word", " ", "\n", "\r", "-----", "x=")), min_size=1, max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_no_part_of_a_secret_is_shown_for_any_split(said: list[str], sizes: list[int]) -> None:
    redactor, stream, shown = Redactor((KNOWN, SECRETS[1])), StreamText(), ""
    text, at, number = "".join(f"{part} " if part in SECRETS else part for part in said), 0, 0
    hidden = [part for part in PARTS if part not in redactor.redact(text)]
    while at < len(text):
        size = sizes[number % len(sizes)]
        stream.feed(text[at : at + size].encode())
        at, number = at + size, number + 1
        settled, going_on = stream.take_text(redactor)
        shown += settled
        assert not [part for part in hidden if part in shown + going_on]
    stream.feed(b"\n")
    assert (shown + stream.take_text(redactor)[0]).endswith("\n") or "-----BEGIN" in text
