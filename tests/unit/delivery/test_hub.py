"""Who watches a thread sees what happens in it, until they leave."""

from datetime import UTC, datetime

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
