"""Rows that older versions stored are read as they were meant, and the API tells events as people are to read them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.agents import ProcessSpec
from shoal.domain.clock import from_micros
from shoal.domain.events import (
    ASK_INSTEAD,
    INTERRUPTED,
    Event,
    ToolFinished,
    UserSaid,
    decode_data,
    decode_process,
    decode_stored,
    decode_trigger,
    encode_data,
    encode_event,
)
from shoal.domain.ids import CallId, ThreadId, TurnId
from shoal.domain.messages import Author, Caller
from shoal.domain.records import NewPost
from shoal.domain.triggers import NewTrigger

EVE = Author("eve", "Eve", ("guest",), trusted=False)
TRIGGERS = msgspec.json.Decoder(NewTrigger)
PROCESSES = msgspec.json.Decoder(ProcessSpec)


def test_trust_is_always_written() -> None:
    assert b'"trusted":true' in encode_data(UserSaid("hi", Author("ada", trusted=True)))
    assert b'"trusted":false' in encode_data(UserSaid("hi", EVE))


def test_an_old_author_was_trusted_unless_it_said_otherwise() -> None:
    caller = '"caller":{"line":[["a:b:c","t"]],"call_id":"c","mode":"wait","author":{"id":"ada"}}'
    said = decode_data("user_message", '{"text":"hi","author":{"id":"ada"},' + caller + "}")
    assert isinstance(said, UserSaid)
    assert said.author == Author("ada", trusted=True)
    assert said.caller is not None
    assert (said.caller.author.trusted, said.caller.tainted_by) == (True, "")
    stranger = decode_data("user_message", '{"text":"hi","author":{"id":"eve","trusted":false}}')
    assert isinstance(stranger, UserSaid)
    assert not stranger.author.trusted


def test_an_old_post_still_opens_its_thread() -> None:
    at = "2026-01-05T09:00:00Z"
    prompt = f'{{"lane":"prompt","thread":"a:b:c","key":"k","text":"hi","author":{{"id":"ada"}},"at":"{at}"}}'
    post = decode_stored(
        msgspec.json.Decoder(NewPost), f'{{"id":"p","thread":"a:b:c","text":"hi","opening":{{"prompt":{prompt}}}}}'
    )
    assert post.opening is not None
    assert post.opening.prompt.author.trusted


@pytest.mark.parametrize(
    ("row", "author"),
    [
        ('"created_by":"u7"', None),
        ('"created_by":"owner","name":"file:x.json"', None),
        ('"name":"file:x.json"', Author("shoal", trusted=True)),
        ('"name":"daily"', None),
    ],
)
def test_who_asked_for_an_old_trigger_is_known_of_event_files_alone(row: str, author: Author | None) -> None:
    spec = decode_trigger(TRIGGERS, f'{{"kind":"periodic","schedule":"0 * * * *","text":"look",{row}}}')
    assert (spec.author, spec.tainted_by) == (author, "")


@pytest.mark.parametrize(("taint", "trusted"), [("", True), ("a page", False)])
def test_an_old_process_is_trusted_unless_it_was_started_under_taint(taint: str, *, trusted: bool) -> None:
    tainted_by = f',"tainted_by":"{taint}"' if taint else ""
    spec = decode_process(PROCESSES, f'{{"agent":"main","thread":"a:b:c","command":"x","user":"u1"{tainted_by}}}')
    assert (spec.author, spec.tainted_by) == (Author("u1", trusted=trusted), taint)


def test_what_is_damaged_is_no_record() -> None:
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
def test_what_is_written_now_says_who_asked_and_what_tainted_it(said: UserSaid) -> None:
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
def test_a_trigger_comes_back_as_it_was_stored(spec: NewTrigger) -> None:
    assert decode_trigger(TRIGGERS, msgspec.json.encode(spec)) == spec


def test_the_api_tells_a_refused_call_as_people_are_told_of_it() -> None:
    def shown(text: str, *, is_error: bool) -> dict[str, object]:
        result = ToolFinished(CallId("c"), "bash", text, is_error=is_error)
        event = Event(1, ThreadId("a:b:c"), TurnId("t"), from_micros(0), result)
        return msgspec.json.decode(encode_event(event))["data"]

    refused = shown(f"Denied.{ASK_INSTEAD}", is_error=True)
    assert (refused["text"], refused["shown"]) == (f"Denied.{ASK_INSTEAD}", "Denied.")
    assert shown(INTERRUPTED, is_error=True)["interrupted"] is True
    for told in (shown("no such file", is_error=True), shown(f"Denied.{ASK_INSTEAD}", is_error=False)):
        assert not {"shown", "interrupted"} & told.keys()
