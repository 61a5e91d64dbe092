"""Paces one account of a platform: its windows of posts a thread, a channel and overall, and what it asks to wait.

A post that waits holds its thread's and its channel's place in the queue, and only the first of a channel waits for the
account; so posts of a route leave in the order in which they came, and what is recorded is when they really left.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence

from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.posts import ChatLimits, Window

ROUTES_KEPT_MAX = 4096
"""Channels and threads whose last posts are remembered; the longest unused are forgotten."""

BARRED_SECONDS_MAX = 86_400.0
"""However long a platform asks to wait, after this it is asked again."""

ACCOUNT = ""
"""The route of everything the account does."""


class _Route:
    """A thread, a channel or the account: who waits for it, and when its last posts left, by window."""

    __slots__ = ("posts", "queue")

    def __init__(self, windows: Sequence[Window]) -> None:
        self.queue = asyncio.Lock()
        self.posts = [(window, deque[float](maxlen=window.posts)) for window in windows]

    def free_at(self) -> float:
        """The earliest time that fits every window."""
        full = [posts[0] + window.seconds for window, posts in self.posts if len(posts) == window.posts]
        return max(full, default=0.0)

    def leave(self, at: float) -> None:
        """A post leaves."""
        for _, posts in self.posts:
            posts.append(at)


class Pacer:
    """Gives out the times of posts; every post takes one before it is made."""

    def __init__(self, limits: ChatLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._routes: OrderedDict[str, _Route] = OrderedDict()
        self._until: OrderedDict[str, float] = OrderedDict()

    async def turn(self, thread: ThreadId) -> None:
        """Wait until a post to this thread is within every window and nothing bars it, and count it.

        First come, first served within a route. Cancelling while waiting takes nothing.
        """
        of_thread, of_channel, of_account = self._routes_of(thread)
        async with of_thread.queue, of_channel.queue:
            gone = False
            while not gone:
                await self._free(thread, of_thread, of_channel)
                async with of_account.queue:
                    await self._free(thread, of_account)
                    gone = self._leave(thread, of_thread, of_channel, of_account)

    def take_now(self, thread: ThreadId) -> bool:
        """Count a post if one may leave at this moment and nobody waits; False, and nothing, if not."""
        routes = self._routes_of(thread)
        return not any(route.queue.locked() for route in routes) and self._leave(thread, *routes)

    async def _free(self, thread: ThreadId, *routes: _Route) -> None:
        while (wait := self._wait_seconds(thread, *routes)) > 0:
            await self._clock.sleep(wait)

    def _wait_seconds(self, thread: ThreadId, *routes: _Route) -> float:
        at = max(self._barred_until(thread), *(route.free_at() for route in routes))
        return round(at - self._clock.monotonic(), 6)  # clocks count microseconds: less is never slept

    def _leave(self, thread: ThreadId, *routes: _Route) -> bool:
        """Count a post that may leave at this moment; False when it may not."""
        if self._wait_seconds(thread, *routes) > 0:
            return False
        for route in routes:
            route.leave(self._clock.monotonic())
        return True

    def refused(self, thread: ThreadId, seconds: float, *, everywhere: bool = False) -> None:
        """The platform asked to wait: for this channel, or for the whole account."""
        route = ACCOUNT if everywhere else _channel(thread)
        until = self._clock.monotonic() + min(seconds, BARRED_SECONDS_MAX)
        self._until[route] = max(until, self._until.get(route, 0.0))
        self._until.move_to_end(route)
        while len(self._until) > ROUTES_KEPT_MAX:
            self._until.popitem(last=False)

    def barred(self, thread: ThreadId) -> bool:
        """Whether the platform asked to wait and that time is not over."""
        return self._barred_until(thread) > self._clock.monotonic()

    def edit_seconds(self, thread: ThreadId) -> float:
        """How far apart the edits of a preview in this thread have to be."""
        if self._is_group(thread) and self._limits.group_edit_seconds_min:
            return self._limits.group_edit_seconds_min
        return self._limits.edit_seconds_min

    def _routes_of(self, thread: ThreadId) -> tuple[_Route, _Route, _Route]:
        """The routes of a post: its thread, its channel, the account."""
        group = self._is_group(thread)
        windows = [window for window in self._limits.windows if not window.groups_only or group]
        names = {"thread": f"thread {thread}", "channel": f"channel {_channel(thread)}", "account": ACCOUNT}
        found = [self._route(name, [w for w in windows if w.scope == scope]) for scope, name in names.items()]
        while len(self._routes) > ROUTES_KEPT_MAX and not next(iter(self._routes.values())).queue.locked():
            self._routes.popitem(last=False)
        return found[0], found[1], found[2]

    def _route(self, name: str, windows: Sequence[Window]) -> _Route:
        route = self._routes.get(name)
        if route is None:
            route = self._routes[name] = _Route(windows)
        self._routes.move_to_end(name)
        return route

    def _barred_until(self, thread: ThreadId) -> float:
        return max(self._until.get(ACCOUNT, 0.0), self._until.get(_channel(thread), 0.0))

    def _is_group(self, thread: ThreadId) -> bool:
        prefix = self._limits.group_prefix
        return bool(prefix) and thread_address(thread).channel.startswith(prefix)


def _channel(thread: ThreadId) -> str:
    return thread.rpartition(":")[0]
