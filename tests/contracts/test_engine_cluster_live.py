"""How other processes see a worker's activity: all journal events in order, and live text as far as it fits into a
notification.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import psycopg
import pytest
from tests.postgres import empty

from shoal.delivery.hub import Hub, Subscription
from shoal.engine import cluster
from shoal.engine.cluster import PAYLOAD_BYTES_MAX, Listener, LiveBridge
from shoal.kernel.events import Event, LiveEvent, OutputShown, StatusChanged, TextStreamed, ThinkingStreamed
from shoal.kernel.ids import CallId, TurnId
from shoal.store.postgres import PoolSettings, PostgresDriver, address, open_postgres
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, answer, opened
from shoal.tools.live_output import SHOWN_BYTES_MAX

pytestmark = pytest.mark.xdist_group("postgres")
WAIT_SECONDS = 60.0


class Side:
    """One process with its hub and its live bridge."""

    def __init__(self, driver: PostgresDriver, url: str, origin: str) -> None:
        self.hub = Hub()
        self.store = Store(driver, ManualClock())
        self.listener = Listener(address(url), reconnect_seconds=0.05)
        self.connected = asyncio.Event()
        self.listener.listen("shoal_live", lambda payload: None, self.connected.set)
        self.bridge = LiveBridge(self.hub, self.store.journal, driver.pool, self.listener, origin)


@pytest.fixture
async def sides(postgres_database: str) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncExitStack() as stack:
        driver = await open_postgres(postgres_database, PoolSettings(connections_max=3))
        stack.push_async_callback(driver.close)
        empty(postgres_database)
        sides = Side(driver, postgres_database, "worker"), Side(driver, postgres_database, "serve")
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(part) for side in sides for part in (side.listener.run(), side.bridge.run())]
        for side in sides:
            await side.connected.wait()
        yield sides
        for task in running:
            task.cancel()


async def collect(coming: Subscription, enough: Callable[[list[Event | LiveEvent]], bool]) -> list[Event | LiveEvent]:
    items: list[Event | LiveEvent] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while not enough(items):
            items.append(await anext(coming))
    return items


def text_of(items: list[Event | LiveEvent]) -> str:
    return "".join(
        item.data.text for item in items if isinstance(item, LiveEvent) and isinstance(item.data, TextStreamed)
    )


async def test_journal_events_reach_other_processes(sides: tuple[Side, Side]) -> None:
    worker, serve = sides
    lease = await opened(worker.store)
    with serve.hub.subscribe(THREAD) as coming, worker.hub.subscribe(THREAD) as here:
        for number in range(20):
            committed = await worker.store.journal.commit(lease, answer("T1", str(number)))
            worker.bridge.publish(committed.events)
        received = await collect(coming, lambda items: len(items) == 20)
        assert received == await worker.store.journal.events(THREAD, 2)
        assert await collect(here, lambda items: len(items) == 20) == received


async def test_live_text_of_any_length_arrives_complete(sides: tuple[Side, Side]) -> None:
    worker, serve = sides
    said = "".join(f'word {number} \n"☃" \U0001f41f ' for number in range(2000))
    with serve.hub.subscribe(THREAD) as coming:
        for start in range(0, len(said), 700):
            worker.bridge.show(THREAD, TurnId("T1"), TextStreamed(said[start : start + 700], 1, start))
        worker.bridge.show(THREAD, TurnId("T1"), TextStreamed("a new call", 2))
        received = await collect(coming, lambda items: text_of(items).endswith("a new call"))
    assert text_of(received) == said + "a new call"
    pieces = [item.data for item in received if isinstance(item, LiveEvent) and isinstance(item.data, TextStreamed)]
    assert all(said.startswith(piece.text, piece.offset) for piece in pieces[:-1])
    assert (pieces[-1].step, pieces[-1].offset) == (2, 0)


async def test_a_status_follows_the_text_before_it(sides: tuple[Side, Side]) -> None:
    worker, serve = sides
    with serve.hub.subscribe(THREAD) as coming:
        worker.bridge.show(THREAD, TurnId("T1"), ThinkingStreamed("I must ", 1))
        worker.bridge.show(THREAD, TurnId("T1"), ThinkingStreamed("look", 1, 7))
        worker.bridge.show(THREAD, TurnId("T1"), TextStreamed("let me look", 1))
        worker.bridge.show(THREAD, TurnId("T1"), StatusChanged("tool", "ls"))
        worker.bridge.show(THREAD, TurnId("T1"), TextStreamed("there it is", 2))
        received = await collect(coming, lambda items: len(items) == 4)
    assert [item.data for item in received] == [
        ThinkingStreamed("I must look", 1), TextStreamed("let me look", 1), StatusChanged("tool", "ls"),
        TextStreamed("there it is", 2),
    ]  # fmt: skip


async def test_command_output_and_waits_reach_other_processes(
    sides: tuple[Side, Side],
) -> None:
    worker, serve = sides
    shown = (
        StatusChanged("retrying", "the model is overloaded", 20.5),
        OutputShown(CallId("c" * 200), '"' * SHOWN_BYTES_MAX, 3.5),
        OutputShown(CallId("c1"), "one\ntwo\n", 4.0),
    )
    with serve.hub.subscribe(THREAD) as coming:
        for data in shown:
            worker.bridge.show(THREAD, TurnId("T1"), data)
        received = await collect(coming, lambda items: len(items) == 3)
    assert tuple(item.data for item in received) == shown


async def test_watchers_of_a_thread_see_only_that_thread(sides: tuple[Side, Side]) -> None:
    worker, serve = sides
    with serve.hub.subscribe(THREAD) as coming:
        worker.bridge.show(OTHER, TurnId("T1"), TextStreamed("not yours", 1))
        worker.bridge.show(THREAD, TurnId("T2"), TextStreamed("yours", 1))
        assert text_of(await collect(coming, bool)) == "yours"


async def test_after_an_outage_watchers_read_the_journal_again(
    sides: tuple[Side, Side], postgres_database: str
) -> None:
    _, serve = sides
    with serve.hub.subscribe(THREAD) as coming:
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query ilike 'listen%'"
            )
        async with asyncio.timeout(WAIT_SECONDS):
            assert [item async for item in coming] == []
        assert coming.lost


async def test_the_send_queue_is_bounded_and_keeps_journal_events(sides: tuple[Side, Side]) -> None:
    worker, _ = sides
    lease = await opened(worker.store)
    committed = await worker.store.journal.commit(lease, answer("T1"))
    worker.bridge.publish(committed.events)
    for number in range(cluster.OUTGOING_MAX * 3):
        worker.bridge.show(THREAD, TurnId(f"T{number}"), StatusChanged("thinking"))
    payloads = list(iter(worker.bridge.next_payload, ""))
    items = [item for payload in payloads for item in json.loads(payload)[1]]
    assert items[0][0] == "e"
    assert len(items) <= cluster.OUTGOING_MAX


async def test_a_payload_never_exceeds_the_servers_limit(sides: tuple[Side, Side]) -> None:
    worker, _ = sides
    for number in range(100):
        worker.bridge.show(THREAD, TurnId(f"T{number}"), TextStreamed("\x01☃" * 500 * number, 1))
        worker.bridge.show(THREAD, TurnId(f"T{number}"), OutputShown(CallId("c" * 300), "\n" * SHOWN_BYTES_MAX, 0.1))
    sizes = [len(payload.encode()) for payload in iter(worker.bridge.next_payload, "")]
    assert max(sizes) <= PAYLOAD_BYTES_MAX
    assert len(sizes) > 50


async def test_an_overwhelmed_watcher_reads_the_journal_again(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, serve = sides
    for count, lost in ((3, False), (4, True)):
        monkeypatch.setattr(cluster, "INCOMING_MAX", 3)
        with serve.hub.subscribe(THREAD) as coming:
            for number in range(count):
                worker.bridge.show(THREAD, TurnId(f"T{number}"), StatusChanged("thinking"))
            serve.bridge.receive(worker.bridge.next_payload())
            assert coming.lost == lost
            if not lost:
                await collect(coming, lambda items: len(items) == 3)


async def test_no_process_gets_its_own_events_or_those_of_unwatched_threads(
    sides: tuple[Side, Side],
) -> None:
    worker, serve = sides
    with worker.hub.subscribe(THREAD) as here, serve.hub.subscribe(OTHER) as elsewhere:
        worker.bridge.show(THREAD, TurnId("T1"), StatusChanged("thinking"))
        payload = worker.bridge.next_payload()
        worker.bridge.receive(payload)
        serve.bridge.receive(payload)
        worker.bridge.show(OTHER, TurnId("T1"), StatusChanged("idle"))
        assert [item.thread for item in await collect(elsewhere, bool)] == [OTHER]
        here.close()
        assert len([item async for item in here]) == 1
