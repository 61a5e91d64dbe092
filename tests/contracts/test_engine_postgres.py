"""The engine contract over PostgreSQL: several workers, each with its own connections."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.cluster import PostgresCluster
from tests.postgres import empty

from shoal.store.postgres import open_postgres
from shoal.testing.contracts.engine import Cluster, EngineContract


@pytest.mark.xdist_group("postgres")
class TestPostgresEngine(EngineContract):
    @pytest.fixture
    async def cluster(self, postgres_database: str) -> AsyncIterator[Cluster]:
        await (await open_postgres(postgres_database)).close()
        empty(postgres_database)
        async with asyncio.TaskGroup() as tasks:
            cluster = PostgresCluster(postgres_database, tasks)
            yield cluster
            cluster.stop()
