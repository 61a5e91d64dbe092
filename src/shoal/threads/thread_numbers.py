"""Short numbers for threads, such as `#2`, in the lists and commands of a channel.

A thread gets its number when a channel first lists it. If a channel has more than NUMBERED_MAX numbers, the lowest
expire. Ids always remain valid.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shoal.kernel.errors import Conflict
from shoal.kernel.ids import ThreadId, channel_of
from shoal.kernel.ports import Settings
from shoal.kernel.untrusted import UNREADABLE

SCOPE = "thread-numbers"
NUMBERED_MAX = 500
"""Maximum number of numbered threads per channel. The lowest numbers that are not in the latest list are removed first.
"""
SWAPS_MAX = 10
_numbers = msgspec.json.Decoder(dict[ThreadId, int])


class ThreadNumbers(NamedTuple):
    """Assigns thread numbers, and stores them in one settings row per channel."""

    settings: Settings

    async def of(self, place: ThreadId, threads: Sequence[ThreadId]) -> dict[ThreadId, int]:
        """Return the numbers of these threads in the channel of `place`. New threads get the next numbers in order.

        Raises StoreError, and Conflict if other changes keep interfering.
        """
        for _ in range(SWAPS_MAX):
            raw, known = await self._read(place)
            new = [thread for thread in dict.fromkeys(threads) if thread not in known]
            if not new:
                return {thread: known[thread] for thread in threads}
            highest = max(known.values(), default=0)
            numbered = known | {thread: number for number, thread in enumerate(new, highest + 1)}
            spare = sorted((number, thread) for thread, number in numbered.items() if thread not in threads)
            for _, thread in spare[: max(0, len(numbered) - NUMBERED_MAX)]:
                del numbered[thread]
            if await self.settings.swap(SCOPE, channel_of(place), raw, msgspec.json.encode(numbered).decode()):
                return {thread: numbered[thread] for thread in threads}
        raise Conflict("The list of threads keeps changing. Try again.")

    async def thread(self, place: ThreadId, number: int) -> ThreadId | None:
        _, known = await self._read(place)
        return next((thread for thread, its in known.items() if its == number), None)

    async def _read(self, place: ThreadId) -> tuple[str | None, dict[ThreadId, int]]:
        raw = await self.settings.get(SCOPE, channel_of(place))
        try:
            return raw, _numbers.decode(raw) if raw else {}
        except UNREADABLE:
            return raw, {}
