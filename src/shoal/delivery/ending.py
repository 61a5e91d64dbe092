"""Time for what has begun when its service has to end: a post that is at the platform is noted, not cut off."""

import math
from collections.abc import Generator
from contextlib import contextmanager

import anyio

ENDING_SECONDS = 5.0
"""How long a post that has begun may still take when its sender is cancelled."""


class Ending:
    """Of one run of a service."""

    def __init__(self) -> None:
        self._at = math.inf
        self._begun: set[anyio.CancelScope] = set()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Around the service's loop: when it is left, the time of what has begun runs."""
        try:
            yield
        finally:
            self._at = anyio.current_time() + ENDING_SECONDS
            for scope in self._begun:
                scope.deadline = self._at

    @contextmanager
    def finishing(self) -> Generator[None]:
        """No cancellation reaches the block before that time is over; then it is cut off, and left without a word."""
        with anyio.CancelScope(shield=True, deadline=self._at) as scope:
            self._begun.add(scope)
            try:
                yield
            finally:
                self._begun.discard(scope)
