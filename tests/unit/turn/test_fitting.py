"""Fitting a request into its room: calls keep their results, the order is preserved, the newest message stays, and
the result is deterministic.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernel.journals import messages_of

from shoal.kernel.errors import InvalidInput
from shoal.kernel.events import AssistantSaid, Compacted, Event, EventData, Steered, ToolFinished, TurnStarted, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import (
    AssistantMessage,
    Author,
    Image,
    ModelMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from shoal.kernel.settings import ContextSettings
from shoal.kernel.transcript import Transcript
from shoal.turn.fitting import ROOM_UNITS_MIN, Fitted, Tally, TokenRoom, fit, room_for, shorten
from shoal.turn.tokens import (
    IMAGE_UNITS,
    MESSAGE_UNITS,
    Meter,
    estimate,
)

AT = datetime(2026, 1, 5, tzinfo=UTC)
THREAD = ThreadId("web:lobby:a")
ANA = Author("u1", "Ana", trusted=True)


class Journal:
    """A transcript that a test builds event by event."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.tally = Tally(Meter())
        self.seq = self.turns = 0
        self.events: list[Event] = []

    def put(self, *data: EventData) -> "Journal":
        for one in data:
            self.seq += 1
            self.events.append(Event(self.seq, THREAD, TurnId(f"t{self.turns}"), AT, one))
            self.transcript.add(self.events[-1])
        return self

    def user(self, text: str = "hello") -> "Journal":
        self.turns += 1
        return self.put(TurnStarted("main", "demo", "<context>"), UserSaid(text, ANA))

    def say(self, text: str = "fine") -> "Journal":
        return self.put(AssistantSaid(text))

    def step(self, *results: str, artifact: str = "", said: str = "") -> "Journal":
        ids = [CallId(f"c{self.seq}-{number}") for number in range(len(results))]
        self.put(AssistantSaid(said, tuple(ToolCall(call, "bash", "{}") for call in ids), "tool_calls"))
        return self.put(
            *(ToolFinished(call, "bash", text, artifact=artifact) for call, text in zip(ids, results, strict=True))
        )

    def grow(self, kind: str, size: int, calls: int, stored: bool) -> None:
        """Append an element: `u` opens a turn, `s` steers, `a` answers, `t` calls tools, and anything else compacts."""
        match kind:
            case "u":
                self.user(f"{self.seq} " + "x" * size)
            case "s":
                self.put(Steered(f"{self.seq} " + "é" * size, ANA))
            case "a":
                self.say("y" * size)
            case "t":
                self.step(*["z " * size] * calls, artifact="deadbeef" if stored else "")
            case _:
                self.put(Compacted(max(0, self.seq - size % 5), "summary " * (size % 50)))

    def fit(self, room: TokenRoom) -> Fitted:
        return fit(self.tally, self.transcript.entries, room)

    def texts(self, room: TokenRoom) -> list[str]:
        return [message.text for message in self.fit(room).messages]


def room(events: int, artifacts: int = 100) -> TokenRoom:
    return TokenRoom(10_000, 10, events, artifacts)


def words(units: int) -> str:
    """Return a text whose message counts as this many units."""
    return "abc " * (units - MESSAGE_UNITS)


# ---- properties ----

SIZES = st.one_of(st.integers(0, 40), st.integers(0, 4000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("u"), SIZES, st.just(0), st.just(False)),
        st.tuples(st.just("s"), SIZES, st.just(0), st.just(False)),
        st.tuples(st.just("a"), SIZES, st.just(0), st.just(False)),
        st.tuples(st.just("t"), SIZES, st.integers(1, 4), st.booleans()),
        st.tuples(st.just("c"), SIZES, st.just(0), st.just(False)),
    ),
    max_size=40,
)


def journal_of(steps: Sequence[tuple[str, int, int, bool]]) -> Journal:
    journal = Journal().user("the first")
    for step in steps:
        journal.grow(*step)
    return journal


