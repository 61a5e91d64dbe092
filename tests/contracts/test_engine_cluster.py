"""Leadership in a cluster: one process serves a name, and another takes over when that process ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest
from tests.connections import listening

from shoal.engine.cluster import Holder
from shoal.store.postgres import address

pytestmark = pytest.mark.xdist_group("postgres")
WAIT_SECONDS = 60.0


class Processes:
    """Simulated processes, each with its own `Holder`, and a record of which process serves which name."""

    def __init__(self, url: str, tasks: asyncio.TaskGroup) -> None:
        self.serving: dict[str, list[str]] = {}
        self._starts = 0
        self._url = url
        self._tasks = tasks
        self.running: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()

    def start(self, process: str, *names: str) -> Holder:
        holder = Holder(address(self._url), beat_seconds=0.05, stalled_seconds=5)
        for name in names:
            holder.want(name, lambda name=name: self._serve(process, name))
        self.running[process] = self._tasks.create_task(holder.run())
        return holder

    def end(self, process: str) -> None:
        self.running[process].cancel()

    async def serves(self, process: str, name: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.serving.get(name) == [process])

    async def started(self, times: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self._starts >= times)

    async def _serve(self, process: str, name: str) -> None:
        self.serving.setdefault(name, []).append(process)
        self._starts += 1
        await self._tell()
        try:
            await asyncio.Event().wait()
        finally:
            self.serving[name].remove(process)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@pytest.fixture
async def processes(postgres_database: str) -> AsyncIterator[Processes]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        processes = Processes(postgres_database, tasks)
        yield processes
        for task in processes.running.values():
            task.cancel()


def end_sessions(url: str) -> None:
    """Terminate the connections that hold advisory locks, as the server does with idle connections."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'"
            " and database = (select oid from pg_database where datname = current_database())")  # fmt: skip


async def test_one_process_serves_a_name_and_another_takes_over(processes: Processes) -> None:
    processes.start("one", "telegram:main")
    await processes.serves("one", "telegram:main")
    second = processes.start("two", "telegram:main", "discord:main")
    await processes.serves("two", "discord:main")
    assert second.held == {"discord:main"}
    assert processes.serving["telegram:main"] == ["one"]
    processes.end("one")
    await processes.serves("two", "telegram:main")


async def test_a_process_that_lost_its_connection_stops_serving(processes: Processes, postgres_database: str) -> None:
    processes.start("one", "telegram:main")
    await processes.serves("one", "telegram:main")
    for times in range(2, 6):
        end_sessions(postgres_database)
        await processes.started(times)
        await processes.serves("one", "telegram:main")


async def test_the_server_ends_the_sessions_of_silent_lock_holders(
    processes: Processes, postgres_database: str
) -> None:
    """The server's idle timeout ends the session of a process that is frozen or whose machine is down."""
    with psycopg.connect(postgres_database, autocommit=True) as silent:
        silent.execute("select pg_try_advisory_lock(hashtextextended('telegram:main', 1936224353))")
        silent.execute("set idle_session_timeout = '300ms'")
        processes.start("one", "telegram:main")
        await processes.serves("one", "telegram:main")


async def test_a_process_without_names_to_hold_ends_immediately(processes: Processes) -> None:
    await Holder("").run()


async def test_an_unreachable_database_is_reported_once_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries, enough = list[str](), asyncio.Event()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append("refused")
        if len(tries) == 3:
            enough.set()

    async with listening(hang_up) as port:
        holder = Holder(f"host=127.0.0.1 port={port} dbname=none", beat_seconds=0.01)

        async def serve() -> None:
            raise AssertionError("it holds nothing")

        holder.want("bot", serve)
        running = asyncio.create_task(holder.run())
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done()
        running.cancel()
    assert [record.message for record in caplog.records] == ["advisory locks released: database unavailable"]
