"""Rate limits of one platform account (per thread, per channel and for the whole account), and waits that the platform
requests.

A waiting post keeps its position in the queue of its channel, or of its thread if the platform limits threads. Only the
first post of each queue waits for the account. The posts of a thread or channel therefore leave in order, and each is
counted when it is sent.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import AsyncExitStack

from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId, channel_of, thread_address
from shoal.kernel.posts import ChatLimits, Window

ROUTES_KEPT_MAX = 4096
"""Maximum number of threads and channels whose recent posts and waits are cached. The least recently used are evicted.
"""

BARRED_SECONDS_MAX = 86_400.0
"""Maximum wait that a platform can request."""

ACCOUNT = ""
"""Key of the route that limits all posts of the account."""


class _Route:
    """A thread, a channel or the account, with its queue and the times of its recent posts for each rate limit."""

    __slots__ = ("posts", "queue")

    def __init__(self, windows: Sequence[Window]) -> None:
        self.queue = asyncio.Lock()
        self.posts = [(window, deque[float](maxlen=window.posts)) for window in windows]


class Pacer:
    """Limits the rate of posts. Every post waits here until it may be sent."""

    def __init__(self, limits: ChatLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._routes: OrderedDict[tuple[str, str], _Route] = OrderedDict()
        self._until: OrderedDict[str, float] = OrderedDict()

    async def turn(self, thread: ThreadId) -> None:
        """Wait until all rate limits and requested waits allow a post to this thread, then count the post.

        Posts of the same thread or channel leave in the order of the calls. A cancelled wait is not counted.
        """
        if self.take_now(thread):
            return
        routes = *of_place, of_account = self._routes_of(thread)
        async with AsyncExitStack() as queues:
            for route in of_place:
                await queues.enter_async_context(route.queue)
            left = False
            while not left:
                while (wait := self._wait_seconds(thread, *of_place)) > 0:
                    await self._clock.sleep(wait)
                async with of_account.queue:
                    while (wait := self._wait_seconds(thread, of_account)) > 0:
                        await self._clock.sleep(wait)
                    left = self._leave(thread, routes)

    def take_now(self, thread: ThreadId) -> bool:
        """Count a post and return True if it may be sent now and no other post is waiting. Otherwise, return False."""
        routes = self._routes_of(thread)
        return not any(route.queue.locked() for route in routes) and self._leave(thread, routes)

    def _leave(self, thread: ThreadId, routes: Sequence[_Route]) -> bool:
        if self._wait_seconds(thread, *routes) > 0:
            return False
        now = self._clock.monotonic()
        for route in routes:
            for _, posts in route.posts:
                posts.append(now)
        return True

    def _wait_seconds(self, thread: ThreadId, *routes: _Route) -> float:
        at = max(self._until.get(ACCOUNT, 0.0), self._until.get(channel_of(thread), 0.0))
        for route in routes:
            for window, posts in route.posts:
                if len(posts) == window.posts:
                    at = max(at, posts[0] + window.seconds)
        return round(at - self._clock.monotonic(), 6)  # clocks have microsecond resolution

    def refused(self, thread: ThreadId, seconds: float, *, everywhere: bool = False) -> None:
        """Record a wait that the platform requested for this channel, or for the whole account if `everywhere`
        is True.
        """
        route = ACCOUNT if everywhere else channel_of(thread)
        until = self._clock.monotonic() + min(seconds, BARRED_SECONDS_MAX)
        self._until[route] = max(until, self._until.get(route, 0.0))
        self._until.move_to_end(route)
        while len(self._until) > ROUTES_KEPT_MAX:
            self._until.popitem(last=False)

    def barred(self, thread: ThreadId) -> bool:
        """Return True if a wait that the platform requested has not ended."""
        return self._wait_seconds(thread) > 0

    def edit_seconds(self, thread: ThreadId) -> float:
        group_seconds = self._limits.group_edit_seconds_min if self._is_group(thread) else 0.0
        return group_seconds or self._limits.edit_seconds_min

    def _routes_of(self, thread: ThreadId) -> list[_Route]:
        """Return the routes whose limits apply to a post: its thread, its channel and the account.

        The thread is included only if threads have a rate limit. The channel is included if channels have a rate
        limit or threads have none.
        """
        group = self._is_group(thread)
        routes: list[_Route] = []
        for key in (("thread", thread), ("channel", channel_of(thread)), ("account", ACCOUNT)):
            route = self._routes.get(key)
            if route is None:
                windows = [window for window in self._limits.windows if window.scope == key[0]]
                if not windows and (key[0] == "thread" or (key[0] == "channel" and routes)):
                    continue
                route = self._routes[key] = _Route([window for window in windows if group or not window.groups_only])
            self._routes.move_to_end(key)
            routes.append(route)
        while len(self._routes) > ROUTES_KEPT_MAX and not next(iter(self._routes.values())).queue.locked():
            self._routes.popitem(last=False)
        return routes

    def _is_group(self, thread: ThreadId) -> bool:
        prefix = self._limits.group_prefix
        return bool(prefix) and thread_address(thread).channel.startswith(prefix)
