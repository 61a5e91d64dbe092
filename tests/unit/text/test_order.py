"""Sorting names as people do."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.text.order import natural


def test_numbers_in_names_count_as_numbers() -> None:
    names = ["agent-10", "agent-2", "agent-1", "Agent-3", "agent", "a10b2", "a10b10", "a9", "zed", "007", "7b"]
    expected = ["007", "7b", "a9", "a10b2", "a10b10", "agent", "agent-1", "agent-2", "Agent-3", "agent-10", "zed"]
    assert sorted(names, key=natural) == expected


@given(st.lists(st.text()))
def test_any_names_can_be_ordered_and_the_order_is_total(names: list[str]) -> None:
    assert sorted(names, key=natural) == sorted(reversed(names), key=natural)
