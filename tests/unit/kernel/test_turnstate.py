"""The next action of a turn, decided from its journal alone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from tests.unit.kernel.journals import AT, PERSON, calls, journals, number, result, state_after

from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Event,
    EventData,
    Failed,
    LimitReached,
    RetryScheduled,
    Steered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ApprovalId, CallId, TurnId
from shoal.kernel.messages import Author, Usage
from shoal.kernel.settings import TurnsSettings
from shoal.kernel.turnstate import (
    CUT_SHORT,
    FALLBACK,
    ONLY_THOUGHT,
    CallModel,
    Finish,
    Move,
    NoteLimit,
    RunCalls,
    TurnState,
    next_move,
)

ASKED_AT = datetime(2026, 1, 5, tzinfo=UTC)
LIMITS = TurnsSettings(steps_max=3, tool_errors_in_a_row_max=2)
OPEN = (TurnStarted("main", "demo"), UserSaid("hi", PERSON))
ASKED = AssistantSaid("let me see", calls("a", "b"), "tool_calls")
BLANK = AssistantSaid(" \n", stop="max_tokens", thinking="hm")
HALF = AssistantSaid("half", stop="max_tokens")
LONG = "The tide comes in twice a day"
CUT_CALL = AssistantSaid("so", calls("a"), "max_tokens")
NEXT = AssistantSaid("", calls("c"), "tool_calls")
STEERED = Steered("try this", PERSON)


def cut(text: str) -> AssistantSaid:
    return AssistantSaid(text, stop="max_tokens")


def after(*data: EventData) -> Move | None:
    return next_move(state_after(TurnId("t1"), number(*OPEN, *data)), LIMITS)


def error(call: str) -> EventData:
    return result(call, is_error=True)


def not_run(call: str) -> EventData:
    return result(call, is_error=True, counts=False)


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
        ((AssistantSaid("hello"), STEERED, AssistantSaid("bye")), Finish("done", "bye")),
        ((AssistantSaid("half", stop="max_tokens"),), CallModel(tools=True)),
        ((AssistantSaid("half ", stop="max_tokens"), AssistantSaid("whole")), Finish("done", "half whole")),
        ((AssistantSaid("", calls("a"), "max_tokens"),), RunCalls(calls("a"), truncated=True)),
        ((ASKED, error("a"), error("b")), NoteLimit("tool_errors")),
        ((ASKED, error("a"), error("b"), LimitReached("tool_errors")), CallModel(tools=False)),
        ((ASKED, error("a"), result("b")), CallModel(tools=True)),
        ((ASKED, error("a"), result("b"), NEXT, error("c")), CallModel(tools=True)),
        ((LimitReached("steps"), AssistantSaid("enough")), Finish("limit", "enough")),
        ((ASKED, not_run("a"), not_run("b")), CallModel(tools=True)),
        ((ASKED, error("a"), not_run("b"), NEXT, error("c")), NoteLimit("tool_errors")),
        ((ASKED, error("a"), error("b"), STEERED), CallModel(tools=True)),
        ((ASKED, error("a"), error("b"), STEERED, NEXT, error("c")), CallModel(tools=True)),
        ((BLANK,), CallModel(tools=True)),
        ((BLANK, BLANK), NoteLimit("output_tokens")),
        ((BLANK, BLANK, LimitReached("output_tokens")), Finish("limit", CUT_SHORT)),
        ((HALF, BLANK, BLANK, LimitReached("output_tokens")), Finish("limit", f"half\n\n{CUT_SHORT}")),
        ((HALF, BLANK), CallModel(tools=True)),
        ((BLANK, HALF), CallModel(tools=True)),
        ((BLANK, BLANK, STEERED), CallModel(tools=True)),
        ((BLANK, STEERED, BLANK), CallModel(tools=True)),
        ((HALF, cut("way"), BLANK), Finish("done", f"halfway\n\n{CUT_SHORT}")),
        ((HALF, HALF), NoteLimit("output_tokens")),
        ((HALF, HALF, LimitReached("output_tokens")), Finish("limit", f"half\n\n{CUT_SHORT}")),
        ((cut(LONG), cut(f"{LONG} and more")), CallModel(tools=True)),
        ((cut(LONG), AssistantSaid(f"{LONG} and more")), Finish("done", f"{LONG} and more")),
        ((AssistantSaid("", thinking="hm"),), Finish("done", ONLY_THOUGHT)),
        ((CUT_CALL, not_run("a")), CallModel(tools=True)),
        ((CUT_CALL, not_run("a"), AssistantSaid("whole")), Finish("done", "whole")),
        ((CUT_CALL, not_run("a"), CUT_CALL), NoteLimit("output_tokens")),
        ((CUT_CALL, not_run("a"), CUT_CALL, LimitReached("output_tokens")), CallModel(tools=False)),
        ((LimitReached("steps"), BLANK), Finish("limit", CUT_SHORT)),
        ((Failed("overloaded", "busy"),), Finish("failed", "busy")),
        ((Failed("summary", "no summary", fatal=False),), CallModel(tools=True)),
        ((ASKED, Failed("internal", "oops")), RunCalls(calls("a", "b"))),
        ((AssistantSaid("bye"), TurnFinished("done", "bye")), None),
    ],
)
def test_the_next_move_follows_from_the_events_of_the_turn(data: tuple[EventData, ...], move: Move | None) -> None:
    assert after(*data) == move


def test_a_steer_after_an_answer_given_by_a_tool_requires_another_answer() -> None:
    told = ToolFinished(CallId("a"), "message", "sent", answers=True)
    said = (*OPEN, AssistantSaid("", calls("a")), told)
    assert state_after(TurnId("t1"), number(*said)).told
    assert not state_after(TurnId("t1"), number(*said, Steered("and?", PERSON))).told


def test_only_a_fallback_is_reported_as_another_model() -> None:
    summary, fallback = Failed("summary", "no summary", fatal=False), Failed(FALLBACK, "busy", fatal=False)
    assert state_after(TurnId("t1"), number(*OPEN, summary)).instead == ""
    assert state_after(TurnId("t1"), number(*OPEN, fallback, summary)).instead == "busy"


def test_an_outage_is_counted_once_however_often_it_is_retried() -> None:
    waiting = RetryScheduled("overloaded", "busy", AT, AT, 1)
    assert state_after(TurnId("t1"), number(*OPEN)).outages == 0
    assert state_after(TurnId("t1"), number(*OPEN, waiting, waiting)).outages == 1
    assert state_after(TurnId("t1"), number(*OPEN, waiting, ASKED, waiting)).outages == 2


def test_cut_off_calls_get_as_many_retries_as_failing_tools() -> None:
    limits = TurnsSettings(tool_errors_in_a_row_max=3)

    def move(*data: EventData) -> Move | None:
        return next_move(state_after(TurnId("t1"), number(*OPEN, *data)), limits)

    assert move(*(CUT_CALL, not_run("a")) * 2) == CallModel(tools=True)
    assert move(*(CUT_CALL, not_run("a")) * 3) == NoteLimit("output_tokens")
    assert move(BLANK, BLANK) == NoteLimit("output_tokens")


def test_a_turn_waits_for_its_model_until_the_retry_answers_or_fails() -> None:
    due = AT + timedelta(seconds=60)
    waiting = RetryScheduled("overloaded", "busy", due, AT, 1)
    state = state_after(TurnId("t1"), number(*OPEN, waiting))
    assert [state.waits(now) for now in (AT, due - timedelta(seconds=1), due)] == [True, True, False]
    assert not state.waits(AT - timedelta(seconds=1))  # the clock was set back
    for ending in (ASKED, Failed("overloaded", "busy")):
        assert not state_after(TurnId("t1"), number(*OPEN, waiting, ending)).waits(AT)


def test_a_turns_usage_is_the_sum_of_its_answers() -> None:
    said = [AssistantSaid("", usage=Usage(10 * number, number)) for number in (1, 2, 4)]
    assert state_after(TurnId("t1"), number(*OPEN, *said)).usage == Usage(70, 7)


def test_a_turn_keeps_its_asker_and_steers_but_no_missed_message() -> None:
    asked = UserSaid("go", PERSON, "m1", origin="agent", tainted_by="a web page", direct=True)
    missed = UserSaid("before", Author("u2", trusted=False), "m0", backfill=True)
    state = state_after(TurnId("t1"), number(OPEN[0], asked, missed))
    found = (state.author, state.message_id, state.origin, state.tainted_by, state.direct)
    assert found == (PERSON, "m1", "agent", "a web page", True)


def test_the_step_limit_is_reached_after_the_configured_number_of_steps() -> None:
    steps = [AssistantSaid("", calls(f"c{index}"), "tool_calls") for index in range(3)]
    done = [data for index, step in enumerate(steps) for data in (step, result(f"c{index}"))]
    assert after(*done[:4]) == CallModel(tools=True)
    assert after(*done) == NoteLimit("steps")


def test_a_cut_off_answer_at_the_step_limit_is_final() -> None:
    assert after(cut("x"), cut("y"), cut("z")) == Finish("done", f"xyz\n\n{CUT_SHORT}")


def test_an_answer_may_be_continued_three_times() -> None:
    limits = TurnsSettings(steps_max=50)
    said: list[EventData] = [cut(f"part {number}, ") for number in range(4)]
    states = [state_after(TurnId("t1"), number(*OPEN, *said[:count])) for count in range(1, 5)]
    moves = [next_move(state, limits) for state in states]
    assert moves == [CallModel(tools=True)] * 3 + [NoteLimit("output_tokens")]
    over = state_after(TurnId("t1"), number(*OPEN, *said, LimitReached("output_tokens")))
    assert next_move(over, limits) == Finish("limit", f"part 0, part 1, part 2, part 3,\n\n{CUT_SHORT}")


@given(journals())
def test_the_state_is_the_same_however_the_events_are_split(events: list[Event]) -> None:
    turn = events[-1].turn
    whole = state_after(turn, events)
    resumed = TurnState(turn)
    for event in events:
        resumed.apply(event)
    assert next_move(whole, LIMITS) == next_move(resumed, LIMITS)


@given(journals())
def test_an_unfinished_turn_always_has_a_next_move(events: list[Event]) -> None:
    state = state_after(events[-1].turn, events)
    assert (next_move(state, LIMITS) is None) == (state.finished is not None)


def request(identity: str) -> ApprovalRequested:
    return ApprovalRequested(ApprovalId(identity), CallId("a"), "bash", (), "x", ASKED_AT)


def allowed(identity: str) -> ApprovalSettled:
    return ApprovalSettled(ApprovalId(identity), CallId("a"), "allow")


def test_a_repeated_request_replaces_the_first_and_everything_after_it() -> None:
    started = ToolStarted(CallId("a"), "bash", ())
    state = state_after(TurnId("t1"), number(*OPEN, ASKED, request("1"), allowed("1"), started, request("2")))
    assert (state.approvals[CallId("a")].approval_id, state.verdicts, state.started) == ("2", {}, set())
    again = state_after(TurnId("t1"), number(*OPEN, ASKED, request("1"), request("2"), allowed("1")))
    assert again.verdicts == {}
    decided = state_after(TurnId("t1"), number(*OPEN, ASKED, request("1"), request("2"), allowed("2")))
    assert decided.verdicts[CallId("a")].approval_id == "2"
