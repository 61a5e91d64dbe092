"""Workers that share one PostgreSQL database, each with its own connections, in one event loop."""

import asyncio

from shoal.engine.cluster import Listener
from shoal.engine.postgres import PostgresEngine
from shoal.kernel.ports import Engine, ThreadHandler
from shoal.kernel.settings import EngineSettings
from shoal.store.postgres import PoolSettings, address, make_pool
from tests.waiting import until


class PostgresCluster:
    workers_max = 3

    def __init__(self, url: str, tasks: asyncio.TaskGroup) -> None:
        self._url = url
        self._tasks = tasks
        self._stops: list[asyncio.Event] = []

    async def start(self, handler: ThreadHandler, *, concurrency: int = 100) -> Engine:
        return await self.start_with(handler, EngineSettings(concurrency=concurrency))

    async def start_with(self, handler: ThreadHandler, settings: EngineSettings) -> PostgresEngine:
        engine_future: asyncio.Future[PostgresEngine] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        self._stops.append(stop)
        self._tasks.create_task(self._work(handler, settings, engine_future, stop))
        return await engine_future

    async def _work(
        self,
        handler: ThreadHandler,
        settings: EngineSettings,
        made: "asyncio.Future[PostgresEngine]",
        stop: asyncio.Event,
    ) -> None:
        async with make_pool(self._url, PoolSettings(connections_max=3)) as pool, asyncio.TaskGroup() as tasks:
            listener = Listener(address(self._url), reconnect_seconds=0.1)
            engine = PostgresEngine(pool, listener, settings)
            listening = tasks.create_task(listener.run())
            running = tasks.create_task(engine.run(handler))
            await asyncio.to_thread(until, lambda: listener.is_connected)
            made.set_result(engine)
            await stop.wait()
            await engine.drain(0)
            await running
            listening.cancel()

    def stop(self) -> None:
        for stop in self._stops:
            stop.set()
