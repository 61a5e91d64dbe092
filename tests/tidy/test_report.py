"""`make report` runs. Its numbers are not limits."""

import re

import pytest

from tests.tidy.report import report
from tests.tidy.source import GROUP


@pytest.mark.xdist_group(GROUP)
def test_every_measure_has_a_number() -> None:
    lines = report()
    assert len(lines) == 6
    assert [line for line in lines if not re.search(r"[1-9]|: 0: ", line)] == []
