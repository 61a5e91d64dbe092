"""Which threads the bot follows, kept in the store so that a restart changes nothing."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from shoal.chat.slack.inbound import is_direct
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, make_thread_id, thread_address
from shoal.domain.messages import Prompt
from shoal.domain.store import Settings

RECENT_MAX = 30
"""Threads looked into for what was missed, those last spoken in."""
ASKERS_MAX = 5000


class Followed:
    """The threads of one account."""

    def __init__(self, platform: str, store: Settings) -> None:
        self._platform = platform
        self._store = store
        self._askers: OrderedDict[ThreadId, str] = OrderedDict()

    async def follow(self, thread: ThreadId) -> None:
        """From now on all that is written in this thread is meant for the bot. Raises StoreError."""
        await self._store.put(f"subscribed:{self._platform}", thread, "1")

    async def is_followed(self, thread: ThreadId) -> bool:
        """Whether the bot was addressed in this thread. Raises StoreError."""
        return await self._store.get(f"subscribed:{self._platform}", thread) is not None

    async def heard(self, prompt: Prompt) -> None:
        """Note who spoke where, and up to when everything was taken in. Raises StoreError."""
        self._askers[prompt.thread] = prompt.author.id
        self._askers.move_to_end(prompt.thread)
        while len(self._askers) > ASKERS_MAX:
            self._askers.popitem(last=False)
        channel = thread_address(prompt.thread).channel
        if not is_direct(channel):
            await self._store.put(f"latest:{self._platform}", f"{channel}:{prompt.author.id}", prompt.thread)
        known, seen = await self.recent()
        recent = (prompt.thread, *(thread for thread in known if thread != prompt.thread))[:RECENT_MAX]
        noted = (recent, max(seen, prompt.message_id))
        await self._store.put(f"heard:{self._platform}", "recent", msgspec.json.encode(noted).decode())

    async def recent(self) -> tuple[Sequence[ThreadId], str]:
        """The threads last spoken in, newest first, and the newest message's timestamp. Raises StoreError."""
        found = await self._store.get(f"heard:{self._platform}", "recent")
        try:
            return msgspec.json.decode(found or "", type=tuple[tuple[ThreadId, ...], str])
        except UNREADABLE:
            return (), ""

    def asker(self, thread: ThreadId) -> str:
        """Who spoke last in a thread since the start; empty when nobody did."""
        return self._askers.get(thread, "")

    async def latest(self, channel: str, user: str) -> ThreadId | None:
        """The thread in which a person last spoke to the bot in a channel. Raises StoreError."""
        if is_direct(channel):
            return make_thread_id(self._platform, channel, "0")
        found = await self._store.get(f"latest:{self._platform}", f"{channel}:{user}")
        return ThreadId(found) if found else None
