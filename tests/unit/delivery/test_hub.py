"""Who watches a thread sees what happens in it, until they leave."""

from datetime import UTC, datetime

import pytest

from shoal.delivery.hub import Hub
from shoal.domain.events import Event, StatusChanged, UserSaid
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.messages import Author

THREAD = ThreadId("web:lobby:1")
SAID = Event(1, THREAD, TurnId("t1"), datetime(2026, 1, 5, tzinfo=UTC), UserSaid("hi", Author("u1", trusted=True)))


async def test_a_watcher_that_leaves_takes_no_other_along() -> None:
    hub = Hub()
    with hub.subscribe(THREAD) as stays:
        with hub.subscribe(THREAD):
            pass
        hub.publish([SAID])
        stays.close()
        assert [item async for item in stays] == [SAID]


async def test_nothing_is_shown_to_a_thread_that_everybody_left() -> None:
    hub = Hub()
    with hub.subscribe(THREAD):
        assert hub.watched(THREAD)
    assert not hub.watched(THREAD)
    with hub.subscribe() as all_threads:
        hub.show(THREAD, TurnId("t1"), StatusChanged("idle"))
        hub.close()
        assert len([item async for item in all_threads]) == 1


async def test_a_watcher_may_fall_as_far_behind_as_the_bound_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.delivery.hub.BACKLOG_MAX", 3)
    for count, kept in ((3, 3), (4, 0), (6, 0)):
        hub = Hub()
        with hub.subscribe() as coming:
            hub.publish([SAID] * count)
            hub.close()
            assert len([item async for item in coming]) == kept
            assert coming.lost == (count > 3)


async def test_every_event_is_counted_once_whoever_watches_and_nothing_that_is_only_live() -> None:
    hub, counted = Hub(), list[Event]()
    hub.tap(counted.append)
    with hub.subscribe(THREAD), hub.subscribe():
        hub.publish([SAID, SAID])
        hub.show(THREAD, TurnId("t1"), StatusChanged("idle"))
    hub.publish([SAID])
    assert counted == [SAID] * 3