def is_paired(messages: Sequence[ModelMessage]) -> bool:
    open_calls: list[CallId] = []
    for message in messages:
        match message:
            case ToolMessage(call_id=call_id):
                if not open_calls or open_calls.pop(0) != call_id:
                    return False
            case _:
                if open_calls:
                    return False
                open_calls = [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []
    return not open_calls


@settings(max_examples=400, deadline=None)
@given(STEPS, st.integers(ROOM_UNITS_MIN, 3000))
def test_fitted_requests_satisfy_the_invariants(steps: list[tuple[str, int, int, bool]], left: int) -> None:
    journal = journal_of(steps)
    space = TokenRoom(left + 50, 50, int(left * 0.7), int(left * 0.2))
    fitted = journal.fit(space)
    whole = messages_of(journal.transcript)
    assert fitted.units <= space.prefix + space.events + space.artifacts
    assert fitted.units == space.prefix + sum(Meter().message(message) for message in fitted.messages)
    assert is_paired(fitted.messages)
    assert [message.text for message in fitted.messages] == [message.text for message in journal.fit(space).messages]
    newest = next((message for message in reversed(whole) if isinstance(message, UserMessage)), None)
    if newest is not None:
        kept = next(message for message in reversed(fitted.messages) if isinstance(message, UserMessage))
        assert kept.text[:8] == newest.text[:8]
    if not fitted.shortened and not fitted.stubbed:
        places = [next(i for i, one in enumerate(whole) if one is message) for message in fitted.messages]
        assert places == sorted(places)
        assert len(whole) - len(places) == fitted.dropped


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(ROOM_UNITS_MIN, 3000))
def test_running_sums_match_a_full_count(steps: list[tuple[str, int, int, bool]], left: int) -> None:
    space = TokenRoom(left, 0, int(left * 0.7), int(left * 0.2))
    grown = Journal().user("the first")
    for step in steps:
        grown.grow(*step)
        fresh = fit(Tally(Meter()), grown.transcript.entries, space)
        assert [message.text for message in fresh.messages] == grown.texts(space)


# ---- individual rules ----


def test_a_request_that_fits_is_complete() -> None:
    journal = Journal().user(words(20)).say(words(20)).user(words(20))
    fitted = journal.fit(room(100))
    assert fitted.messages == messages_of(journal.transcript)
    assert (fitted.dropped, fitted.stubbed, fitted.shortened) == (0, 0, False)


def test_dropping_whole_turns_frees_a_quarter_of_the_room() -> None:
    journal = Journal()
    dropped: list[int] = []
    for _ in range(40):
        journal.user("u " + words(8)).say(words(10))
        dropped.append(journal.fit(room(230)).dropped)
    assert dropped[:9] == [0] * 9
    assert len(set(dropped)) < 17
    assert all(number % 2 == 0 for number in dropped)
    assert 40 * 2 - dropped[-1] >= 10


def test_a_summary_at_the_start_is_kept() -> None:
    journal = Journal().user().say().put(Compacted(2, "We were at sea."))
    for _ in range(10):
        journal.user(words(40)).say(words(40))
    texts = journal.texts(room(200))
    assert "We were at sea." in texts[0]
    assert len(texts) < 8


def test_a_huge_turn_keeps_its_request_and_the_newest_steps() -> None:
    journal = Journal().user("old").say("old").user("[the request]")
    for number in range(30):
        journal.step(f"result {number} " + words(30))
    texts = journal.texts(room(400))
    assert "[the request]" in texts[0]
    assert "result 29" in texts[-1]
    assert "result 5" not in " ".join(texts)
    assert is_paired(journal.fit(room(400)).messages)


def test_a_huge_turn_keeps_its_steer() -> None:
    journal = Journal().user("[the request]").put(Steered("[the steer]", ANA))
    for number in range(30):
        journal.step(f"result {number} " + words(30))
    texts = journal.texts(room(400))
    assert "[the request]" in texts[0]
    assert "[the steer]" in texts[1]


def test_a_long_request_leaves_less_room_for_steps() -> None:
    journal = Journal().user("[the request]" + words(200))
    for number in range(30):
        journal.step(f"result {number} " + words(30))
    fitted = journal.fit(room(400))
    assert not fitted.shortened
    assert len(fitted.messages[0].text) > 800
    assert fitted.units <= 410


def test_the_newest_step_keeps_its_excerpts() -> None:
    journal = Journal().user().step("old " + words(300), artifact="d1").step("new " + words(300), artifact="d2")
    texts = journal.texts(room(2000, 100))
    assert "artifact d1" in texts[2]
    assert texts[4].startswith("new")


