"""Chat platforms: whatever comes in their name is read, or refused in a way that the adapter expects."""

import random
from collections.abc import Generator
from contextlib import contextmanager, suppress

from tests.fuzz.inputs import json_bytes
from tests.fuzz.platforms import ALLOWED, READINGS
from tests.fuzz.target import Attempt


@contextmanager
def target() -> Generator[Attempt]:
    """A damaged body of every platform."""
    yield attempt


def attempt(source: random.Random) -> None:
    """See the module."""
    for reading in READINGS.values():
        with suppress(*ALLOWED):
            reading.read(json_bytes(source, reading.samples))
