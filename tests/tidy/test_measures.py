"""What the code costs a reader does not grow."""

from operator import le

import pytest

from tests.tidy import measures
from tests.tidy.footprint import Footprint, footprint
from tests.tidy.source import GROUP, RATCHETS

LIMITS = RATCHETS.measures
TRIES = 3


@pytest.mark.xdist_group(GROUP)
def test_the_code_does_not_grow() -> None:
    assert measures.wiring_imports() <= LIMITS.wiring_imports_max
    assert len(measures.lonely_protocols()) <= LIMITS.lonely_protocols_max
    assert len(measures.class_names_used_twice()) <= LIMITS.class_names_twice_max
    assert round(measures.private_functions_called_once(), 1) <= LIMITS.private_called_once_percent_max


def test_a_message_passes_no_more_files_and_functions() -> None:
    """The least of three: on a busy machine each message may be so slow that what wakes by the clock falls into all."""
    limit = Footprint(LIMITS.message_files_max, LIMITS.message_functions_max, LIMITS.message_depth_max)
    found = list[Footprint]()
    while len(found) < TRIES and not any(all(map(le, one, limit)) for one in found):
        found.append(footprint())
    least = Footprint(*map(min, zip(*found, strict=True)))
    assert all(map(le, least, limit)), f"{least} is more than {limit}"


def test_a_footprint_is_seen() -> None:
    assert min(footprint()) > 5
