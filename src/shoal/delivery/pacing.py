"""Paces one account of a platform: its windows of posts a thread, a channel and overall, and what it asks to wait."""

from collections import OrderedDict, deque

from shoal.domain.clock import Clock
from shoal.domain.ids import ThreadId, thread_address
from shoal.domain.ports import ChatLimits, Window

ROUTES_KEPT_MAX = 4096
"""Channels and threads whose last posts are remembered; the longest unused are forgotten."""

ACCOUNT = ""
"""The route of everything the account does."""


class Pacer:
    """Gives out the times of posts; every post takes one before it is made."""

    def __init__(self, limits: ChatLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._taken: OrderedDict[tuple[Window, str], deque[float]] = OrderedDict()
        self._until: OrderedDict[str, float] = OrderedDict()

    async def turn(self, thread: ThreadId) -> None:
        """Wait until a post to this thread is within every window, and count it.

        First come, first served within a route; a post that waits for its channel takes no place of the account's.
        Cancelling while waiting leaves the place in the windows taken.
        """
        await self._wait(thread, self._reserve(thread, of_account=False))
        await self._wait(thread, self._reserve(thread, of_account=True))

    async def _wait(self, thread: ThreadId, at: float) -> None:
        while (wait := max(at, self._barred_until(thread)) - self._clock.monotonic()) > 0:
            await self._clock.sleep(wait)

    def refused(self, thread: ThreadId, seconds: float, *, everywhere: bool = False) -> None:
        """The platform asked to wait: for this channel, or for the whole account."""
        route = ACCOUNT if everywhere else _channel(thread)
        until = self._clock.monotonic() + seconds
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

    def _reserve(self, thread: ThreadId, *, of_account: bool) -> float:
        """The earliest time that fits the windows of the account, or all others, taken in each of them."""
        windows = [
            (window, self._posts(window, thread))
            for window in self._limits.windows
            if (window.scope == "account") == of_account and (not window.groups_only or self._is_group(thread))
        ]
        at = self._clock.monotonic()
        for window, posts in windows:
            if posts:
                at = max(at, posts[-1])
            if len(posts) == window.posts:
                at = max(at, posts[0] + window.seconds)
        for _, posts in windows:
            posts.append(at)
        return at

    def _posts(self, window: Window, thread: ThreadId) -> deque[float]:
        """The times of the last posts of a window, at most as many as it allows."""
        route = {"thread": thread, "channel": _channel(thread), "account": ACCOUNT}[window.scope]
        posts = self._taken.setdefault((window, route), deque(maxlen=window.posts))
        self._taken.move_to_end((window, route))
        while len(self._taken) > ROUTES_KEPT_MAX:
            self._taken.popitem(last=False)
        return posts

    def _barred_until(self, thread: ThreadId) -> float:
        return max(self._until.get(ACCOUNT, 0.0), self._until.get(_channel(thread), 0.0))

    def _is_group(self, thread: ThreadId) -> bool:
        prefix = self._limits.group_prefix
        return bool(prefix) and thread_address(thread).channel.startswith(prefix)


def _channel(thread: ThreadId) -> str:
    return thread.rpartition(":")[0]
