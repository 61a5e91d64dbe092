"""Random valid journals for tests."""

from collections.abc import Iterable
from copy import copy
from datetime import UTC, datetime

from hypothesis import strategies as st

from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    EventData,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author, ModelMessage, ToolCall
from shoal.kernel.transcript import Transcript
from shoal.kernel.turnstate import TurnState

THREAD = ThreadId("web:lobby:test")
AT = datetime(2026, 1, 5, tzinfo=UTC)
PERSON = Author("u1", trusted=True)


def number(*data: EventData, turn: str = "t1", first: int = 1) -> list[Event]:
    return [Event(seq, THREAD, TurnId(turn), AT, one) for seq, one in enumerate(data, first)]


def calls(*ids: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(CallId(one), "time", "{}") for one in ids)


def result(call: str, text: str = "ok", *, is_error: bool = False, counts: bool = True) -> ToolFinished:
    return ToolFinished(CallId(call), "time", text, is_error, counts=counts)


def transcript_of(events: Iterable[Event]) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript


def messages_of(transcript: Transcript) -> tuple[ModelMessage, ...]:
    """Return the messages for a request. Copies the transcript, because later events must not change them."""
    now = copy(transcript)
    now.entries = list(transcript.entries)
    now.close_open_calls()
    return tuple(entry.message for entry in now.entries)


def state_after(turn: TurnId, events: Iterable[Event]) -> TurnState:
    state = TurnState(turn)
    for event in events:
        state.apply(event)
    return state


@st.composite
def journals(draw: st.DrawFn) -> list[Event]:
    """Draw a journal of up to five turns. Any turn may be cut off, and clears and compactions may occur at any
    point.
    """
    events: list[Event] = []

    def put(turn: str, data: EventData) -> None:
        events.append(Event(len(events) + 1, THREAD, TurnId(turn), AT, data))

    for turn_number in range(draw(st.integers(1, 5))):
        turn = f"t{turn_number}"
        put(turn, TurnStarted("main", "demo", context=draw(st.sampled_from(["", "<context>now</context>"]))))
        put(turn, UserSaid(draw(st.text(max_size=20)), PERSON))
        for step in range(draw(st.integers(0, 4))):
            made = calls(*(f"{turn}.{step}.{index}" for index in range(draw(st.integers(0, 3)))))
            put(turn, AssistantSaid("thinking", made, "tool_calls" if made else "end"))
            answered = draw(st.permutations(made))[: draw(st.integers(0, len(made)))]
            for call in answered:
                put(turn, ToolStarted(call.id, call.name))
                put(turn, result(call.id))
            extra = draw(st.sampled_from(["none", "none", "steer", "clear", "compact", "repeat"]))
            if extra == "steer":
                put(turn, Steered("wait", PERSON))
            elif extra == "clear":
                put(turn, Cleared())
            elif extra == "compact":
                put(turn, Compacted(draw(st.integers(1, len(events))), draw(st.sampled_from(["", "so far"]))))
            elif extra == "repeat" and answered:
                put(turn, result(answered[0].id, "again"))
        if draw(st.booleans()):
            put(turn, TurnFinished("done", "bye"))
    return events
