"""Delays between retries."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.clock import ASKED_SECONDS_MAX, BACKOFF_SECONDS_MAX, retry_after, retry_delay
from shoal.testing.clock import ManualClock

chances = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 10_000), st.floats(0.01, 60), chances)
def test_a_pause_doubles_within_its_bounds(attempt: int, base: float, chance: float) -> None:
    delay = retry_delay(attempt, None, base, chance=lambda: chance)
    whole = min(base * 2.0 ** min(attempt - 1, 30), BACKOFF_SECONDS_MAX)
    assert whole / 2 <= delay <= whole


def test_pauses_grow_until_the_bound() -> None:
    delays = [retry_delay(attempt, chance=lambda: 0.0) for attempt in range(1, 8)]
    assert delays == [1, 2, 4, 8, 16, 30, 30]


@given(st.integers(1, 20), st.floats(0, 3600), chances)
def test_a_pause_is_never_shorter_than_requested(attempt: int, asked: float, chance: float) -> None:
    delay = retry_delay(attempt, asked, chance=lambda: chance)
    assert delay >= asked
    assert delay <= max(BACKOFF_SECONDS_MAX, asked + 1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Sun, 22 Nov 2026 10:00:30 GMT", "date": "Sun, 22 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 22 Nov 2026 10:01:00 GMT"}, 60.0),
        ({"retry-after": "Sun, 22 Nov 2026 09:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "5, 120"}, 120.0),
        ({"retry-after": "120 ,-5,1.5"}, 120.0),
        ({"retry-after": "5, soon"}, None),
        ({"retry-after": " 60 "}, 60.0),
        ({"retry-after": "9" * 400}, ASKED_SECONDS_MAX),
        ({"retry-after": "Sun, 22 Nov 9999 10:00:00 GMT"}, ASKED_SECONDS_MAX),
        ({"retry-after": "Sun, 22 Nov 99999999999999999999 10:00:00 GMT"}, None),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({}, None),
    ],
)
def test_a_retry_after_header_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, ManualClock(datetime(2026, 11, 22, 10, 0, tzinfo=UTC))) == seconds


@given(st.text(), st.text())
def test_any_header_yields_a_wait(after: str, date: str) -> None:
    seconds = retry_after({"retry-after": after, "date": date}, ManualClock())
    assert seconds is None or 0 <= seconds <= ASKED_SECONDS_MAX
