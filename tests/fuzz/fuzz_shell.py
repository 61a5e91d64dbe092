"""Every program that bash runs, and every file it writes, was foreseen by the actions of the command."""

import random
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.commands import Ground, random_command, unforeseen
from tests.fuzz.target import Attempt


@contextmanager
def target() -> Generator[Attempt]:
    """A random command, run by bash among stand-ins."""
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder).resolve())

        def attempt(source: random.Random) -> None:
            command = random_command(source)
            if not any(action.opaque for action in ground.actions(command)):
                found = unforeseen(ground, command)
                assert not found, found

        yield attempt
