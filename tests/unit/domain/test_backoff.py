"""Pauses between tries."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.backoff import BACKOFF_SECONDS_MAX, retry_delay

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
def test_what_the_other_side_asks_for_is_never_undercut(attempt: int, asked: float, chance: float) -> None:
    delay = retry_delay(attempt, asked, chance=lambda: chance)
    assert delay >= asked
    assert delay <= max(BACKOFF_SECONDS_MAX, asked + 1)
