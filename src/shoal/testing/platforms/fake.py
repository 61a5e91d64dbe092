"""Base class of the platform fakes: a loopback server, simulated people, and injected faults.

Each fault in `troubles` affects one post or edit, and each fault in `poll_troubles` affects one poll:

    refuse          respond with 429 and a retry delay in seconds
    refuse_all      respond in the same way, for all calls of the account
    fail            respond with `failed`, by default a 502, without executing the call
    cut             break the connection without executing the call
    lose            execute the call, but break the connection before the response
    delay           execute the call, but respond only after `let_go`

These attributes and methods affect events, downloads and chats:

    event_copies    the number of times that each event is delivered
    hold            stop the delivery of events
    release         deliver the held events, in order or backwards
    redeliver       deliver the last event again
    slow_files      block file downloads until `let_go`
    barred          chats and threads that refuse posts, with the platform's reason

`stop` and `start` simulate an outage, during which people can write. `drop` breaks every connection once.
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
"""Matches the paths of file downloads."""

Trouble: TypeAlias = tuple[Literal["refuse", "refuse_all", "fail", "cut", "lose", "delay"], float]
"""A kind of fault, and the retry delay in seconds that `refuse` and `refuse_all` request."""
Delivery: TypeAlias = Callable[[], Awaitable[T]]
"""Function that delivers an event to the bot. The fake may call it more than once."""
Deliver: TypeAlias = Callable[[Mapping[str, str], bytes], Awaitable[HttpAnswer]]
"""Handler for webhook calls to the bot, such as an adapter's `receive` method. Its arguments are the headers and the
body.
"""


class FakePlatform:
    """Base class of the platform fakes.

    A subclass responds to the bot's calls in `respond` and reports each event with `happen`. On platforms with
    webhooks, it sends events to `deliver`.
    """

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
        """Start the server. After `stop`, it uses the same port again."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop the server, but keep the platform's state."""
        await self.server.stop()

    def drop(self) -> None:
        self.server.drop()

    async def respond(self, called: Called) -> Answered:
        """Respond to a call from the bot. Raises Refused to reject it."""
        raise NotImplementedError

    def too_many(self, seconds: float) -> Answered:
        """Return a 429 response in the platform's format."""
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
        """Send events as webhook calls to this URL."""
        import httpx2

        async def deliver(headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            async with httpx2.AsyncClient(verify=default_tls(), timeout=CALL_SECONDS_MAX, trust_env=False) as client:
                answer = await client.post(url, headers=dict(headers), content=body)
            return HttpAnswer(answer.status_code, answer.content)

        self.deliver = deliver

    # ---- what people see ----

    async def until(self, found: Callable[[], T | None]) -> T:
        """Wait until `found` returns a true value, and return that value. It is called after each change."""
        async with self._changed:
            seen = await self._changed.wait_for(found)
        assert seen is not None
        return seen

    async def tell(self) -> None:
        """Notify the tasks that wait in `until`."""
        async with self._changed:
            self._changed.notify_all()

    async def seen(self, said: Callable[[], Iterable[T]], part: str, text_of: Callable[[T], str]) -> T:
        """Wait until a message contains `part`, and return the message. Unfinished previews do not count."""
        return await self.until(
            lambda: next(
                (post for post in said() if part in text_of(post) and not text_of(post).endswith(WRITING)), None
            )
        )

    # ---- faults ----

    async def weathered(self, make: Callable[[], Answered], *, polls: bool = False) -> Answered:
        """Execute a call with the next fault from `troubles`, or from `poll_troubles` if `polls` is set."""
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
        """Release delayed responses and downloads."""
        self._delayed = self.slow_files = False
        await self.tell()

    async def happen(self, deliver: Delivery[T]) -> T | None:
        """Deliver an event to the bot, subject to the current faults.

        Return the bot's response, or None if the event is held.
        """
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
        """Deliver the last event again, as if the bot's confirmation had been lost."""
        assert self._last is not None, "no event was delivered yet"
        await self._last()
        await self.tell()

    def hold(self) -> None:
        """Hold all events until `release` is called."""
        self._held = []

    async def release(self, *, backwards: bool = False) -> None:
        """Deliver the held events, in reverse order if `backwards` is set."""
        held, self._held = self._held or [], None
        for deliver in held[::-1] if backwards else held:
            await deliver()
        await self.tell()
