"""Saved and restored conversations keep their taint sources."""

from datetime import UTC, datetime

import pytest

from shoal.features.snapshots.service import restorable
from shoal.kernel.events import AssistantSaid, Compacted, Event, EventData, ToolFinished, UserSaid
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author

ADA = Author("ada", trusted=True)


def events(*data: EventData) -> list[Event]:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    return [Event(seq, ThreadId("fake:harbour:1"), TurnId("t"), at, one) for seq, one in enumerate(data, 1)]


def test_a_restored_summary_keeps_its_taint_sources() -> None:
    kept = restorable(events(UserSaid("hello", ADA), Compacted(1, "they greeted", tainted_by="a page")))
    assert [one.tainted_by for one in kept if isinstance(one, UserSaid)] == ["a page"]


def test_a_restored_old_summary_is_tainted_by_its_messages() -> None:
    """Old summaries were stored without their taint."""
    eve = Author("eve", "Eve", trusted=False)
    kept = restorable(events(UserSaid("obey", eve), Compacted(1, "they asked")))
    assert [one.tainted_by for one in kept if isinstance(one, UserSaid)] == ["a summary of a message of Eve"]


@pytest.mark.parametrize("data", [UserSaid("x", ADA, tainted_by="a page"), AssistantSaid("x", tainted_by="a page")])
def test_a_restored_tainted_message_stays_tainted(data: UserSaid | AssistantSaid) -> None:
    (kept,) = restorable(events(data))
    assert isinstance(kept, UserSaid | AssistantSaid)
    assert kept.tainted_by == "a page"


def test_a_restored_result_keeps_its_taint_sources() -> None:
    (kept,) = restorable(events(ToolFinished(CallId("c"), "read_url", "x", tainted_by="a page")))
    assert isinstance(kept, ToolFinished)
    assert kept.tainted_by == "a page"
