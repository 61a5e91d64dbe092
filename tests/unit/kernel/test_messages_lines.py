"""Grouping waiting messages into a turn: one person's messages, in order, within bounds, and after a pause."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import (
    LINES_CHARS_MAX,
    LINES_MAX,
    PAUSES_MAX,
    Attachment,
    Author,
    Prompt,
    Waiting,
    joined,
    pause_left,
    turns_of,
)

THREAD = make_thread_id("fake", "harbour", "1")
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
PAUSE, SECOND = 1.5, 1_000_000


def line(number: int, user: str = "ada", **fields: object) -> Prompt:
    prompt = Prompt(THREAD, f"k{number}", f"line {number}", Author(user, trusted=True), NOON, in_chat=True)
    return replace(prompt, message_id=f"m{number}", **fields)


messages = st.builds(
    line,
    st.integers(0, 99),
    st.sampled_from(["ada", "bob", "eve"]),
    in_chat=st.booleans() | st.just(True),
    model=st.sampled_from(["", "", "", "other"]),
    text=st.text(max_size=5) | st.just("x" * (LINES_CHARS_MAX // 3)),
)


@given(st.lists(messages, max_size=2 * LINES_MAX))
def test_each_turn_holds_one_authors_messages_in_order(prompts: list[Prompt]) -> None:
    turns = turns_of(prompts)
    assert sorted(number for turn in turns for number in turn) == list(range(len(prompts)))
    assert [turn[0] for turn in turns] == sorted(turn[0] for turn in turns)
    for turn in turns:
        assert len({prompts[number].author for number in turn}) == 1
        assert len(turn) <= LINES_MAX
        assert len(turn) == 1 or sum(len(prompts[number].text) for number in turn) <= LINES_CHARS_MAX
        assert len(turn) == 1 or all(prompts[number].in_chat for number in turn)
    for user in ("ada", "bob", "eve"):
        answered = [number for turn in turns for number in turn if prompts[number].author.id == user]
        assert answered == sorted(answered)


def test_alternating_messages_of_two_people_form_one_turn_each() -> None:
    assert turns_of([line(n, "ada" if n % 2 else "bob") for n in range(8)]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_turn_stays_within_its_bounds() -> None:
    assert [len(turn) for turn in turns_of([line(n) for n in range(LINES_MAX + 2)])] == [LINES_MAX, 2]
    half = "x" * (LINES_CHARS_MAX // 2)
    assert turns_of([line(0, text=half), line(1, text=half), line(2)]) == [[0, 1], [2]]


@pytest.mark.parametrize(
    "other",
    [
        line(1, "bob"),
        line(1, in_chat=False),
        line(1, model="other"),
        line(1, agent="deck"),
        line(1, direct=True),
        line(1, origin="trigger"),
        line(1, author=Author("ada", trusted=False)),
        line(1, author=Author("ada", roles=("admin",), trusted=True)),
    ],
)
def test_a_message_with_different_options_gets_its_own_turn(other: Prompt) -> None:
    assert turns_of([line(0), other]) == [[0], [1]]


def test_joined_lines_keep_their_content_in_order() -> None:
    lines = [
        line(0, attachments=(Attachment("a"), Attachment("b")), reply_to="r0"),
        line(1, text="", attachments=(Attachment("c"),)),
        line(2, tainted_by="a forwarded message"),
    ]
    whole = joined(lines)
    assert whole.text == "line 0\nline 2"
    assert [file.name for file in whole.attachments] == ["a", "b", "c"]
    assert (whole.key, whole.message_id, whole.joined) == ("k0", "m2", ("m0", "m1"))
    assert (whole.reply_to, whole.tainted_by) == ("r0", "a forwarded message")
    assert joined(lines[:1]) is lines[0]


def waits(count: int = 1, *, since: float = 0.0, until: float = 0.0, user: str = "ada", is_all: bool = True) -> Waiting:
    lines = tuple(line(number, user) for number in range(count))
    return Waiting(lines[0], lines, round(since * SECOND), round(until * SECOND), is_all)


@pytest.mark.parametrize(
    ("waiting", "before", "now", "left"),
    [
        (waits(), None, 0.0, 0.0),  # starts a new exchange
        (waits(since=1.0, until=1.0), waits(), 1.5, 1.0),  # follows a line that was answered
        (waits(since=2.0, until=2.0), waits(), 2.0, 0.0),  # after a pause
        (waits(since=1.0, until=1.0, user="bob"), waits(), 1.0, 0.0),  # another user
        (waits(3, until=2.0), None, 2.5, 1.0),
        (waits(3, until=2.0), None, 4.0, 0.0),
        (waits(3, until=2.0, is_all=False), None, 2.0, 0.0),  # another user is waiting
        (waits(30, until=PAUSES_MAX * PAUSE), None, PAUSES_MAX * PAUSE, 0.0),  # the wait has reached its limit
        (waits(3, until=2.0), None, -3600.0, 0.0),  # the clock was set back
    ],
)
def test_only_follow_up_lines_wait_for_a_pause(
    waiting: Waiting, before: Waiting | None, now: float, left: float
) -> None:
    assert pause_left(waiting, before, round(now * SECOND), PAUSE) == pytest.approx(left)
