"""What a turn does next, read from its journal alone."""

import pytest
from hypothesis import given
from tests.unit.domain.journals import PERSON, calls, journals, number, result

from shoal.domain.agents import TurnLimits
from shoal.domain.events import (
    AssistantSaid,
    Event,
    EventData,
    Failed,
    LimitReached,
    Steered,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.domain.ids import CallId, TurnId
from shoal.domain.turnstate import CallModel, Finish, Move, NoteLimit, RunCalls, TurnState, next_move

LIMITS = TurnLimits(steps_max=3, tool_errors_in_a_row_max=2)
OPEN = (TurnStarted("main", "demo"), UserSaid("hi", PERSON))
ASKED = AssistantSaid("let me see", calls("a", "b"), "tool_calls")


def after(*data: EventData) -> Move | None:
    return next_move(TurnState(TurnId("t1"), number(*OPEN, *data)), LIMITS)


def error(call: str) -> EventData:
    return result(call, is_error=True)


@pytest.mark.parametrize(
    ("data", "move"),
    [
        ((), CallModel(tools=True)),
        ((ASKED,), RunCalls(calls("a", "b"))),
        ((ASKED, ToolStarted(CallId("a"), "time")), RunCalls(calls("a", "b"))),
        ((ASKED, result("a")), RunCalls(calls("b"))),
        ((ASKED, result("a"), result("b")), CallModel(tools=True)),
        ((ASKED, result("a"), result("b"), Steered("no", PERSON)), CallModel(tools=True)),
        ((AssistantSaid("hello"),), Finish("done", "hello")),
        ((AssistantSaid("hello"), Steered("and?", PERSON)), CallModel(tools=True)),
        ((AssistantSaid("half", stop="max_tokens"),), CallModel(tools=True)),
        ((AssistantSaid("half ", stop="max_tokens"), AssistantSaid("whole")), Finish("done", "half whole")),
        ((AssistantSaid("", calls("a"), "max_tokens"),), RunCalls(calls("a"), truncated=True)),
        ((ASKED, error("a"), error("b")), NoteLimit("tool_errors")),
        ((ASKED, error("a"), error("b"), LimitReached("tool_errors")), CallModel(tools=False)),
        ((ASKED, error("a"), result("b")), CallModel(tools=True)),
        ((LimitReached("steps"), AssistantSaid("enough")), Finish("limit", "enough")),
        ((Failed("overloaded", "busy"),), Finish("failed", "busy")),
        ((ASKED, Failed("internal", "oops")), RunCalls(calls("a", "b"))),
        ((AssistantSaid("bye"), TurnFinished("done", "bye")), None),
    ],
)
def test_next_move(data: tuple[EventData, ...], move: Move | None) -> None:
    assert after(*data) == move


def test_the_step_limit_is_met_after_as_many_steps() -> None:
    steps = [AssistantSaid("", calls(f"c{index}"), "tool_calls") for index in range(3)]
    done = [data for index, step in enumerate(steps) for data in (step, result(f"c{index}"))]
    assert after(*done[:4]) == CallModel(tools=True)
    assert after(*done) == NoteLimit("steps")


def test_a_cut_off_answer_at_the_step_limit_is_taken_as_it_is() -> None:
    cut = AssistantSaid("x", stop="max_tokens")
    assert after(cut, cut, cut) == Finish("done", "xxx")


@given(journals())
def test_the_fold_is_the_same_however_it_is_cut(events: list[Event]) -> None:
    turn = events[-1].turn
    whole = TurnState(turn, events)
    resumed = TurnState(turn)
    for event in events:
        resumed.apply(event)
    assert next_move(whole, LIMITS) == next_move(resumed, LIMITS)


@given(journals())
def test_an_unfinished_turn_always_has_a_next_move(events: list[Event]) -> None:
    state = TurnState(events[-1].turn, events)
    assert (next_move(state, LIMITS) is None) == (state.finished is not None)
