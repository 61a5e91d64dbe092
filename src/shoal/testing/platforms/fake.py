"""The base of every fake platform: a server on loopback, people who wait and read, and injected faults.

    fault of a call           `troubles` affect posts and edits, `poll_troubles` affect polling; one call each
    ------------------------  ------------------------------------------------------------------------------------
    refuse                    answered with 429 and a wait in seconds
    refuse_all                the same, for all calls of the account
    fail                      answered with `failed`, by default a 502, without any effect
    cut                       the connection breaks without any effect
    lose                      the call succeeds, and the connection breaks before the answer
    delay                     the call succeeds, and the answer waits for `let_go`

    fault of events
    ------------------------  ------------------------------------------------------------------------------------
    event_copies              number of deliveries of each event
    hold, release             stop deliveries; then deliver all, in order or backwards
    redeliver                 deliver the last event again
    slow_files                block file downloads until `let_go`
    barred                    places that accept no posts, each with the platform's reason

`stop` and `start` make an outage, during which people still write. `drop` breaks every connection once.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal, TypeAlias, TypeVar

from shoal.kernel.posts import WRITING
from shoal.kernel.webhooks import HttpAnswer
from shoal.net.connections import default_tls
from shoal.testing.platforms.wire import BREAK, Answered, Called, LoopbackServer, Refused, ok

T = TypeVar("T")

CALL_SECONDS_MAX = 30.0
_FILE = re.compile(
    r"/(file/bot|files/|attachments/|service/v3/attachments/|v1/media/|_matrix/client/v1/media/download/)"
)
"""Path of served files."""

Trouble: TypeAlias = tuple[Literal["refuse", "refuse_all", "fail", "cut", "lose", "delay"], float]
"""A fault of a post, and the seconds of a rejection."""
Delivery: TypeAlias = Callable[[], Awaitable[T]]
"""Delivers one event to the bot. May be called again."""
Deliver: TypeAlias = Callable[[Mapping[str, str], bytes], Awaitable[HttpAnswer]]
"""Handles the headers and body of a call to the bot: an adapter's `receive`, or a caller of it over HTTP."""


class FakePlatform:
    """Shared by all fakes. A fake answers calls in `respond`, and lets events `happen`. Events that are calls go to
    `deliver`."""

    def __init__(self) -> None:
        self.server = LoopbackServer(self._served)
        self.troubles: deque[Trouble] = deque()
        self.poll_troubles: deque[Trouble] = deque()
        self.token_refused = False
        self.deliver: Deliver | None = None
        self.barred: dict[str, str] = {}
        self.failed = Answered(502, b"<html>Bad Gateway</html>")
        self.event_copies = 1
        self.slow_files = False
        self.files_asked = 0
        self._delayed = False
        self._held: list[Delivery[object]] | None = None
        self._last: Delivery[object] | None = None
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Listen, after `stop` on the same port."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop serving. State is kept."""
        await self.server.stop()

    def drop(self) -> None:
        """Break every connection."""
        self.server.drop()

    async def respond(self, called: Called) -> Answered:
        """Answer a call. Raises Refused."""
        raise NotImplementedError

    def too_many(self, seconds: float) -> Answered:
        """Build a 429 in the platform's words."""
        return ok({}, 429, (("retry-after", f"{seconds:g}"),))

    async def _served(self, called: Called) -> Answered:
        if _FILE.match(called.path):
            self.files_asked += 1
            await self.tell()
            await self.until(lambda: not self.slow_files)
        try:
            answer = await self.respond(called)
        except Refused as refused:
            answer = refused.answer
        await self.tell()
        return answer

    def call(self, url: str) -> None:
        """Deliver events that are calls to this address."""
        import httpx2

        async def deliver(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            async with httpx2.AsyncClient(verify=default_tls(), timeout=CALL_SECONDS_MAX, trust_env=False) as client:
                answer = await client.post(url, headers=dict(headers), content=body)
            return HttpAnswer(answer.status_code, answer.content)

        self.deliver = deliver

    # ---- what people see ----

    async def until(self, found: Callable[[], T | None]) -> T:
        """Wait until a condition is true, and return its value."""
        async with self._changed:
            seen = await self._changed.wait_for(found)
        assert seen is not None
        return seen

    async def tell(self) -> None:
        """Notify waiters of a change."""
        async with self._changed:
            self._changed.notify_all()

    async def seen(self, said: Callable[[], Iterable[T]], part: str, text_of: Callable[[T], str]) -> T:
        """Wait until a finished message contains `part`."""
        return await self.until(
            lambda: next(
                (post for post in said() if part in text_of(post) and not text_of(post).endswith(WRITING)), None
            )
        )

    # ---- the weather ----

    async def weathered(self, make: Callable[[], Answered], *, polls: bool = False) -> Answered:
        """Execute a call, unless a fault is due."""
        troubles = self.poll_troubles if polls else self.troubles
        kind, seconds = troubles.popleft() if troubles else ("", 0.0)
        match kind:
            case "refuse" | "refuse_all":
                answer = self.too_many(seconds)
            case "fail":
                answer = self.failed
            case "cut":
                answer = BREAK
            case _:
                answer = make()
        self._delayed = self._delayed or kind == "delay"
        await self.tell()
        if kind == "delay":
            await self.until(lambda: not self._delayed)
        return BREAK if kind == "lose" else answer

    async def let_go(self) -> None:
        """Release delayed answers and files."""
        self._delayed = self.slow_files = False
        await self.tell()

    async def happen(self, deliver: Delivery[T]) -> T | None:
        """Deliver an event, subject to faults; return the bot's answer, or None if it is held back."""
        self._last = deliver
        answer = None
        for _ in range(self.event_copies):
            if self._held is not None:
                self._held.append(deliver)
            else:
                answer = await deliver()
        await self.tell()
        return answer

    async def redeliver(self) -> None:
        """Deliver the last event again, as after a lost confirmation."""
        assert self._last is not None, "nothing happened yet"
        await self._last()
        await self.tell()

    def hold(self) -> None:
        """Keep events back until `release`."""
        self._held = []

    async def release(self, *, backwards: bool = False) -> None:
        """Deliver held events, optionally newest first."""
        held, self._held = self._held or [], None
        for deliver in held[::-1] if backwards else held:
            await deliver()
        await self.tell()
