"""What the processes of one database tell each other, and which of them serves a name.

Notifications: one LISTEN connection of a process calls whoever listens on a channel, and reconnects by itself. They are
hints, their content is in rows: what was sent while the connection was down is lost, so everybody who listens also
gives a function that looks at the rows when it is up again.

Holding: a bot's token is used by one process at a time, and by another when that one dies. Every process asks for every
name with PostgreSQL's advisory locks, on one connection of its own; the server gives a lock back when the connection
ends, however it ends. Against a process that is frozen, or a machine that is gone without a word, the server ends a
connection that was silent for `stalled_seconds`; asking anew every `beat_seconds` keeps the others. Until a thawed
process notices (one beat), two may serve: what they receive twice is stored once.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import anyio
import psycopg
from anyio.abc import TaskGroup
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool

log = logging.getLogger(__name__)

Pool: TypeAlias = AsyncConnectionPool[AsyncConnection]

RECONNECT_SECONDS = 1.0
CHECK_SECONDS = 10.0
"""How often a silent connection is asked whether it still is one."""


def why(error: Exception) -> str:
    """What went wrong with the database, in one line for the log."""
    return " ".join(str(error).split()) or type(error).__name__


class _Subscriber(NamedTuple):
    channel: str
    heard: Callable[[str], None]
    connected: Callable[[], None]


class Listener:
    """Owned by the app, which runs it for as long as the process serves."""

    def __init__(self, address: str, *, reconnect_seconds: float = RECONNECT_SECONDS) -> None:
        self._address = address
        self._reconnect_seconds = reconnect_seconds
        self._subscribers: list[_Subscriber] = []
        self.is_connected = False

    def listen(self, channel: str, heard: Callable[[str], None], connected: Callable[[], None]) -> None:
        """Have `heard` called with each payload, and `connected` each time listening (re)starts. Neither may wait.

        Call it before `run`.
        """
        self._subscribers.append(_Subscriber(channel, heard, connected))

    async def run(self) -> None:
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
        for channel in {subscriber.channel for subscriber in self._subscribers}:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self.is_connected = True
        for subscriber in self._subscribers:
            subscriber.connected()
        while True:
            async for notification in connection.notifies(timeout=CHECK_SECONDS):
                for subscriber in self._subscribers:
                    if subscriber.channel == notification.channel:
                        subscriber.heard(notification.payload)
            await connection.execute("select 1")


_LIMITS = b"""
select set_config('idle_session_timeout', %(silence)s, false), set_config('tcp_keepalives_idle', '5', false),
    set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '3', false)
"""
_ASK = b"select pg_try_advisory_lock(hashtextextended(%s, 1936224353))"


class Holder:
    """Serves, of the names it was given, those that no other process serves."""

    def __init__(self, address: str, *, beat_seconds: float = 2.0, stalled_seconds: float = 10.0) -> None:
        self._address = address
        self._beat_seconds = beat_seconds
        self._stalled_seconds = stalled_seconds
        self._wanted: dict[str, Callable[[], Awaitable[None]]] = {}
        self._held: set[str] = set()
        self._is_away = False

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self._held)

    def want(self, name: str, serve: Callable[[], Awaitable[None]]) -> None:
        """Have `serve` run while this process holds the name; it is cancelled when the name is lost, and may run again.

        Call it before `run`.
        """
        self._wanted[name] = serve

    async def run(self) -> None:
        """Hold what can be held, until cancelled. What `serve` raises ends it."""
        while self._wanted:
            try:
                async with await AsyncConnection.connect(self._address, autocommit=True) as connection:
                    self._is_away = False
                    await connection.execute(_LIMITS, {"silence": f"{round(self._stalled_seconds * 1000)}ms"})
                    async with anyio.create_task_group() as serving:
                        is_connected = True
                        while is_connected:
                            is_connected = await self._ask(connection, serving)
                            await anyio.sleep(self._beat_seconds if is_connected else 0)
                        serving.cancel_scope.cancel()  # all of it at once: the server has given every lock back
            except psycopg.OperationalError as error:
                if not self._is_away:
                    log.warning("names cannot be held while the database is away", extra={"why": why(error)})
                self._is_away = True
            await anyio.sleep(self._beat_seconds)

    async def _ask(self, connection: AsyncConnection, serving: TaskGroup) -> bool:
        """Ask for what is not held; False when the connection, and with it every name, is lost."""
        try:
            await connection.execute(b"select 1")
            for name in self._wanted.keys() - self._held:
                row = await (await connection.execute(_ASK, [name])).fetchone()
                if row is not None and row[0]:
                    self._held.add(name)
                    serving.start_soon(self._serve, name)
        except psycopg.OperationalError as error:
            log.warning("the held names are lost", extra={"names": sorted(self._held), "why": why(error)})
            return False
        return True

    async def _serve(self, name: str) -> None:
        log.info("this process serves", extra={"held": name})
        try:
            await self._wanted[name]()
            await anyio.sleep_forever()  # it ended by itself: nobody else need start it again
        finally:
            self._held.discard(name)
