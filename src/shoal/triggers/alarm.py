"""A sleep by the clock that another part of the program can end early."""

import asyncio

from shoal.domain.clock import Clock


class Alarm:
    """For one waiting task. A ring while nobody waits is kept for the next wait, so that none is lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scope: asyncio.Timeout | None = None
        self._rung = False

    def ring(self) -> None:
        """End the present wait, or the next one; never waits. Call it in the event loop's thread."""
        self._rung = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def wait(self, seconds: float) -> None:
        """Sleep this long, or until rung."""
        if not self._rung:
            try:
                async with asyncio.timeout(None) as self._scope:
                    await self._clock.sleep(seconds)
            except TimeoutError:
                if not self._rung:
                    raise
            finally:
                self._scope = None
        self._rung = False
