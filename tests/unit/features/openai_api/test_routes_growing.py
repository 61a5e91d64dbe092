"""OpenAI-compatible streams: the final text is complete, regardless of what was streamed before."""

from itertools import accumulate, compress

from hypothesis import given
from hypothesis import strategies as st

from shoal.features.openai_api.routes import GrowingReply
from shoal.kernel.events import AssistantSaid
from shoal.kernel.ids import CallId
from shoal.kernel.messages import ToolCall

CALL = (ToolCall(CallId("c"), "ls", "{}"),)
words = st.text(alphabet="ab \n", min_size=1, max_size=8)
steps = st.lists(
    st.tuples(
        st.lists(words, max_size=4),
        st.lists(st.lists(words, max_size=3), max_size=2),
        st.lists(st.booleans(), min_size=4, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(steps)
def test_each_steps_text_is_sent_once_and_in_order(
    turn: list[tuple[list[str], list[list[str]], list[bool]]],
) -> None:
    growing, number = GrowingReply(), 0
    for pieces, failed_tries, heard in turn:
        sent_before = growing.sent
        for attempt in (*failed_tries, pieces):
            number += 1
            placed = zip(attempt, accumulate(map(len, attempt), initial=0), strict=False)
            for piece, offset in compress(placed, heard):
                growing.stream(piece, number, offset)
        text = "".join(pieces)
        growing.finish_step(AssistantSaid(text, CALL))
        new = growing.sent[len(sent_before) :]
        assert new.endswith(text)
        if not failed_tries:
            assert new in (text, f"\n\n{text}")


def test_steps_are_separated_and_a_continued_answer_is_joined() -> None:
    growing = GrowingReply()
    growing.finish_step(AssistantSaid("Look:", CALL))
    growing.finish_step(AssistantSaid("one, ", stop="max_tokens"))
    growing.finish_step(AssistantSaid("two."))
    assert growing.finish_turn("one, two.") == ""
    assert growing.sent == "Look:\n\none, two."


def test_a_reply_without_a_step_is_sent() -> None:
    growing = GrowingReply()
    assert growing.finish_turn("Sorry.") == "Sorry."
    growing = GrowingReply()
    growing.stream("hal", 1, 0)
    growing.finish_step(AssistantSaid("half"))
    assert growing.finish_turn("Stopped.") == "\n\nStopped."


def test_a_retried_answer_that_differs_is_sent_whole() -> None:
    growing = GrowingReply()
    growing.stream("It is", 1, 0)
    assert growing.stream("No", 2, 0) == ""
    growing.finish_step(AssistantSaid("No, it was."))
    assert growing.sent == "It is\n\nNo, it was."
