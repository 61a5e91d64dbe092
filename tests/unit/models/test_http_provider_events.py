"""Server-sent events, split at any point and with any line ending."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.models import http_provider
from shoal.models.http_provider import EventParser, EventTooLarge

line = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
event = st.lists(line, min_size=1, max_size=3)


def parse(chunks: list[bytes]) -> list[bytes]:
    parser = EventParser()
    found = [data for chunk in chunks for data in parser.feed(chunk)]
    return found + parser.finish()


@given(st.lists(event, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 9), max_size=40))
def test_any_split_and_line_end_gives_the_same_events(events: list[list[str]], end: str, cuts: list[int]) -> None:
    whole = "".join("".join(f"data: {one}{end}" for one in found) + end for found in events).encode()
    chunks: list[bytes] = []
    at = 0
    for cut in cuts:
        chunks.append(whole[at : at + cut])
        at += cut
    chunks.append(whole[at:])
    assert parse(chunks) == ["\n".join(found).encode() for found in events]


def test_comments_names_ids_and_retries_are_skipped() -> None:
    assert parse([b": ping\n\nevent: x\nid: 1\nretry: 5\ndata: one\n\nevent: ping\n\ndata:two\n\n"]) == [b"one", b"two"]


def test_a_last_event_without_an_empty_line_is_read() -> None:
    assert parse([b"data: one\n\ndata: two"]) == [b"one", b"two"]
    assert parse([b"data: one\n"]) == [b"one"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_provider, "EVENT_BYTES_MAX", 1000)
    parser = EventParser()
    parser.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLarge):
        parser.feed(b"x" * 200)
    with pytest.raises(EventTooLarge):
        EventParser().feed((b"data: " + b"x" * 90 + b"\n") * 20)
