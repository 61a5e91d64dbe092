"""Fault injection: a database driver that kills the process immediately before or after a durable write."""

import os
import signal
from collections.abc import Awaitable
from typing import Literal, TypeVar

from shoal.store.driver import Driver, Script

T = TypeVar("T")

Side = Literal["before", "after"]


class WrappedDriver:
    """A `Driver` that forwards all calls to another driver. Override `around` to add behavior to each script."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def write(self, script: Script[T]) -> T:
        return await self.around(self._driver.write(script))

    async def read(self, script: Script[T]) -> T:
        return await self.around(self._driver.read(script))

    async def close(self) -> None:
        await self._driver.close()

    async def around(self, work: Awaitable[T]) -> T:
        return await work


class KillingDriver(WrappedDriver):
    """A `Driver` that kills the process with SIGKILL at write number `at`, counted from 1.

    If `side` is "before", the write is lost. If it is "after", the write is durable, but the caller gets no result.
    `writes` counts the writes.
    """

    def __init__(self, driver: Driver, side: Side, at: int) -> None:
        super().__init__(driver)
        self._side = side
        self._at = at
        self.writes = 0

    async def write(self, script: Script[T]) -> T:
        self.writes += 1
        mine = self.writes == self._at
        if mine and self._side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await self._driver.write(script)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
