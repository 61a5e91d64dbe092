"""Runs every fuzz target for some seconds: `python -m tests.fuzz [--seconds N] [--seed N] [NAME…]`.

A target is a module `fuzz_*.py` in this folder with `run(seconds, seed) -> str`, which raises AssertionError with the
input that broke a rule, and else says in a line what it did.
"""

import argparse
import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast


def targets(names: list[str]) -> list[str]:
    """The modules to run: all of them, or those named."""
    found = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))
    return [name for name in found if not names or name.removeprefix("fuzz_") in names]


def main() -> int:
    """Run the targets one after another; 1 when any of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("names", nargs="*", help="e.g. shell rules")
    chosen = parser.parse_args()
    failed = 0
    for name in targets(chosen.names):
        run = cast("Callable[[float, int], str]", importlib.import_module(f"tests.fuzz.{name}").run)
        try:
            print(f"{name}, seed {chosen.seed}: {run(chosen.seconds, chosen.seed)}", flush=True)
        except AssertionError as error:
            failed = 1
            print(f"{name}, seed {chosen.seed}: FAILED\n{error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
