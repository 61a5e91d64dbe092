"""What a process stands on: its database, its engine, and how it shares work with others.

database.url      driver, engine                 other processes                       what one process alone may do
---------------   ----------------------------   -----------------------------------   -----------------------------
empty             SQLite, local                  refused by the lock on the home        everything
postgresql://…    PostgreSQL, procrastinate      any number; NOTIFY tells each other    held by an advisory lock, with
                                                 what happens                           take-over when the holder dies
"""

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from shoal.config import Config
from shoal.delivery.hub import Hub
from shoal.domain.errors import StoreCorrupt, StoreFull, StoreUnavailable
from shoal.domain.home import Home
from shoal.domain.ports import Engine, LiveHub
from shoal.engine.local import LocalEngine
from shoal.store.driver import Driver
from shoal.store.health import Health
from shoal.store.journal import Journal
from shoal.store.lock import HomeLock
from shoal.store.sqlite import SqliteDriver

if TYPE_CHECKING:
    from shoal.store.postgres import PostgresDriver

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 1.0
"""How long a service waits before it starts anew after an outage of the database or a full disk."""

Role: TypeAlias = Literal["all", "serve", "worker"]
"""`serve` has the platforms, the page and the triggers; `worker` runs turns; `all` does both."""

Service: TypeAlias = Callable[[], Coroutine[object, object, None]]


class Backend(Protocol):
    """The two kinds below."""

    driver: Driver
    health: Health
    """What is known to be wrong with the database. Once something is, every write raises StoreCorrupt and what needs
    the database stands still; the process stays, since nothing but it may still have the data (decision 035)."""
    engine: Engine
    recovers: bool
    """Whether threads left with work have to be woken at the start; else their jobs are still there."""

    def hub(self, hub: Hub, journal: Journal, origin: str) -> LiveHub:
        """Where actors show what happens: in this process, or in all of them."""
        ...

    def on_due(self, due: Callable[[str], None]) -> None:
        """Have `due` called when another process made something due, with a platform, `triggers`, or nothing: all."""
        ...

    def alone(self, name: str, serve: Service) -> None:
        """Have `serve` run in one process at a time."""
        ...

    def beside(self, serve: Service) -> None:
        """Have `serve` run in this process, as in every other."""
        ...

    def lasting(self, serve: Service) -> Service:
        """`serve`, run again after every outage of the database: a server that was away, a disk that was full.

        Once the database is damaged it stands still.
        """
        ...

    def services(self) -> Sequence[Coroutine[object, object, None]]:
        """What has to run beside the engine."""
        ...

    def describe(self, address: str) -> None:
        """Tell others on this machine where this process serves."""
        ...


class LocalBackend:
    """SQLite in the home directory, one process."""

    recovers: bool = True

    def __init__(self, driver: SqliteDriver, engine: LocalEngine, lock: HomeLock) -> None:
        self.driver: Driver = driver
        self.health: Health = driver.health
        self.engine: Engine = engine
        self._lock = lock
        self._services: list[Service] = []

    def hub(self, hub: Hub, journal: Journal, origin: str) -> LiveHub:
        """This process's own."""
        return hub

    def on_due(self, due: Callable[[str], None]) -> None:
        """There is no other process."""

    def alone(self, name: str, serve: Service) -> None:
        """There is no other process."""
        self.beside(serve)

    def beside(self, serve: Service) -> None:
        """Like all else."""
        self._services.append(self.lasting(serve))

    def lasting(self, serve: Service) -> Service:
        """The file does not go away, but its disk may be full for a while; when it fails otherwise without being
        damaged, the process ends loudly."""
        return partial(_while_whole, self.health, partial(_outlast, serve))

    def services(self) -> Sequence[Coroutine[object, object, None]]:
        """All that was asked for."""
        return [run_service(serve) for serve in self._services]

    def describe(self, address: str) -> None:
        """In the lock file."""
        self._lock.describe(address)


