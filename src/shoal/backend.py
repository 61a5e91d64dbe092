"""Database, engine and coordination for one process.

`database.url` selects the backend:

- empty: SQLite and the local engine. A lock on the home directory prevents other processes from starting.
- postgresql://…: PostgreSQL and procrastinate. Any number of processes can run. They notify each other with NOTIFY.
  An advisory lock protects work that only one process may do. If its holder dies, another process takes over.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup

from shoal.config import Config
from shoal.delivery.hub import Hub
from shoal.engine.local import LocalEngine
from shoal.kernel.errors import StoreCorrupt, StoreReadOnly, StoreUnavailable
from shoal.kernel.home import Home
from shoal.kernel.ports import Engine, LiveHub
from shoal.store.driver import Driver
from shoal.store.health import Health
from shoal.store.journal import Journal
from shoal.store.lock import HomeLock
from shoal.store.sqlite import SqliteDriver

if TYPE_CHECKING:
    from shoal.store.postgres import PostgresDriver

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Time limit for the `close` function of services."""
OUTAGE_SECONDS = 1.0
"""Seconds before a service is restarted after a database outage or a full disk."""

Role: TypeAlias = Literal["all", "serve", "worker", "offline"]
"""Roles of a process.

- `all`: runs everything.
- `serve`: runs the platforms, the page and the triggers.
- `worker`: runs turns.
- `offline`: runs none of these.
"""

Service: TypeAlias = Callable[[], Coroutine[object, object, None]]


class Backend:
    """The backend for a single process, with SQLite in the home directory. Base class of ClusterBackend.

    After the database is damaged, every write raises StoreCorrupt, and services that need the database stop. The
    process continues, because it may contain the only copy of the data (decision 035).

    - `health`: describes known damage.
    - `recovers`: True if threads with unfinished work must be woken at startup. If False, their jobs still exist.
    """

    recovers: bool = True
    is_front: bool = True
    """True if this process serves the platforms and the page. Workers do not."""

    def __init__(self, driver: Driver, health: Health, engine: Engine, lock: HomeLock | None = None) -> None:
        self.driver = driver
        self.health = health
        self.engine = engine
        self._lock = lock
        self._services: list[Service] = []
        self._named: dict[str, Service] = {}
        self._scopes: dict[str, tuple[anyio.CancelScope, asyncio.Event]] = {}
        self._tasks: TaskGroup | None = None

    def hub(self, hub: Hub, journal: Journal, origin: str) -> LiveHub:
        return hub

    def on_due(self, due: Callable[[str], None]) -> None:
        """Call `due` when another process has created work that is due.

        The argument of `due` is a platform, `triggers`, or an empty string for both.
        """

    def add_service(self, serve: Service) -> None:
        """Run `serve` in every process, and restart it after each database outage.

        If the database is damaged, the service stops permanently.
        """
        self._services.append(partial(_outlast, self.health, serve))

    def add_single(self, name: str, *serve: Service, close: Service | None = None) -> None:
        """Run the `serve` functions as services in only one process at a time. `close` is called after all of them have
        ended.
        """
        self.begin(name, *serve, close=close)

    def begin(self, name: str, *serve: Service, close: Service | None = None) -> None:
        """Run the `serve` functions as services in this process until `end` is called with the same name. `close` is
        called after all of them have ended.
        """
        self._named[name] = self._lasting(serve, close)
        if self._tasks is not None:
            self._tasks.start_soon(self._run_named, name)

    async def end(self, name: str) -> None:
        self._named.pop(name, None)
        if (running := self._scopes.get(name)) is not None:
            running[0].cancel()
            await running[1].wait()

    def services(self) -> Sequence[Coroutine[object, object, None]]:
        return [*(serve() for serve in self._services), self._run_all_named()]

    async def _run_all_named(self) -> None:
        async with unwrapped(), anyio.create_task_group() as tasks:
            self._tasks = tasks
            for name in self._named:
                tasks.start_soon(self._run_named, name)
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def _run_named(self, name: str) -> None:
        scope, ended = anyio.CancelScope(), asyncio.Event()
        self._scopes[name] = scope, ended
        try:
            with scope:
                await self._named[name]()
        finally:
            del self._scopes[name]
            ended.set()

    def _lasting(self, services: Sequence[Service], close: Service | None) -> Service:
        return partial(_together, [partial(_outlast, self.health, service) for service in services], close)

    def describe(self, address: str) -> None:
        """Publish the address of this process for other processes on this machine."""
        if self._lock is not None:
            self._lock.describe(address)


