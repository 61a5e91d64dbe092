"""Fuzz targets and their attempts, each repeatable from a random source of its own.

A target is a module `fuzz_NAME.py` in this folder with a context manager `target()`, which yields a function. The
function makes one attempt with the random source that it gets, and raises if a rule is broken. A new target is a new
file. A target with ATTEMPTS runs that many times by default, and any other for SECONDS.
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
    """Something that a target needs is missing on this machine. The message names it."""


class Broken(Exception):
    """An attempt broke a rule. The message says how to repeat it."""


def names() -> list[str]:
    """Return the names of all targets, sorted."""
    return sorted(path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.glob("fuzz_*.py"))


def opened(name: str) -> AbstractContextManager[Attempt]:
    """Return a target's context manager."""
    return cast("Callable[[], AbstractContextManager[Attempt]]", _module(name).target)()


def bounds(name: str) -> tuple[int | None, float]:
    """Return the default bounds of a target, in attempts and in seconds. The first one reached ends it."""
    attempts: int | None = getattr(_module(name), "ATTEMPTS", None)
    return attempts, SECONDS if attempts is None else math.inf


def make(attempt: Attempt, name: str, seed: int, number: int) -> None:
    """Make the attempt with this number. Raises Broken from the original error."""
    try:
        attempt(random.Random(f"{name}:{seed}:{number}"))
    except Exception as error:
        again = f"python -m tests.fuzz --seed {seed} --number {number} {name}"
        raise Broken(f"{type(error).__name__}: {error}\nmake it again: {again}") from error


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.fuzz_{name}")
