"""The engine contract for a single process."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.engine.local import LocalEngine
from shoal.kernel.ports import Engine, ThreadHandler
from shoal.testing.contracts.engine import Cluster, EngineContract


class LocalCluster:
    """A cluster with a single engine."""

    workers_max = 1

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._engines: list[LocalEngine] = []

    async def start(self, handler: ThreadHandler, *, concurrency: int = 100) -> Engine:
        engine = LocalEngine(concurrency)
        self._engines.append(engine)
        self._tasks.create_task(engine.run(handler))
        return engine

    async def stop(self) -> None:
        for engine in self._engines:
            await engine.drain(0)


class TestLocalEngine(EngineContract):
    @pytest.fixture
    async def cluster(self) -> AsyncIterator[Cluster]:
        async with asyncio.TaskGroup() as tasks:
            cluster = LocalCluster(tasks)
            yield cluster
            await cluster.stop()
