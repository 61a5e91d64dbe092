"""One LISTEN connection of a process to PostgreSQL: calls whoever listens on a channel, and reconnects by itself.

Notifications are hints, their content is in rows: what was sent while the connection was down is lost, so everybody
who listens also gives a function that looks at the rows when it is up again.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import anyio
import psycopg
from psycopg import AsyncConnection, sql

from shoal.engine.jobs import why

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 1.0
CHECK_SECONDS = 10.0
"""How often a silent connection is asked whether it still is one."""


class _Ear(NamedTuple):
    channel: str
    heard: Callable[[str], None]
    connected: Callable[[], None]


class Listener:
    """Owned by the app, which runs it for as long as the process serves."""

    def __init__(self, address: str, *, reconnect_seconds: float = RECONNECT_SECONDS) -> None:
        self._address = address
        self._reconnect_seconds = reconnect_seconds
        self._ears: list[_Ear] = []
        self.is_connected = False

    def listen(self, channel: str, heard: Callable[[str], None], connected: Callable[[], None]) -> None:
        """Have `heard` called with each payload, and `connected` each time listening (re)starts. Neither may wait.

        Call it before `run`.
        """
        self._ears.append(_Ear(channel, heard, connected))

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                async with await AsyncConnection.connect(self._address, autocommit=True) as connection:
                    await self._listen(connection)
            except psycopg.OperationalError as error:
                if self.is_connected:
                    log.warning("the database's notifications stopped; reconnecting", extra={"why": why(error)})
            finally:
                self.is_connected = False
            await anyio.sleep(self._reconnect_seconds)

    async def _listen(self, connection: AsyncConnection) -> None:
        for channel in {ear.channel for ear in self._ears}:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self.is_connected = True
        for ear in self._ears:
            ear.connected()
        while True:
            async for notification in connection.notifies(timeout=CHECK_SECONDS):
                self._tell(notification.channel, notification.payload)
            await connection.execute("select 1")

    def _tell(self, channel: str, payload: str) -> None:
        for ear in self._ears:
            if ear.channel == channel:
                ear.heard(payload)
