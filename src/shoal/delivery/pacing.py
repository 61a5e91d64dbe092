"""Paces one account of a platform: its windows of posts a thread, a channel and overall, and what it asks to wait.

A post that waits holds its place in the queue of its channel, or of its thread where a platform counts by threads, and
only the first of each waits for the account; so posts of a route leave in the order in which they came, and what is
recorded is when they really left.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import AsyncExitStack

from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId, channel_of, thread_address
from shoal.kernel.posts import ChatLimits, Window

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


class Pacer:
    """Gives out the times of posts; every post takes one before it is made."""

    def __init__(self, limits: ChatLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._routes: OrderedDict[tuple[str, str], _Route] = OrderedDict()
        self._until: OrderedDict[str, float] = OrderedDict()

    async def turn(self, thread: ThreadId) -> None:
        """Wait until a post to this thread is within every window and nothing bars it, and count it. First come, first
        served within a route. Cancelling while waiting takes nothing."""
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
        """Count a post if one may leave at this moment and nobody waits; False, and nothing, if not."""
        routes = self._routes_of(thread)
        return not any(route.queue.locked() for route in routes) and self._leave(thread, routes)

    def _leave(self, thread: ThreadId, routes: Sequence[_Route]) -> bool:
        """Count a post that may leave at this moment; False when it may not."""
        if self._wait_seconds(thread, *routes) > 0:
            return False
        now = self._clock.monotonic()
        for route in routes:
            for _, posts in route.posts:
                posts.append(now)
        return True

    def _wait_seconds(self, thread: ThreadId, *routes: _Route) -> float:
        """How long until nothing bars the thread and every window of these routes has room."""
        at = max(self._until.get(ACCOUNT, 0.0), self._until.get(channel_of(thread), 0.0))
        for route in routes:
            for window, posts in route.posts:
                if len(posts) == window.posts:
                    at = max(at, posts[0] + window.seconds)
        return round(at - self._clock.monotonic(), 6)  # clocks count microseconds: less is never slept

    def refused(self, thread: ThreadId, seconds: float, *, everywhere: bool = False) -> None:
        """The platform asked to wait: for this channel, or for the whole account."""
        route = ACCOUNT if everywhere else channel_of(thread)
        until = self._clock.monotonic() + min(seconds, BARRED_SECONDS_MAX)
        self._until[route] = max(until, self._until.get(route, 0.0))
        self._until.move_to_end(route)
        while len(self._until) > ROUTES_KEPT_MAX:
            self._until.popitem(last=False)

    def barred(self, thread: ThreadId) -> bool:
        """Whether the platform asked to wait and that time is not over."""
        return self._wait_seconds(thread) > 0

    def edit_seconds(self, thread: ThreadId) -> float:
        """How far apart the edits of a preview in this thread have to be."""
        group_seconds = self._limits.group_edit_seconds_min if self._is_group(thread) else 0.0
        return group_seconds or self._limits.edit_seconds_min

    def _routes_of(self, thread: ThreadId) -> list[_Route]:
        """The routes of a post: its thread if that has a window of its own, its channel if that or else no thread has
        one, the account."""
        group = self._is_group(thread)
        found: list[_Route] = []
        for key in (("thread", thread), ("channel", channel_of(thread)), ("account", ACCOUNT)):
            route = self._routes.get(key)
            if route is None:
                windows = [one for one in self._limits.windows if one.scope == key[0]]
                if not windows and (key[0] == "thread" or (key[0] == "channel" and found)):
                    continue
                route = self._routes[key] = _Route([one for one in windows if group or not one.groups_only])
            self._routes.move_to_end(key)
            found.append(route)
        while len(self._routes) > ROUTES_KEPT_MAX and not next(iter(self._routes.values())).queue.locked():
            self._routes.popitem(last=False)
        return found

    def _is_group(self, thread: ThreadId) -> bool:
        prefix = self._limits.group_prefix
        return bool(prefix) and thread_address(thread).channel.startswith(prefix)
