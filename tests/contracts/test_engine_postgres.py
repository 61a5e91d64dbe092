"""The engine's contract over PostgreSQL: several workers, each with its own connections."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.postgres import empty

from shoal.domain.ports import Engine, ThreadHandler
from shoal.engine.listener import Listener
from shoal.engine.postgres import EngineSettings, PostgresEngine
from shoal.store.postgres import PoolSettings, address, make_pool, open_postgres
from shoal.testing.contracts.engine import Cluster, EngineContract


class PostgresCluster:
    """Workers over one database."""

    workers_max = 3

    def __init__(self, url: str, tasks: asyncio.TaskGroup) -> None:
        self._url = url
        self._tasks = tasks
        self._stops: list[asyncio.Event] = []

    async def start(self, handler: ThreadHandler, *, concurrency: int = 100) -> Engine:
        """Run a worker."""
        made: asyncio.Future[PostgresEngine] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        self._stops.append(stop)
        self._tasks.create_task(self._work(handler, EngineSettings(concurrency=concurrency), made, stop))
        return await made

    async def _work(
        self,
        handler: ThreadHandler,
        settings: EngineSettings,
        made: "asyncio.Future[PostgresEngine]",
        stop: asyncio.Event,
    ) -> None:
        async with make_pool(self._url, PoolSettings(connections_max=3)) as pool, asyncio.TaskGroup() as tasks:
            listener = Listener(address(self._url))
            engine = PostgresEngine(pool, listener, settings)
            listening = tasks.create_task(listener.run())
            running = tasks.create_task(engine.run(handler))
            made.set_result(engine)
            await stop.wait()
            await engine.drain(0)
            await running
            listening.cancel()

    def stop(self) -> None:
        """Stop all workers."""
        for stop in self._stops:
            stop.set()


@pytest.mark.xdist_group("postgres")
class TestPostgresEngine(EngineContract):
    """Several workers."""

    @pytest.fixture
    async def cluster(self, postgres_database: str) -> AsyncIterator[Cluster]:
        """A fresh database."""
        await (await open_postgres(postgres_database)).close()
        empty(postgres_database)
        async with asyncio.TaskGroup() as tasks:
            cluster = PostgresCluster(postgres_database, tasks)
            yield cluster
            cluster.stop()