class ClusterBackend(Backend):
    """PostgreSQL with any number of processes, which coordinate through the database."""

    recovers: bool = False

    def __init__(self, config: Config, role: Role, driver: "PostgresDriver") -> None:
        from shoal.engine.cluster import Holder, Listener
        from shoal.engine.postgres import PostgresEngine
        from shoal.store.postgres import address

        wanted = config.engine
        where = address(config.database.url.reveal())
        self._pool = driver.pool
        self._listener = Listener(where)
        self._holder = Holder(where, beat_seconds=wanted.heartbeat_seconds, stalled_seconds=wanted.stalled_seconds)
        self.is_front = role != "worker"
        settings = msgspec.structs.replace(wanted, concurrency=0) if role == "serve" else wanted
        super().__init__(driver, driver.health, PostgresEngine(driver.pool, self._listener, settings))
        self._services += [self._listener.run, self._holder.run]

    def hub(self, hub: Hub, journal: Journal, origin: str) -> LiveHub:
        from shoal.engine.cluster import LiveBridge

        bridge = LiveBridge(hub, journal, self._pool, self._listener, origin)
        self._services.append(bridge.run)
        return bridge

    def on_due(self, due: Callable[[str], None]) -> None:
        """Call `due` when the database sends a notification about posts or triggers.

        After an outage, call it with an empty string, because any work may be due.
        """
        self._listener.listen("shoal_due", due, lambda: due(""))

    def add_single(self, name: str, *serve: Service, close: Service | None = None) -> None:
        """Run the services in the process that acquires the advisory lock with this name."""
        self._holder.want(name, self._lasting(serve, close))


async def _together(services: Sequence[Service], close: Service | None) -> None:
    try:
        async with unwrapped(), anyio.create_task_group() as tasks:
            for serve in services:
                tasks.start_soon(serve)
    finally:
        if close is not None:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await close()


async def _outlast(health: Health, serve: Service) -> None:
    """Run a service, and restart it after a database outage or a full disk.

    If the database is damaged, wait until this call is cancelled. All other errors are raised.
    """
    seconds = OUTAGE_SECONDS
    while True:
        try:
            return await serve()
        except* (StoreUnavailable, StoreReadOnly) as outage:
            log.warning(
                "database unavailable, restarting dependent services",
                extra={"why": str(outage.exceptions[0])},
            )
        except* StoreCorrupt:
            if not health.damage:
                raise
            seconds = math.inf
        await asyncio.sleep(seconds)


@asynccontextmanager
async def open_backend(
    config: Config, home: Home, role: Role, wrap: Callable[[Driver], Driver] | None, opened: Driver | None = None
) -> AsyncGenerator[Backend]:
    """Open the database, and close it when the block ends. A database that is passed as `opened` stays open.

    Raises HomeLocked and StoreError.
    """
    if opened is not None:
        yield Backend(opened, Health(), LocalEngine(config.engine.concurrency))
        return
    async with AsyncExitStack() as stack:
        if config.database.url:
            from shoal.store.postgres import PoolSettings, open_postgres

            settings = PoolSettings(connections_max=config.database.connections_max)
            driver = await open_postgres(config.database.url.reveal(), settings)
            backend: Backend = ClusterBackend(config, role, driver)
        else:
            lock = HomeLock(home.lock_file)
            lock.acquire()
            stack.callback(lock.release)
            sqlite = SqliteDriver(home.database_file, synchronous=config.database.synchronous.upper())
            backend = Backend(sqlite, sqlite.health, LocalEngine(config.engine.concurrency), lock)
        if wrap is not None:
            backend.driver = wrap(backend.driver)
        stack.push_async_callback(backend.driver.close)
        yield backend


@asynccontextmanager
async def unwrapped() -> AsyncGenerator[None]:
    """Replace an exception group that contains a single error with that error."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group
        raise
