"""What a fuzz target is, and how its attempts are made: each from a random source of its own, to be repeatable.

A target is a module `fuzz_NAME.py` in this folder with a context manager `target()` that gives a function; the function
makes one attempt with the random source it gets, and raises when a rule is broken. A new target is a new file. One with
ATTEMPTS is run so many times unless told how long, others for SECONDS.
"""

import importlib
import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TypeAlias, cast

Attempt: TypeAlias = Callable[[random.Random], None]


SECONDS = 30.0


class Missing(Exception):
    """Something that a target needs is not on this machine; the text says what."""


class Broken(Exception):
    """An attempt broke a rule; the text tells how to make it again."""


def names() -> list[str]:
    """The names of all targets, sorted."""
    return sorted(path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.glob("fuzz_*.py"))


def opened(name: str) -> AbstractContextManager[Attempt]:
    """A target, to be entered."""
    return cast("Callable[[], AbstractContextManager[Attempt]]", _module(name).target)()


def bounds(name: str) -> tuple[int | None, float]:
    """How many attempts are made at a target, and for how many seconds, unless told; the first bound that is met."""
    attempts: int | None = getattr(_module(name), "ATTEMPTS", None)
    return attempts, SECONDS if attempts is None else math.inf


def make(attempt: Attempt, name: str, seed: int, number: int) -> None:
    """Make the attempt with this number. Raises Broken, from what went wrong."""
    try:
        attempt(random.Random(f"{name}:{seed}:{number}"))
    except Exception as error:
        again = f"python -m tests.fuzz --seed {seed} --number {number} {name}"
        raise Broken(f"{type(error).__name__}: {error}\nmake it again: {again}") from error


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.fuzz_{name}")
