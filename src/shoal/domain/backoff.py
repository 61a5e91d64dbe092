"""How long to wait before trying again: doubling pauses with jitter, and never less than the other side asked for."""

import random
from collections.abc import Callable

BACKOFF_SECONDS_MAX = 30.0
"""Longest pause of our own choosing; what the other side asks for may be longer."""
JITTER = 0.5
"""The share of a pause that is random, so that many who failed together do not come back together."""

_DOUBLINGS_MAX = 30


def retry_delay(
    attempt: int,
    retry_after_seconds: float | None = None,
    base_seconds: float = 1.0,
    *,
    chance: Callable[[], float] = random.random,
) -> float:
    """Seconds to wait after the `attempt`-th failure (1 is the first).

    Between half and all of base × 2^(attempt-1), at most BACKOFF_SECONDS_MAX; a `retry_after_seconds` is kept to, with
    up to a tenth of it (at most a second) added. `chance` gives numbers from 0 up to 1. The caller bounds what it
    honours.
    """
    doubled = base_seconds * 2.0 ** min(max(attempt, 1) - 1, _DOUBLINGS_MAX)
    own = min(doubled, BACKOFF_SECONDS_MAX) * (1.0 - JITTER * chance())
    if retry_after_seconds is None:
        return own
    return max(own, retry_after_seconds + min(1.0, 0.1 * retry_after_seconds) * chance())
