"""Every regular expression in the product takes at most linear time for any input.

`tests/tidy/expressions.py` finds and measures them in a separate process that does nothing else.
"""

import json
import subprocess
import sys
from functools import cache

import msgspec
import pytest

from tests.tidy.expressions import BUILT, Expression, Slow, measured
from tests.tidy.source import ROOT

FOUND_MIN = 350


class Report(msgspec.Struct):
    """The JSON output of the measuring process."""

    expressions: int
    unknown: list[str]
    unused: list[str]
    slow: list[Slow]


@cache
def report() -> Report:
    run = [sys.executable, "-W", "ignore", "-m", "tests.tidy.expressions"]
    printed = subprocess.run(run, cwd=ROOT, check=True, capture_output=True).stdout
    return msgspec.convert(json.loads(printed), Report)


def test_every_expression_of_the_product_is_linear() -> None:
    assert report().expressions > FOUND_MIN
    assert not [f"{slow.place} {slow.method}: {slow.pattern[:120]} over {slow.text}" for slow in report().slow]


def test_expressions_built_at_run_time_are_listed_with_samples() -> None:
    assert not report().unknown, "add samples to BUILT in tests/tidy/expressions.py"
    assert not report().unused, f"remove from BUILT ({len(BUILT)} entries)"


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(a+)+b", "match"),
        (r"(?:x|xy?)*z", "match"),
        (r"\s+->", "search"),
        (r"<a\s[^>]*?href=[\"']([^\"']+)[\"'][^>]*>(.*?)</a>", "search"),
        (r"<!--.*?-->", "search"),
        (r"(.*)=(.*)=(.*);", "fullmatch"),
        (r"\d+[0-9]*x", "match"),
    ],
)
def test_a_slow_expression_is_found(pattern: str, method: str) -> None:
    """Repeats the measurement, because other activity on the machine can hide a slow expression."""
    assert any(measured(Expression("sample:1", pattern, 0, (method,))) for _ in range(10))


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?<!\s)\s++->", "search"),
        (r"\s+->", "match"),
        (r"<[^<>]*+>", "search"),
        (r"(?:[^\\\"]|\\.)*+\"", "match"),
        (r"[a-z]{1,20}[0-9]{1,20}", "search"),
    ],
)
def test_a_linear_expression_passes(pattern: str, method: str) -> None:
    assert measured(Expression("sample:1", pattern, 0, (method,))) is None
