"""Runs each fuzz target for some seconds: `python -m tests.fuzz [--seconds N] [--seed N] [--number N] [NAME…]`."""

import argparse
import logging
import random
import sys
import time
import traceback

from tests.fuzz.target import SECONDS, Broken, Missing, bounds, make, names, opened

SHOWN_FRAMES = 8


def tried(name: str, seed: int, first: int, count: int | None, seconds: float) -> int:
    """Make attempts until `count` or `seconds` is reached, and return their number. Raises Broken."""
    until = time.monotonic() + seconds
    number = first
    with opened(name) as attempt:
        while time.monotonic() < until and (count is None or number < first + count):
            make(attempt, name, seed, number)
            number += 1
    return number - first


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, help=f"for each target; {SECONDS:.0f}, or its own number of attempts")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--number", type=int, help="make this attempt alone")
    parser.add_argument("names", nargs="*", help=", ".join(names()))
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(names())
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    logging.disable()
    failed = 0
    for name in chosen.names or names():
        first, (count, seconds) = 0, bounds(name)
        if chosen.seconds is not None:
            count, seconds = None, chosen.seconds
        if chosen.number is not None:
            first, count = chosen.number, 1
        try:
            attempts = tried(name, chosen.seed, first, count, seconds)
            print(f"{name}, seed {chosen.seed}: {attempts} attempts", flush=True)
        except Missing as missing:
            print(f"{name}: not tried, {missing}", flush=True)
        except Broken as broken:
            failed = 1
            traceback.print_exception(broken.__cause__, limit=-SHOWN_FRAMES, file=sys.stdout)
            print(f"{name}, seed {chosen.seed}: BROKEN\n{broken}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
