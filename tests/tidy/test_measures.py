"""What the code costs a reader does not grow."""

import pytest

from tests.tidy import measures
from tests.tidy.footprint import footprint
from tests.tidy.source import GROUP, RATCHETS

LIMITS = RATCHETS.measures


@pytest.mark.xdist_group(GROUP)
def test_the_code_does_not_grow() -> None:
    assert measures.wiring_imports() <= LIMITS.wiring_imports_max
    assert len(measures.lonely_protocols()) <= LIMITS.lonely_protocols_max
    assert len(measures.class_names_used_twice()) <= LIMITS.class_names_twice_max
    assert round(measures.private_functions_called_once(), 1) <= LIMITS.private_called_once_percent_max


def test_a_message_passes_no_more_files_and_functions() -> None:
    files, functions, depth = footprint()
    assert files <= LIMITS.message_files_max
    assert functions <= LIMITS.message_functions_max
    assert depth <= LIMITS.message_depth_max


def test_a_footprint_is_seen() -> None:
    assert min(footprint()) > 5
