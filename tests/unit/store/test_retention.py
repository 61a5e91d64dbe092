"""Removing old rows: no number is reused, even with concurrent writers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from shoal.kernel.clock import to_micros
from shoal.kernel.errors import Conflict
from shoal.kernel.ids import ApprovalId
from shoal.kernel.messages import Edit
from shoal.store.driver import (
    Batch,
    Query,
    Script,
    number,
    query,
)
from shoal.store.retention import FIRST_SECONDS
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import PERSON, THREAD, closed, post, prompt
from shoal.testing.contracts.store_approvals import asked
from shoal.testing.contracts.store_bookkeeping import answered, forgotten, months, sent
from shoal.testing.contracts.store_openings import SAID, beginning, claimed_one

T = TypeVar("T")


class Meddled:
    """A driver that counts its queries. It runs the query `then` after the first query named `after`."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver
        self.done = Counter[str]()
        self.after = ""
        self.then: Query | None = None

    async def write(self, script: Script[T]) -> T:
        return await self._driver.write(self._meddled(script))

    async def read(self, script: Script[T]) -> T:
        return await self._driver.read(self._meddled(script))

    async def close(self) -> None:
        await self._driver.close()

    def _meddled(self, script: Script[T]) -> Script[T]:
        try:
            batch = next(script)
            while True:
                names = [step.name for step in batch.queries]
                self.done.update(names)
                rows = yield batch
                if self.then is not None and self.after in names:
                    meanwhile, self.then = self.then, None
                    yield Batch((meanwhile,))
                batch = script.send(rows)
        except StopIteration as end:
            return end.value


class Stand:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.driver = Meddled(SqliteDriver(path, synchronous="OFF"))
        self.store = Store(self.driver, self.clock)

    def forgets(self, what: str, *, after: str, upto: str | int) -> None:
        """Delete rows up to the key `upto` right after the query named `after`, as another process could."""
        before = to_micros(self.clock.now() - timedelta(days=30))
        first = "" if isinstance(upto, str) else 0
        self.driver.after = after
        self.driver.then = Query(what, {"after": first, "upto": upto, "before": before})

    async def numbers(self, page: str) -> list[int]:
        return [number(row[0]) for row in await self.driver.read(query(page, after=0, limit=1000))]


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path / "shoal.db")
    yield stand
    await stand.store.close()


async def test_no_number_is_assigned_twice(stand: Stand) -> None:
    for name in ("T1", "T2"):
        await answered(stand.store, name)
        await sent(stand.store, name)
    before = {page: max(await stand.numbers(page)) for page in ("inbox_page", "outbox_page")}
    await months(stand.clock)
    await forgotten(stand.store, stand.clock)
    await stand.store.inbox.accept(prompt("new"), 9)
    await stand.store.outbox.put(post("new"))
    for page, newest in before.items():
        assert await stand.numbers(page) == [newest, newest + 1]


async def test_a_young_table_is_neither_scanned_nor_written(stand: Stand) -> None:
    for count in range(9):
        await answered(stand.store, f"T{count}")
        await sent(stand.store, f"p{count}")
    assert await forgotten(stand.store, stand.clock, 2) == []
    assert (stand.driver.done["inbox_page"], stand.driver.done["outbox_page"]) == (1, 1)
    assert {name for name in stand.driver.done if name.endswith("_forget")} == {
        "budget_days_forget",
        "budget_turns_forget",
    }


async def test_a_message_forgotten_during_a_change_is_unknown(stand: Stand) -> None:
    for name in ("T1", "T2"):
        await answered(stand.store, name)
    await months(stand.clock)
    stand.forgets("inbox_forget", after="thread_lock", upto=1)
    change = Edit(THREAD, "m-T1", "new", PERSON, "m-T1")
    assert (await stand.store.inbox.revise(change)).receipt.status == "dropped"


async def test_an_approval_forgotten_during_a_decision_counts_as_decided(stand: Stand) -> None:
    lease = await asked(stand.store, stand.clock)
    await stand.store.approvals.record_decision(ApprovalId("A1"), "deny", "once", "u1", "owner")
    await closed(stand.store, lease)
    await months(stand.clock)
    stand.forgets("approvals_forget", after="thread_lock", upto="Z")
    with pytest.raises(Conflict, match="denied"):
        await stand.store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u2", "owner")


@pytest.mark.parametrize("after", ["outbox_again", "outbox_insert"])
async def test_a_failed_post_forgotten_during_its_retry_is_posted(stand: Stand, after: str) -> None:
    await stand.store.outbox.put(beginning())
    await stand.store.outbox.fail(await claimed_one(stand.store), "no such channel")
    await sent(stand.store, "newer")
    await months(stand.clock)
    stand.forgets("outbox_forget", after=after, upto=1)
    assert await stand.store.outbox.put(beginning())
    assert (await claimed_one(stand.store)).id == SAID.key


async def test_the_first_sweep_runs_some_minutes_after_the_start(stand: Stand) -> None:
    for name in ("T1", "T2"):
        await answered(stand.store, name)
    await months(stand.clock)
    running = asyncio.ensure_future(stand.store.bookkeeping.run(30))
    await stand.clock.advance(FIRST_SECONDS - 1)
    assert await stand.numbers("inbox_page") == [1, 2]
    await stand.clock.jump_to(stand.clock.now() + timedelta(seconds=1))
    assert await stand.numbers("inbox_page") == [2]
    running.cancel()
