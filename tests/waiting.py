"""How long tests wait for what happens at its own pace."""

import threading
import time
from collections.abc import Callable

WAIT_SECONDS = 60.0
TICK_SECONDS = 0.1


def until(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait until something is so. Raises AssertionError when it does not come."""
    pause, end = threading.Event(), time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come"
        pause.wait(TICK_SECONDS)
