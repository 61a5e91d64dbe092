"""Fuzz targets and their attempts. Each attempt has its own random source, so it can be repeated.

A target is a module `fuzz_NAME.py` in this folder. Its context manager `target()` yields a function that makes one
attempt with the given random source and raises if a rule is broken. To add a target, add a file. By default, a
target runs for SECONDS, or ATTEMPTS times if it defines ATTEMPTS.
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
    """This machine lacks a requirement of the target. The message names the requirement."""


class Broken(Exception):
    """An attempt broke a rule. The message shows how to repeat the attempt."""


def names() -> list[str]:
    return sorted(path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.glob("fuzz_*.py"))


def opened(name: str) -> AbstractContextManager[Attempt]:
    return cast("Callable[[], AbstractContextManager[Attempt]]", _module(name).target)()


def bounds(name: str) -> tuple[int | None, float]:
    """Return a target's default limits, in attempts and in seconds. The target stops at the first limit that it
    reaches.
    """
    attempts: int | None = getattr(_module(name), "ATTEMPTS", None)
    return attempts, SECONDS if attempts is None else math.inf


def make(attempt: Attempt, name: str, seed: int, number: int) -> None:
    """Make the attempt with this number. Raises Broken, chained to the original error."""
    try:
        attempt(random.Random(f"{name}:{seed}:{number}"))
    except Exception as error:
        again = f"python -m tests.fuzz --seed {seed} --number {number} {name}"
        raise Broken(f"{type(error).__name__}: {error}\nmake it again: {again}") from error


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.fuzz_{name}")
