"""A sleep by the clock that another part of the program can end early."""

import asyncio

from shoal.domain.clock import Clock


class Alarm:
    """For one waiting task. Rings while nobody waits are kept, as one, for the next wait, so that none is lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the present wait, or the next one; never waits. Call it in the event loop's thread."""
        self._rung.set()

    async def wait(self, seconds: float) -> None:
        """Sleep this long, or until rung."""
        await self._clock.wait(self._rung, seconds)
        self._rung.clear()
