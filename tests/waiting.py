"""Waiting for conditions that become true at an unknown time."""

import threading
import time
from collections.abc import Callable

WAIT_SECONDS = 60.0
TICK_SECONDS = 0.1


def until(holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    pause, end = threading.Event(), time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the condition did not become true in time"
        pause.wait(TICK_SECONDS)
