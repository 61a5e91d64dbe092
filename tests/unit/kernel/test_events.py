"""Events: their stored forms, which must remain readable, and their form in the API."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.features.triggers.records import NewTrigger
from shoal.kernel.clock import from_micros
from shoal.kernel.events import (
    ASK_INSTEAD,
    INTERRUPTED,
    Event,
    ToolFinished,
    UserSaid,
    decode_data,
    encode_data,
    encode_event,
)
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author, Caller

EVE = Author("eve", "Eve", ("guest",), trusted=False)


def test_trust_is_always_written() -> None:
    assert b'"trusted":true' in encode_data(UserSaid("hi", Author("ada", trusted=True)))
    assert b'"trusted":false' in encode_data(UserSaid("hi", EVE))


def test_a_damaged_record_is_not_read() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_data("user_message", '{"text":1,"author":{"id":"ada"}}')


authors = st.builds(Author, st.text(), st.text(), st.tuples(st.text()), st.booleans(), trusted=st.booleans())
callers = st.builds(
    Caller,
    line=st.just(((ThreadId("a:b:c"), TurnId("t")),)),
    call_id=st.just(CallId("c")),
    mode=st.sampled_from(["wait", "tell", "wake"]),
    author=authors,
    tainted_by=st.text(),
)


@given(
    st.builds(UserSaid, st.text(), authors, tainted_by=st.text(), caller=st.none() | callers),
)
def test_new_events_record_their_asker_and_taint(said: UserSaid) -> None:
    assert decode_data("user_message", encode_data(said)) == said


@given(
    st.builds(
        NewTrigger,
        kind=st.just("periodic"),
        schedule=st.text(),
        text=st.text(),
        author=authors,
        tainted_by=st.text(),
        name=st.text() | st.just("file:x.json"),
    )
)
def test_a_stored_trigger_round_trips(spec: NewTrigger) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=NewTrigger) == spec


def test_the_api_shows_people_the_short_text_of_a_refused_call() -> None:
    def shown(text: str, *, is_error: bool) -> dict[str, object]:
        result = ToolFinished(CallId("c"), "bash", text, is_error=is_error)
        event = Event(1, ThreadId("a:b:c"), TurnId("t"), from_micros(0), result)
        return msgspec.json.decode(encode_event(event))["data"]

    refused = shown(f"Denied.{ASK_INSTEAD}", is_error=True)
    assert (refused["text"], refused["shown"]) == (f"Denied.{ASK_INSTEAD}", "Denied.")
    assert shown(INTERRUPTED, is_error=True)["interrupted"] is True
    for told in (shown("no such file", is_error=True), shown(f"Denied.{ASK_INSTEAD}", is_error=False)):
        assert not {"shown", "interrupted"} & told.keys()
