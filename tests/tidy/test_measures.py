"""Two rules of shape; the sizes are printed by `python -m tests.tidy.measures` and limit nothing."""

import pytest

from tests.tidy import measures
from tests.tidy.footprint import footprint
from tests.tidy.source import GROUP


@pytest.mark.xdist_group(GROUP)
def test_a_protocol_has_two_implementations_or_a_fake() -> None:
    assert measures.lonely_protocols() == []


@pytest.mark.xdist_group(GROUP)
def test_a_class_name_is_used_once() -> None:
    assert measures.class_names_used_twice() == []


def test_the_footprint_of_a_message_can_be_measured() -> None:
    assert min(footprint()) > 5
