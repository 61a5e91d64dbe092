"""Benchmark of the cluster engine: turns per second with 1, 2 and 4 workers, the delay until a handler starts, the
cost of idle threads, and the time until another worker resumes a dead worker's turn.

Server, client and workers share one machine. `python -m bench.cluster work URL` runs a worker; `hang` instead of
`work` runs a worker that takes a thread and never finishes it. A turn consists of bookkeeping only, as in
bench/engine.py: accept a prompt, create a job, lease the thread, open the turn, commit five steps, finish the turn.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg import AsyncConnection

from bench.child import ROOT
from bench.engine import PERSON, STEPS, Bookkeeper
from bench.rows import Row
from shoal.engine.cluster import Listener
from shoal.engine.postgres import PostgresEngine
from shoal.kernel.clock import SystemClock
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Prompt
from shoal.kernel.settings import EngineSettings
from shoal.store.postgres import PoolSettings, address, open_postgres
from shoal.store.store import Store

WORKERS = (1, 2, 4)
THREADS = 100
TURNS = 10
SENDS = 100
SENDERS = 8
IDLE_THREADS = 100_000
IDLE_SECONDS = 5.0
TURNS_A_SECOND_MIN = 100
DELAY_MS_MAX = 15
POLL_SECONDS = 0.02
KILLS = 3
RESCUE_SECONDS_MAX = EngineSettings().stalled_seconds + 3


class Noting(Bookkeeper):
    """A `Bookkeeper` that records the time of each advance."""

    def __init__(self, store: Store, clock: SystemClock) -> None:
        super().__init__(store, clock)
        self.asked: dict[ThreadId, asyncio.Future[float]] = {}

    async def advance(self, thread: ThreadId) -> None:
        if thread in self.asked:
            self.asked.pop(thread).set_result(time.perf_counter())
        self.finished[thread] = asyncio.Event()
        await super().advance(thread)


class Hanging(Noting):
    """A worker that takes a thread, reports it, and never finishes the turn."""

    async def advance(self, thread: ThreadId) -> None:
        await self._store.journal.lease(thread)
        sys.stdout.write("hangs\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


HANDLERS = {"work": Noting, "hang": Hanging}


async def work(how: str, url: str) -> None:
    """Run a worker until it is killed."""
    driver = await open_postgres(url, PoolSettings(connections_max=8))
    listener = Listener(address(url))
    engine = PostgresEngine(driver.pool, listener, EngineSettings(concurrency=100))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listener.run())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await engine.run(HANDLERS[how](Store(driver, SystemClock()), SystemClock()))


@contextmanager
def workers(url: str, count: int, how: str = "work") -> Generator[Sequence[subprocess.Popen[str]]]:
    """Run worker processes inside the block."""
    argv = [sys.executable, "-m", "bench.cluster", how, url]
    with ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            for _ in range(count)
        ]
        for process in running:
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        yield running


async def at_rest(store: Store) -> None:
    """Wait until no prompt is waiting and no turn is open."""
    while (backlog := await store.inbox.backlog()).prompts or backlog.turns:  # noqa: ASYNC110 (another process works)
        await asyncio.sleep(POLL_SECONDS)


async def throughput(url: str) -> float:
    """Return turns per second, from the first prompt sent to the last turn finished."""
    clock = SystemClock()
    driver = await open_postgres(url, PoolSettings(connections_max=SENDERS))
    store = Store(driver, clock)
    began = time.perf_counter()
    sends = asyncio.Semaphore(SENDERS)

    async def send(thread: ThreadId) -> None:
        async with sends:
            key = clock.new_id()
            await store.inbox.accept(Prompt(thread, key, "hello", PERSON, clock.now()), TURNS)

    names = [make_thread_id("bench", "many", f"{clock.new_id()}-{number}") for number in range(THREADS)]
    for _ in range(TURNS):
        await asyncio.gather(*(send(name) for name in names))
    await at_rest(store)
    wall = time.perf_counter() - began
    await driver.close()
    return THREADS * TURNS / wall


async def delay_ms(url: str) -> float:
    """Return the median milliseconds from `accept` to the handler. The worker runs in this process."""
    clock = SystemClock()
    driver = await open_postgres(url, PoolSettings(connections_max=4))
    store, listener = Store(driver, clock), Listener(address(url))
    engine, handler = PostgresEngine(driver.pool, listener, EngineSettings()), Noting(store, clock)
    listening, serving = asyncio.ensure_future(listener.run()), asyncio.ensure_future(engine.run(handler))
    delays: list[float] = []
    for number in range(SENDS):
        thread = make_thread_id("bench", "alone", f"{clock.new_id()}-{number}")
        asked = handler.asked[thread] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await store.inbox.accept(Prompt(thread, clock.new_id(), "hello", PERSON, clock.now()), 5)
        delays.append(await asked - began)
        await at_rest(store)
    await engine.drain(10)
    await serving
    listening.cancel()
    await driver.close()
    return statistics.median(delays[SENDS // 10 :]) * 1000


def add_idle_threads(url: str) -> None:
    """Add idle threads, each with one event and one answered prompt."""
    with psycopg.connect(url) as connection:
        connection.execute("set search_path to shoal")
        connection.execute(
            "insert into threads (thread, last_seq, created_at, updated_at)"
            " select 'bench:idle:' || n, 1, n, n from generate_series(1, %s) n",
            [IDLE_THREADS],
        )
        connection.execute(
            "insert into events (thread, seq, turn, type, at, data)"
            " select 'bench:idle:' || n, 1, '', 'cleared', n, '{}' from generate_series(1, %s) n",
            [IDLE_THREADS],
        )
        connection.execute(
            "insert into inbox (platform, key, thread, lane, state, payload, at)"
            " select 'bench', n::text, 'bench:idle:' || n, 'prompt', 'taken', '{}', n"
            " from generate_series(1, %s) n",
            [IDLE_THREADS],
        )
        connection.commit()
        connection.autocommit = True
        connection.execute("vacuum analyze")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle_cpu(url: str) -> float:
    """Return the CPU milliseconds that an idle worker uses per second."""
    with workers(url, 1) as (process,):
        async with await AsyncConnection.connect(url):
            await asyncio.sleep(1)
            before = cpu_seconds(process.pid)
            await asyncio.sleep(IDLE_SECONDS)
            return (cpu_seconds(process.pid) - before) * 1000 / IDLE_SECONDS


async def rescued_seconds(url: str) -> float:
    """Return the seconds from the SIGKILL of a worker until another worker finishes its turn."""
    clock = SystemClock()
    driver = await open_postgres(url, PoolSettings(connections_max=4))
    store, thread = Store(driver, clock), make_thread_id("bench", "rescued", clock.new_id())
    with workers(url, 1, "hang") as (dying,):
        await store.inbox.accept(Prompt(thread, clock.new_id(), "hello", PERSON, clock.now()), 5)
        assert dying.stdout is not None
        await asyncio.to_thread(dying.stdout.readline)
        with workers(url, 1):
            began = time.perf_counter()
            dying.kill()
            await at_rest(store)
            seconds = time.perf_counter() - began
    await driver.close()
    return seconds


def measure() -> list[Row]:
    """Measure with a new database, on the running PostgreSQL server or a private one."""
    from tests.postgres import database

    rows: list[Row] = []
    with database() as url:
        asyncio.run(delay_ms(url))  # creates the tables and warms up the server
        rows.append(Row("PostgreSQL: send to handler", "ms", asyncio.run(delay_ms(url)), bound=DELAY_MS_MAX))
        for count in WORKERS:
            with workers(url, count):
                turns = asyncio.run(throughput(url))
            name = f"PostgreSQL: turns of {STEPS} steps, {count} worker{'s' if count > 1 else ''}"
            rows.append(Row(name, "a second", turns, bound=TURNS_A_SECOND_MIN, at_least=True))
        kills = [asyncio.run(rescued_seconds(url)) for _ in range(KILLS)]
        name = f"PostgreSQL: turn resumed after SIGKILL, slowest of {KILLS}"
        rows.append(Row(name, "s", max(kills), bound=RESCUE_SECONDS_MAX, note=f"fastest {min(kills):.1f}"))
        empty = asyncio.run(idle_cpu(url))
        add_idle_threads(url)
        full = asyncio.run(idle_cpu(url))
        rows.append(
            Row(
                f"idle worker, {IDLE_THREADS:,} idle threads",
                "ms CPU/s",
                full,
                note=f"{empty:.2f} without idle threads",
            )
        )
        delay = asyncio.run(delay_ms(url))
        rows.append(Row("PostgreSQL: send to handler, with idle threads", "ms", delay, bound=DELAY_MS_MAX))
    return rows


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
