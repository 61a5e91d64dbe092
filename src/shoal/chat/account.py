"""An account's life at its platform: connected again whenever it fails, and short answers to whoever gave a command."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Never

from shoal.domain.backoff import retry_delay
from shoal.domain.calls import HttpAnswer
from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError, PlatformError, StoreError
from shoal.domain.ids import ThreadId
from shoal.domain.messages import Prompt
from shoal.domain.posts import OutboundPost

log = logging.getLogger(__name__)

UNAUTHORIZED = HttpAnswer(401, b'{"error":"unauthorized","message":"The signature or token is missing or wrong."}')
NOT_READY = HttpAnswer(503, b'{"error":"unavailable","message":"Not ready yet; send it again."}')
NOT_STORED = HttpAnswer(503, b'{"error":"unavailable","message":"It could not be stored; send it again."}')
TAKEN = HttpAnswer(200, b"{}")


class ChatAccount:
    """What all adapters share. `connected` is set while messages come in; `post` raises PlatformError.

    `whispers`: the platform shows an answer to a command to its asker alone. `cut` gives the pieces of a long one.
    """

    def __init__(
        self,
        platform: str,
        clock: Clock,
        post: Callable[[OutboundPost], Awaitable[str]],
        *,
        whispers: bool = False,
        cut: Callable[[str], Sequence[str]] = lambda text: (text,),
    ) -> None:
        self.platform = platform
        self.connected = asyncio.Event()
        self._clock = clock
        self._post = post
        self._whispers = whispers
        self._cut = cut
        self._failures = 0
        self._warned = ""

    async def keep_connected(self, connect: Callable[[], Awaitable[None]]) -> Never:
        """Connect until cancelled: at once where a connection ended by itself, later and later where it failed.

        The same failure is a warning once. A platform that says how long to wait is heard.
        """
        while True:
            try:
                await connect()
            except (PlatformError, ConfigError, StoreError) as error:
                self._failures += 1
                asked = error.retry_after_seconds if isinstance(error, PlatformError) else None
                seconds = retry_delay(self._failures, asked)
                level = logging.INFO if str(error) == self._warned else logging.WARNING
                self._warned = str(error)
                log.log(level, "%s", error, extra={"platform": self.platform, "again_in_seconds": round(seconds, 1)})
                await self._clock.sleep(seconds)

    def works(self) -> None:
        """The connection works: the next failure is the first again."""
        self._failures, self._warned = 0, ""

    async def answer(self, prompt: Prompt, text: str) -> None:
        """Answer a command shortly; if it cannot be said it is not said."""
        if self._whispers:
            await self.say(prompt.thread, prompt.key, text, user="" if prompt.direct else prompt.author.id)
        else:
            await self.say(prompt.thread, prompt.key, text, reply_to=prompt.message_id)

    async def say(self, thread: ThreadId, key: str, text: str, *, reply_to: str = "", user: str = "") -> None:
        """The same, without its prompt; `user` alone sees it, where one is given."""
        kind = "ephemeral" if user else "text"
        try:
            for number, piece in enumerate(self._cut(text)):
                answered = "" if number else reply_to
                post = OutboundPost(thread, f"told:{key}:{number}", piece, kind, reply_to=answered, user=user)
                await self._post(post)
        except PlatformError as error:
            log.info("an answer to a command was lost", extra={"platform": self.platform, "why": str(error)})
