"""Fault injection: a driver that really kills the process right before or after a durable write."""

import os
import signal
from collections.abc import Awaitable
from typing import Literal, TypeVar

from shoal.store.driver import Driver, Script

T = TypeVar("T")

Side = Literal["before", "after"]


class WrappedDriver:
    """Passes everything to a driver. A subclass adds behaviour around each script."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def write(self, script: Script[T]) -> T:
        return await self.around(self._driver.write(script))

    async def read(self, script: Script[T]) -> T:
        return await self.around(self._driver.read(script))

    async def close(self) -> None:
        await self._driver.close()

    async def around(self, work: Awaitable[T]) -> T:
        """Run one script."""
        return await work


class KillingDriver(WrappedDriver):
    """Kills the process at write number `at` (from 1). `before`: the write is not made. `after`: it is durable, but
    nobody learns that. `writes` counts them."""

    def __init__(self, driver: Driver, side: Side, at: int) -> None:
        super().__init__(driver)
        self._side = side
        self._at = at
        self.writes = 0

    async def write(self, script: Script[T]) -> T:
        """Write, or kill the process."""
        self.writes += 1
        mine = self.writes == self._at
        if mine and self._side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await self._driver.write(script)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
