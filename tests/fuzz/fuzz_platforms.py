"""Chat platforms: an adapter either reads an incoming body, or rejects it with an error that the adapter catches."""

import random
from collections.abc import Generator
from contextlib import contextmanager, suppress

from tests.fuzz.inputs import json_bytes
from tests.fuzz.platforms import ALLOWED, READINGS
from tests.fuzz.target import Attempt


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def attempt(source: random.Random) -> None:
    for reading in READINGS.values():
        with suppress(*ALLOWED):
            reading.read(json_bytes(source, reading.samples))
