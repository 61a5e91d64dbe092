"""One holder over all processes: a bot's token is used by one process at a time, and by another when that one dies.

Every process asks for every name with PostgreSQL's advisory locks, on one connection of its own; the server gives a
lock back when the connection ends, however it ends. Against a process that is frozen, or a machine that is gone without
a word, the server ends a connection that was silent for `stalled_seconds`; asking anew every `beat_seconds` keeps the
others. Until a thawed process notices (one beat), two may serve: what they receive twice is stored once.
"""

import logging
from collections.abc import Awaitable, Callable

import anyio
import psycopg
from anyio.abc import TaskGroup
from psycopg import AsyncConnection

from shoal.engine.jobs import why

log = logging.getLogger(__name__)

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
        """The names served here."""
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
                    await self._hold(connection)
            except psycopg.OperationalError as error:
                if not self._is_away:
                    log.warning("names cannot be held while the database is away", extra={"why": why(error)})
                self._is_away = True
            await anyio.sleep(self._beat_seconds)

    async def _hold(self, connection: AsyncConnection) -> None:
        self._is_away = False
        await connection.execute(_LIMITS, {"silence": f"{round(self._stalled_seconds * 1000)}ms"})
        async with anyio.create_task_group() as serving:
            await self._keep(connection, serving)
            serving.cancel_scope.cancel()  # all of it at once: the server has given every lock back

    async def _keep(self, connection: AsyncConnection, serving: TaskGroup) -> None:
        """Ask again and again, until the connection is lost."""
        is_connected = True
        while is_connected:
            is_connected = await self._ask(connection, serving)
            await anyio.sleep(self._beat_seconds if is_connected else 0)

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
