"""Time from process start to the reply, for `shoal ask` with a configured provider and for one bare request."""

import json
import sys

from bench.child import SHOAL, Ended, fake_model, new_home, run
from bench.rows import Row, middle

STARTS = 7


def measure() -> list[Row]:
    """Start each program `STARTS` times, alternating between them, after one uncounted start of each. Only the first
    start creates the home.
    """
    shoal: list[Ended] = []
    bare: list[Ended] = []
    empty: list[Ended] = []
    with fake_model() as url, new_home(url) as home:
        for _ in range(STARTS + 1):
            shoal.append(run([SHOAL, "ask", "hello id=cold"], home))
            bare.append(run([sys.executable, "-m", "bench.floor", json.dumps({"url": url})], home))
            empty.append(run([sys.executable, "-c", "print()"], home))
    if any("cold" not in one.output for one in shoal):
        raise RuntimeError("shoal ask gave no reply")
    return [
        Row(
            "cold: shoal ask, start to reply",
            "ms",
            middle(one.first_seconds for one in shoal[1:]) * 1000,
            middle(one.first_seconds for one in bare[1:]) * 1000,
            note=f"an empty Python script: {middle(one.first_seconds for one in empty[1:]) * 1000:.0f} ms",
        ),
        Row(
            "cold: shoal ask, CPU",
            "ms",
            middle(one.cpu_seconds for one in shoal[1:]) * 1000,
            middle(one.cpu_seconds for one in bare[1:]) * 1000,
        ),
    ]
