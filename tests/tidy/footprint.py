"""Measures how many files and functions one plain Telegram message in an active conversation runs through, and how
deep the calls nest.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from shoal.testing.model import FakeModel
from tests.scenarios.scene import playing
from tests.scenarios.stands import stand_of
from tests.tidy.source import PACKAGE

WARM = 2
"""Number of messages before the measured ones."""
LOOKED_AT = 24
"""Number of measured messages. Only code that at least half of them run counts, which leaves out timers and makes
busy and idle machines give nearly the same number.
"""
SETTINGS = {"mailbox": {"pause_seconds": 0}}
"""No time passes between messages, so none of them may count as a further line of the previous one."""


class Footprint(NamedTuple):
    """The number of the product's files and functions, and the maximum number of its frames on one stack."""

    files: int
    functions: int
    depth: int


class _Profile:
    def __init__(self) -> None:
        self.seen: set[CodeType] = set()
        self.depth = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _of_product(frame.f_code):
            self.seen.add(frame.f_code)
            depth, at = 0, frame
            while at is not None:
                depth += _of_product(at.f_code)
                at = at.f_back
            self.depth = max(self.depth, depth)


def _of_product(code: CodeType) -> bool:
    path = code.co_filename
    if code.co_name.startswith("<"):  # a lambda or comprehension belongs to its function
        return False
    return path.startswith(f"{PACKAGE}/") and not path.startswith(f"{PACKAGE}/testing/")


async def _measured(folder: Path) -> Footprint:
    stand = stand_of("telegram", folder)
    await stand.start()
    profiles: list[_Profile] = []
    try:
        model = FakeModel(*(f"answer {number}" for number in range(WARM + LOOKED_AT)))
        async with playing(stand, folder / "home", model, settings=SETTINGS) as scene:
            for number in range(WARM + LOOKED_AT):
                profile = _Profile()
                threading.setprofile(profile)
                sys.setprofile(profile)
                await scene.ada.says(f"question {number}")
                await scene.ada.sees(f"answer {number}")
                sys.setprofile(None)
                profiles.append(profile)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # removes the profiler
        await stand.stop()
    looked_at = profiles[WARM:]
    passed = Counter(code for profile in looked_at for code in profile.seen)
    usual = [code for code, times in passed.items() if 2 * times >= LOOKED_AT]
    files = {code.co_filename for code in usual}
    return Footprint(len(files), len(usual), min(profile.depth for profile in looked_at))


def footprint() -> Footprint:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measured(Path(folder)))


if __name__ == "__main__":
    print(footprint())
