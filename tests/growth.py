"""Compares CPU time with a reference that runs at the same moment, so the load of the machine cannot fail a test.

Other activity only adds time, to both. The two run alternately, and the minimum of each counts.
"""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

ROUNDS_MAX = 4
REFERENCES = 5
"""Runs of the reference per round. It is short, so that a disturbance may cover all of one run."""
LIMIT_SECONDS = 0.3
"""Limit after which a run is stopped, unless the reference allows more."""
REFERENCE_SECONDS_MAX = 0.1
"""Limit for the reference. Linear code takes a few milliseconds for a short text."""
GROWTH = 8
"""Allowed growth for a text four times as long. Linear code takes 4 times as long, and quadratic code 16 times."""


class _StoppedError(Exception):
    pass


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise _StoppedError


@contextmanager
def stopped_by_timer() -> Generator[None]:
    """Allow `seconds` to stop functions that take too long."""
    before = signal.signal(signal.SIGVTALRM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


def seconds(run: Callable[[], object], limit_seconds: float = LIMIT_SECONDS) -> float:
    """Return the CPU seconds of a function. It is stopped at the limit, and the limit is returned."""
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_seconds)
    start = time.process_time()
    try:
        run()
        return min(time.process_time() - start, limit_seconds)
    except _StoppedError:
        return limit_seconds
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def slower(
    run: Callable[[], object], reference: Callable[[], object], times: float, enough_seconds: float
) -> tuple[float, float] | None:
    """Return the minimum CPU seconds of the reference and of `run` if `run` takes more than `times` as long.

    Returns None if it does not, or if `run` takes at most `enough_seconds`.
    """
    if seconds(run) <= enough_seconds:
        return None
    least_reference = least = float("inf")
    for _ in range(ROUNDS_MAX):
        references = [seconds(reference, REFERENCE_SECONDS_MAX) for _ in range(REFERENCES)]
        least_reference = min(least_reference, *references)
        if least_reference >= REFERENCE_SECONDS_MAX:
            return least_reference, LIMIT_SECONDS
        allowed = max(enough_seconds, times * least_reference)
        least = min(least, seconds(run, max(LIMIT_SECONDS, 1.1 * allowed)))
        if least <= allowed:
            return None
    return least_reference, least
