"""Encoding thread ids: lossless, and safe as file names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.errors import InvalidId
from shoal.kernel.ids import decode_part, encode_part, format_ulid, make_thread_id, parse_thread_id, thread_address

part = st.text(min_size=1, max_size=50).filter(lambda text: len(encode_part(text)) <= 180)


@given(part, part, part)
def test_a_thread_id_round_trips(platform: str, channel: str, thread: str) -> None:
    address = thread_address(make_thread_id(platform, channel, thread))
    assert (address.platform, address.channel, address.thread) == (platform, channel, thread)


@given(part)
def test_an_encoded_part_is_safe_as_a_file_name(text: str) -> None:
    encoded = encode_part(text)
    assert encoded not in (".", "..")
    assert not set(encoded) & set('/\\:*?"<>|\0\n')
    assert decode_part(encoded) == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("spaces/ABC", "spaces%2FABC"), ("1234567890.123456", "1234567890.123456"), ("..", "%2E%2E"), ("a%b", "a%25b")],
)
def test_parts_are_encoded_as_documented(text: str, encoded: str) -> None:
    assert encode_part(text) == encoded


@pytest.mark.parametrize(
    "text", ["", "web", "web:lobby", "a:b:c:d", "web::x", "web:a/b:c", "web:%2f:c", "w:..:c", "w:a\udcffb:c"]
)
def test_malformed_thread_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidId, match="Thread id"):
        parse_thread_id(text)


def test_an_oversized_part_is_refused() -> None:
    assert parse_thread_id(f"web:lobby:{'x' * 180}")
    with pytest.raises(InvalidId, match="180"):
        parse_thread_id(f"web:lobby:{'x' * 181}")


def test_ulids_sort_by_time() -> None:
    early, late = format_ulid(1, b"\xff" * 10), format_ulid(2, b"\0" * 10)
    assert early < late
    assert len(early) == 26
