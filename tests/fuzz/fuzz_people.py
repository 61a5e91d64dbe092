"""Two people: the owner's private conversation must not affect anything that a stranger sees. See
tests/noninterference.py.
"""

import random
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.inputs import any_text
from tests.fuzz.target import Attempt
from tests.noninterference import ACTS, SAYINGS, TALKS_MAX, WORDS, Talk, holds

ACTS_MAX = 6
ATTEMPTS = 50_000 // TALKS_MAX
"""One attempt is TALKS_MAX talks."""


@contextmanager
def target() -> Generator[Attempt]:
    with tempfile.TemporaryDirectory() as folder:

        def attempt(source: random.Random) -> None:
            talks = [_talk(source) for _ in range(TALKS_MAX)]
            holds(Path(folder) / "play", talks)

        yield attempt


def _talk(source: random.Random) -> Talk:
    acts = [source.choice(ACTS) for _ in range(source.randint(2, ACTS_MAX))]
    one, other = [source.choice((source.choice(WORDS), source.choice(SAYINGS), any_text(source, 8))) for _ in range(2)]
    return Talk(acts, (one, other))