class ClusterBackend:
    """PostgreSQL, any number of processes."""

    recovers: bool = False

    def __init__(self, config: Config, role: Role, driver: "PostgresDriver") -> None:
        from shoal.engine.cluster import Holder, Listener
        from shoal.engine.postgres import PostgresEngine
        from shoal.store.postgres import address

        wanted = config.engine
        self.driver: Driver = driver
        self.health: Health = driver.health
        where = address(config.database.url.reveal())
        self._pool = driver.pool
        self._listener = Listener(where)
        self._holder = Holder(where, beat_seconds=wanted.heartbeat_seconds, stalled_seconds=wanted.stalled_seconds)
        settings = msgspec.structs.replace(wanted, concurrency=0) if role == "serve" else wanted
        self.engine: Engine = PostgresEngine(driver.pool, self._listener, settings)
        self._services: list[Service] = [self._listener.run, self._holder.run]

    def hub(self, hub: Hub, journal: Journal, origin: str) -> LiveHub:
        """All processes'."""
        from shoal.engine.live import LiveBridge

        bridge = LiveBridge(hub, journal, self._pool, self._listener, origin)
        self._services.append(bridge.run)
        return bridge

    def on_due(self, due: Callable[[str], None]) -> None:
        """The store tells it with each post and trigger; after an outage everything may be due."""
        self._listener.listen("shoal_due", due, lambda: due(""))

    def alone(self, name: str, serve: Service) -> None:
        """Under an advisory lock of that name."""
        self._holder.want(name, self.lasting(serve))

    def beside(self, serve: Service) -> None:
        """In this process too, also after outages."""
        self._services.append(self.lasting(serve))

    def lasting(self, serve: Service) -> Service:
        """Servers are restarted, connections break."""
        return partial(_while_whole, self.health, partial(_outlast, serve))

    def services(self) -> Sequence[Coroutine[object, object, None]]:
        """The listener, the holder and the bridge."""
        return [run_service(serve) for serve in self._services]

    def describe(self, address: str) -> None:
        """Others find each other in the database."""


async def run_service(serve: Service) -> None:
    """A service as the coroutine that a task needs."""
    await serve()


async def _while_whole(health: Health, serve: Service) -> None:
    """Run a service; once the database is damaged, stand still."""
    import anyio

    try:
        await serve()
        return
    except* StoreCorrupt:
        if not health.damage:
            raise
    await anyio.sleep_forever()


async def _outlast(serve: Service) -> None:
    """Run a service, and again whenever the database was away or its disk full; any other failure ends it loudly."""
    import anyio

    while True:
        try:
            return await serve()
        except* (StoreUnavailable, StoreFull) as outage:
            log.warning(
                "the database takes nothing; what needs it starts anew", extra={"why": str(outage.exceptions[0])}
            )
        await anyio.sleep(OUTAGE_SECONDS)


@asynccontextmanager
async def open_backend(
    config: Config, home: Home, role: Role, wrap: Callable[[Driver], Driver] | None
) -> AsyncGenerator[Backend]:
    """Open the database, and close it afterwards.

    Raises HomeLocked, StoreError, and InvalidInput for a role that needs PostgreSQL.
    """
    async with AsyncExitStack() as stack:
        if config.database.url:
            backend: Backend = await _cluster(config, role)
        else:
            lock = HomeLock(home.lock_file)
            lock.acquire()
            stack.callback(lock.release)
            driver = SqliteDriver(home.database_file, synchronous=config.database.synchronous.upper())
            backend = LocalBackend(driver, LocalEngine(config.engine.concurrency), lock)
        if wrap is not None:
            backend.driver = wrap(backend.driver)
        stack.push_async_callback(backend.driver.close)
        yield backend


async def _cluster(config: Config, role: Role) -> ClusterBackend:
    from shoal.store.postgres import PoolSettings, open_postgres

    settings = PoolSettings(connections_max=config.database.connections_max)
    driver = await open_postgres(config.database.url.reveal(), settings)
    return ClusterBackend(config, role, driver)


@asynccontextmanager
async def unwrapped() -> AsyncGenerator[None]:
    """What failed in the block, by itself, as long as it was one thing."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group
        raise
