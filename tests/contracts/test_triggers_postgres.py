"""The trigger services of two processes on PostgreSQL run each occurrence once."""

from datetime import timedelta

import pytest
from tests.postgres import empty
from tests.unit.features.triggers.test_service import START, THREAD, Inbox

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.messages import Author
from shoal.store.postgres import PoolSettings, open_postgres
from shoal.store.store import Store
from shoal.testing.clock import ManualClock


@pytest.mark.xdist_group("postgres")
async def test_two_services_send_each_occurrence_once(postgres_database: str) -> None:
    import anyio

    empty(postgres_database)
    clock = ManualClock(START)
    drivers = [await open_postgres(postgres_database, PoolSettings(connections_max=2)) for _ in range(2)]
    stores = [Store(driver, clock) for driver in drivers]
    inboxes = [Inbox(clock), Inbox(clock)]

    pairs = zip(stores, inboxes, strict=True)
    services = [TriggerService(TriggerStore(store.driver, clock), inbox, clock) for store, inbox in pairs]
    for number in range(5):
        spec = NewTrigger(
            "periodic", "* * * * *", f"go {number}", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""
        )
        await services[0].triggers.add(spec, START + timedelta(minutes=1))
    for _ in range(6):
        await clock.advance(60)
        async with anyio.create_task_group() as tasks:
            for service in services:
                tasks.start_soon(service.fire_due)
    keys = [prompt.key for inbox in inboxes for prompt in inbox.prompts]
    assert len(keys) == len(set(keys)) == 30
    for driver in drivers:
        await driver.close()