def test_old_excerpts_become_a_line_that_names_the_artifact() -> None:
    journal = Journal().user()
    for number in range(10):
        journal.step(f"excerpt {number} " + words(100), artifact=f"digest{number}")
    fitted = journal.fit(room(2000, 300))
    results = [message.text for message in fitted.messages if isinstance(message, ToolMessage)]
    assert "artifact digest0" in results[0]
    assert results[-1].startswith("excerpt 9")
    assert [text.startswith("excerpt") for text in results] == sorted(text.startswith("excerpt") for text in results)
    again = journal.fit(room(2000, 300))
    assert all(one is other for one, other in zip(fitted.messages, again.messages, strict=True))


def test_dropped_turns_and_their_excerpts_are_not_counted() -> None:
    journal, space = Journal(), room(300, 100)
    for number in range(6):
        journal.user().step("excerpt " + words(60), artifact=f"digest{number}").say()
    fitted = journal.fit(space)
    assert fitted.dropped > 0
    assert not fitted.shortened
    assert fitted.units == space.prefix + sum(Meter().message(message) for message in fitted.messages)


def test_excerpts_of_kept_turns_stay_while_there_is_room() -> None:
    journal, space = Journal(), room(1200, 400)
    for number in range(20):
        journal.user().step("excerpt " + words(60), artifact=f"digest{number}").say(words(60))
    fitted = journal.fit(space)
    kept = [message for message in fitted.messages if isinstance(message, ToolMessage)]
    assert fitted.dropped > 8
    assert len(kept) > 3
    assert not fitted.shortened


def test_a_vast_message_is_cut_in_the_middle() -> None:
    journal = Journal().user("BEGIN " + words(5000) + " END")
    fitted = journal.fit(room(300, 0))
    (message,) = fitted.messages
    assert fitted.shortened
    assert "BEGIN" in message.text
    assert message.text.endswith("END\n\n<context>")
    assert "omitted here" in message.text


def test_images_that_do_not_fit_are_left_out() -> None:
    message = UserMessage("see", (Image("a.png", "image/png"),))
    meter = Meter()
    assert meter.message(message) == IMAGE_UNITS + MESSAGE_UNITS + 1
    (cut,) = shorten([message], 100, meter)
    assert isinstance(cut, UserMessage)
    assert cut.images == ()
    assert "image was omitted" in cut.text


def test_the_models_own_messages_are_never_cut() -> None:
    said = AssistantMessage(words(400))
    assert shorten([UserMessage("hi"), said, UserMessage(words(300))], 250, Meter())[0].text == "hi"
    kept = shorten([said, UserMessage(words(300))], 500, Meter())
    assert kept[0] is said
    assert Meter().message(kept[1]) <= 100


def test_a_turn_counts_only_its_new_messages() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return estimate(text)

    journal = Journal()
    journal.tally = Tally(Meter(count))
    for _ in range(300):
        journal.user(words(40)).say(words(40))
    journal.fit(room(1000))
    counted.clear()
    journal.user("new").say("answer")
    journal.fit(room(1000))
    assert [text[-6:] for text in counted] == ["ntext>", "answer"]


# ---- the room ----


def test_the_room_is_the_window_minus_reserve_and_prefix() -> None:
    limits = ContextSettings()
    assert room_for(limits, window_tokens=128_000, output_tokens=4096, prefix_units=11_616) == TokenRoom(
        111_616, 11_616, 70_000, 20_000
    )
    assert room_for(limits, window_tokens=8192, output_tokens=1024, prefix_units=0).total == 8192 - 2048
    assert room_for(limits, window_tokens=100_000, output_tokens=0, prefix_units=0, factor=2.0).total == 41_808


def test_instructions_that_fill_the_window_are_an_error() -> None:
    with pytest.raises(
        InvalidInput, match="take about 8000 of the 8192 tokens in the context window, and 4096 tokens are reserved"
    ):
        room_for(ContextSettings(), window_tokens=8192, output_tokens=4096, prefix_units=8000)


# ---- counting ----


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 12_000))
def test_a_narrowed_room_keeps_its_shares_and_never_grows(events: int, artifacts: int, units: int) -> None:
    whole = room(events, artifacts)
    narrow = whole.within(units)
    assert narrow.events + narrow.artifacts <= min(units, events + artifacts)
    assert narrow.events + narrow.artifacts >= min(units, events + artifacts) - 2
    assert (narrow.total, narrow.prefix) == (whole.total, whole.prefix)
