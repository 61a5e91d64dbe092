"""Watchers of a thread receive its events until they leave."""

from datetime import UTC, datetime

import pytest

from shoal.delivery.hub import Hub
from shoal.kernel.events import AssistantSaid, Event, LiveEvent, StatusChanged, TextStreamed, ThinkingStreamed, UserSaid
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author

THREAD = ThreadId("web:lobby:1")
SAID = Event(1, THREAD, TurnId("t1"), datetime(2026, 1, 5, tzinfo=UTC), UserSaid("hi", Author("u1", trusted=True)))


async def test_a_leaving_watcher_does_not_affect_others() -> None:
    hub = Hub()
    with hub.subscribe(THREAD) as stays:
        with hub.subscribe(THREAD):
            pass
        hub.publish([SAID])
        stays.close()
        assert [item async for item in stays] == [SAID]


async def test_a_thread_without_watchers_gets_no_live_events() -> None:
    hub = Hub()
    with hub.subscribe(THREAD):
        assert hub.watched(THREAD)
    assert not hub.watched(THREAD)
    with hub.subscribe() as all_threads:
        hub.show(THREAD, TurnId("t1"), StatusChanged("idle"))
        hub.close()
        assert len([item async for item in all_threads]) == 1


async def test_a_slow_watcher_is_dropped_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.delivery.hub.BACKLOG_MAX", 3)
    for count, kept in ((3, 3), (4, 0), (6, 0)):
        hub = Hub()
        with hub.subscribe() as coming:
            hub.publish([SAID] * count)
            hub.close()
            assert len([item async for item in coming]) == kept
            assert coming.lost == (count > 3)


async def test_durable_events_are_counted_once_and_live_events_are_not_counted() -> None:
    hub, counted = Hub(), list[Event]()
    hub.tap(counted.append)
    with hub.subscribe(THREAD), hub.subscribe():
        hub.publish([SAID, SAID])
        hub.show(THREAD, TurnId("t1"), StatusChanged("idle"))
    hub.publish([SAID])
    assert counted == [SAID] * 3


async def seen_by_a_late_watcher(hub: Hub) -> list[object]:
    with hub.subscribe(THREAD) as late:
        hub.close()
        return [item.data async for item in late if isinstance(item, LiveEvent)]


async def test_a_late_watcher_gets_the_text_of_the_running_call() -> None:
    hub = Hub()
    for piece, offset in (("Two ", 0), ("boats", 4)):
        hub.show(THREAD, TurnId("t1"), ThinkingStreamed(piece, 3, offset, 7))
        hub.show(THREAD, TurnId("t1"), TextStreamed(piece, 3, offset, 7))
    assert await seen_by_a_late_watcher(hub) == [
        ThinkingStreamed("Two boats", 3, 0, 7),
        TextStreamed("Two boats", 3, 0, 7),
    ]
    hub.show(THREAD, TurnId("t1"), TextStreamed("Anew", 4, 0, 7))
    assert await seen_by_a_late_watcher(hub) == [TextStreamed("Anew", 4, 0, 7)], "another call begins the text anew"
    hub.publish([Event(2, THREAD, TurnId("t1"), SAID.at, AssistantSaid("Anew"))])
    assert await seen_by_a_late_watcher(hub) == [], "what is journaled is read there"


async def test_unfinished_calls_are_forgotten_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.delivery.hub.CALLS_MAX", 2)
    hub = Hub()
    for number in range(3):
        hub.show(ThreadId(f"web:lobby:{number}"), TurnId("t1"), TextStreamed("x", 1))
    seen: list[int] = []
    for number in range(3):
        with hub.subscribe(ThreadId(f"web:lobby:{number}")) as late:
            late.close()
            seen.append(len([item async for item in late]))
    assert seen == [0, 1, 1]
