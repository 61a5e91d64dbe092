"""Live events of threads for subscribers in this process."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from shoal.kernel.events import (
    AssistantSaid,
    Event,
    LiveData,
    LiveEvent,
    RetryScheduled,
    TextStreamed,
    ThinkingStreamed,
    TurnFinished,
)
from shoal.kernel.ids import ThreadId, TurnId

CALLS_MAX = 1000
BACKLOG_MAX = 1000


class Subscription:
    """A subscription to live events. Iterate over it to receive them.

    If the subscriber falls more than BACKLOG_MAX events behind, `lost` becomes True and the iteration ends. The
    subscriber must then read the journal after the last event that it received, and subscribe again.
    """

    def __init__(self) -> None:
        self._backlog: deque[Event | LiveEvent] = deque()
        self._ready = asyncio.Event()
        self._closed = False
        self.lost = False

    def put(self, item: Event | LiveEvent) -> None:
        if len(self._backlog) >= BACKLOG_MAX:
            self.lose()
        elif not self.lost:
            self._backlog.append(item)
            self._ready.set()

    def lose(self) -> None:
        """End the iteration because events were lost. The subscriber must read the journal again."""
        self.lost = True
        self._backlog.clear()
        self._ready.set()

    def close(self) -> None:
        """End the iteration after the queued events."""
        self._closed = True
        self._ready.set()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event | LiveEvent:
        """Return the next event. If the wait is cancelled, no event is lost and the iteration can continue."""
        while not self._backlog:
            if self.lost or self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._backlog.popleft()


class _StreamedCall:
    """The text that a running model call has produced, for subscribers that join during the call."""

    def __init__(self, turn: TurnId, step: int, after: int) -> None:
        self.turn, self.step, self.after = turn, step, after
        self.thoughts: list[str] = []
        self.texts: list[str] = []

    def live_events(self, thread: ThreadId) -> list[LiveEvent]:
        pieces: list[LiveData] = []
        if self.thoughts:
            pieces.append(ThinkingStreamed("".join(self.thoughts), self.step, 0, self.after))
        if self.texts:
            pieces.append(TextStreamed("".join(self.texts), self.step, 0, self.after))
        return [LiveEvent(thread, self.turn, piece) for piece in pieces]


class Hub:
    """Implements `LiveHub` for this process.

    The text of a running model call is stored until its message is journaled, so late subscribers miss nothing. At
    most CALLS_MAX calls are stored.
    """

    def __init__(self) -> None:
        self._calls: dict[ThreadId, _StreamedCall] = {}
        self._watchers: dict[ThreadId | None, list[Subscription]] = {}
        self._taps: list[Callable[[Event], None]] = []

    def tap(self, count: Callable[[Event], None]) -> None:
        """Call `count` with each journal event that is published. `count` must neither block nor raise."""
        self._taps.append(count)

    @contextmanager
    def subscribe(self, thread: ThreadId | None = None) -> Generator[Subscription]:
        """Subscribe to one thread, or to all threads if `thread` is None.

        A subscription to one thread starts with the text of the model call that is running there.
        """
        subscription = Subscription()
        if thread is not None and thread in self._calls:
            for piece in self._calls[thread].live_events(thread):
                subscription.put(piece)
        self._watchers.setdefault(thread, []).append(subscription)
        try:
            yield subscription
        finally:
            watchers = self._watchers[thread]
            watchers.remove(subscription)
            if not watchers:
                del self._watchers[thread]

    def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            for count in self._taps:
                count(event)
            if isinstance(event.data, AssistantSaid | TurnFinished | RetryScheduled):
                self._calls.pop(event.thread, None)
            self._put(event.thread, event)

    def show(self, thread: ThreadId, turn: TurnId, data: LiveData) -> None:
        if isinstance(data, TextStreamed | ThinkingStreamed):
            call = self._calls.get(thread)
            if call is None or (call.turn, call.step) != (turn, data.step):
                self._calls.pop(thread, None)  # move the thread to the end, because the first entry is evicted
                if len(self._calls) >= CALLS_MAX:
                    del self._calls[next(iter(self._calls))]
                call = self._calls[thread] = _StreamedCall(turn, data.step, data.after)
            (call.texts if isinstance(data, TextStreamed) else call.thoughts).append(data.text)
        if self.watched(thread):
            self._put(thread, LiveEvent(thread, turn, data))

    def watched(self, thread: ThreadId) -> bool:
        return bool(self._watchers) and (thread in self._watchers or None in self._watchers)

    def lose(self) -> None:
        """End all subscriptions, because events may have been lost."""
        for watchers in self._watchers.values():
            for subscription in watchers:
                subscription.lose()

    def close(self) -> None:
        """End all subscriptions after their queued events. Used at shutdown."""
        for watchers in self._watchers.values():
            for subscription in watchers:
                subscription.close()

    def _put(self, thread: ThreadId, item: Event | LiveEvent) -> None:
        for watcher in (*self._watchers.get(thread, ()), *self._watchers.get(None, ())):
            watcher.put(item)
