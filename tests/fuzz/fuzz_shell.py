"""Every program that bash runs, and every file it writes, was foreseen by the actions of the command."""

import random
import tempfile
import time
from pathlib import Path

from tests.fuzz.commands import Ground, random_command, unforeseen


def run(seconds: float, seed: int) -> str:
    """Run random commands in bash. Raises AssertionError with the command that did what no action covers."""
    source = random.Random(seed)
    tried = ran = 0
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder).resolve())
        while time.monotonic() < until:
            command = random_command(source)
            tried += 1
            if any(action.opaque for action in ground.actions(command)):
                continue
            ran += 1
            found = unforeseen(ground, command)
            assert not found, found
    return f"{tried} commands read, {ran} without opaque parts run"
