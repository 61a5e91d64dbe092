"""Contract tests for the deletion of old rows.

Rows that were needed only for delivery are deleted long after the delivery. Rows that can still be requested remain.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import msgspec

from shoal.kernel.clock import to_micros
from shoal.kernel.events import Steered, UserSaid
from shoal.kernel.ids import ApprovalId, ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Deletion, Edit, Usage
from shoal.kernel.ports import ONCE
from shoal.kernel.records import (
    Ceiling,
    DeliveryStatus,
    Reservation,
    Spend,
)
from shoal.store.retention import Bookkeeping
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, PERSON, THREAD, closed, leased, opened, opening, post, prompt, steer
from shoal.testing.contracts.store_approvals import asked
from shoal.testing.contracts.store_children import begun, called, ended
from shoal.testing.contracts.store_openings import claimed_one

DAYS = 30
DAY_SECONDS = 86_400.0
CHANNEL = "web:lobby:"


async def forgotten(store: Store, clock: ManualClock, batch_rows: int = 500) -> list[int]:
    """Delete rows older than DAYS, and return the number of deleted rows per batch."""
    before = clock.now() - timedelta(days=DAYS)
    return [gone async for gone in store.bookkeeping.forget(before, batch_rows) if gone]


async def months(clock: ManualClock, days: float = DAYS + 1) -> None:
    """Advance the clock by `days`."""
    await clock.advance(days * DAY_SECONDS)


async def answered(store: Store, name: str, thread: ThreadId = THREAD) -> None:
    """Finish a turn that answers the message `m-NAME`."""
    await closed(store, await opened(store, name, thread), name)


async def sent(store: Store, post_id: str, message_id: str = "", thread: ThreadId = THREAD) -> None:
    """Enqueue a post and deliver it."""
    assert await store.outbox.put(post(post_id, thread))
    await delivered(store, post_id, message_id)


async def delivered(store: Store, post_id: str, message_id: str = "") -> None:
    """Deliver all due posts and assert that `post_id` is among them."""
    names: list[str] = []
    while rows := await store.outbox.claim(["web"], 10, 60.0):
        for row in rows:
            await store.outbox.posted(row, 0, message_id or f"p-{row.id}", last=True)
            names.append(row.id)
    assert post_id in names


async def reserved(store: Store, clock: ManualClock, *ceilings: tuple[str, str], tokens: int = 10) -> list[int]:
    """Reserve tokens under these limits without releasing them. Return the total number of tokens reserved under each
    limit.
    """
    bounds = tuple(Ceiling(scope, day, 10.0, 1000) for scope, day in ceilings)
    reserved = await store.budget.reserve(
        Reservation(clock.new_id(), bounds, 0.0, tokens, clock.now() + timedelta(days=900))
    )
    assert reserved.blocked is None
    return [standing.tokens for standing in reserved.standings]


async def until(clock: ManualClock, at: datetime) -> None:
    """Advance the clock to `at` for a task that sleeps between database requests."""
    await clock.sleepers()
    while (wakes_at := clock.next_wake_at()) is not None and wakes_at <= at:
        await clock.advance_to_next()
        await clock.sleepers()
    await clock.advance_to(at)


@asynccontextmanager
async def running(bookkeeping: Bookkeeping, days: float) -> AsyncGenerator[None]:
    """Run bookkeeping while the block runs."""
    task = asyncio.ensure_future(bookkeeping.run(days))
    try:
        yield
    finally:
        task.cancel()


class BookkeepingRules:
    """Tests of `Bookkeeping`, mixed into `StoreContract`."""

    # ---- one-time keys ----

    async def test_one_time_keys_are_deleted_with_old_messages(self, store: Store, clock: ManualClock) -> None:
        for days, key in ((2, "old"), (DAYS - 1, "young"), (0, "new")):
            assert await store.settings.swap(ONCE, key, None, f"{to_micros(clock.now())} and more")
            await store.settings.put("other", key, "0")
            await months(clock, days)
        assert await forgotten(store, clock) == [1]
        assert [key for key, _ in await store.settings.page(ONCE)] == ["new", "young"]
        assert len(await store.settings.page("other")) == 3

    # ---- mailbox ----

    async def test_old_messages_are_deleted_and_recent_ones_are_still_recognized(
        self, store: Store, clock: ManualClock
    ) -> None:
        await answered(store, "T1")
        await months(clock, 2)
        await answered(store, "T2")
        await months(clock, DAYS - 1)
        await answered(store, "T3")
        await forgotten(store, clock)
        receipts = [await store.inbox.accept(prompt(f"m-{name}"), 9) for name in ("T1", "T2", "T3")]
        assert [receipt.status for receipt in receipts] == ["accepted", "duplicate", "duplicate"]

    async def test_waiting_messages_remain_in_order_at_any_age(self, store: Store, clock: ManualClock) -> None:
        await answered(store, "T1")
        lease = await opened(store, "T2")
        for key in ("a", "b"):
            await store.inbox.accept(prompt(key), 9)
        await store.inbox.accept_now(steer("s"))
        await months(clock)
        await forgotten(store, clock)
        await store.inbox.accept(prompt("c"), 9)
        events = (await store.journal.take_steers(lease, TurnId("T2"))).events
        assert [event.data for event in events] == [Steered("wait", PERSON, "s")]
        waiting = (await closed(store, lease, "T2")).prompt
        for key in ("a", "b", "c"):
            assert waiting is not None
            assert waiting.key == key
            again = await leased(store)
            await store.journal.open_turn(again, waiting, opening(f"T-{key}", waiting))
            waiting = (await closed(store, again, f"T-{key}")).prompt
        assert waiting is None

    async def test_a_change_to_a_deleted_message_is_dropped(self, store: Store, clock: ManualClock) -> None:
        await answered(store, "T1")
        await answered(store, "T2")
        await months(clock)
        await forgotten(store, clock)
        for change in (Edit(THREAD, "m-T1", "new", PERSON, "m-T1"), Deletion(THREAD, "m-T1", PERSON, "m-T1")):
            assert (await store.inbox.revise(change)).receipt.status == "dropped"

    async def test_a_call_begins_one_child_at_any_age(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await begun(store, called())
        await ended(store, called())
        await months(clock)
        await store.inbox.accept(prompt("newer", OTHER), 9)
        await forgotten(store, clock)
        assert (await begun(store, called())).status == "duplicate"
        await closed(store, lease)
        await months(clock)
        await forgotten(store, clock)
        assert (await begun(store, called())).status == "dropped"

    async def test_missed_messages_are_imported_once(self, store: Store, clock: ManualClock) -> None:
        """A platform's history contains several days of messages, including the bot's own."""
        await sent(store, "a", "p-own")
        await months(clock, DAYS - 2)
        lease = await opened(store)
        missed = [prompt("h1"), prompt("p-own")]
        assert len((await store.journal.backfill(lease, missed)).events) == 1
        await months(clock, 3)
        await store.inbox.accept(prompt("newer"), 9)
        await forgotten(store, clock)
        assert (await store.journal.backfill(lease, missed)).events == ()

    async def test_missed_messages_keep_their_taint(self, store: Store) -> None:
        """A missed message that forwards another person's text taints the turn, like a message that arrived in time."""
        lease = await opened(store)
        forwarded = msgspec.structs.replace(prompt("h1"), tainted_by="a forwarded message")
        (event,) = (await store.journal.backfill(lease, [forwarded])).events
        assert isinstance(event.data, UserSaid)
        assert event.data.tainted_by == "a forwarded message"

    # ---- outbox ----

    async def test_old_posts_are_deleted_and_recent_ones_are_still_recognized(
        self, store: Store, clock: ManualClock
    ) -> None:
        await sent(store, "sent")
        await store.outbox.put(post("refused", OTHER))
        await store.outbox.fail(await claimed_one(store), "no such channel")
        await store.outbox.put(post("waits", OTHER))
        waits = await claimed_one(store)
        await months(clock)
        await store.outbox.retry(waits, clock.now() + timedelta(seconds=300), "away")
        await sent(store, "young")
        await store.outbox.put(post("newer", OTHER))
        assert sum(await forgotten(store, clock)) == 2
        fates = [await store.outbox.fate(post) for post in ("sent", "refused", "waits", "young")]
        assert fates == [None, None, DeliveryStatus("pending", "away"), DeliveryStatus("sent")]
        assert not await store.outbox.put(post("young"))
        await months(clock, 1)
        assert [(await claimed_one(store)).id, await store.outbox.depth()] == ["waits", 2]

    async def test_waiting_posts_remain_in_order_at_any_age(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(post("held", OTHER))
        await claimed_one(store)
        for name in ("a", "b"):
            await store.outbox.put(post(name))
        await months(clock)
        await store.outbox.put(post("newer"))
        assert await forgotten(store, clock) == []
        assert [(row.id, row.maybe_sent) for row in await store.outbox.claim(["web"], 10, 60.0)] == [
            ("held", True),
            ("a", False),
        ]
        assert await store.outbox.depth() == 4

    async def test_the_age_of_a_late_post_counts_from_its_delivery(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(post("late"))
        row = await claimed_one(store)
        await store.outbox.retry(row, clock.now() + timedelta(days=DAYS), "away")
        await months(clock)
        await delivered(store, "late")
        await sent(store, "newer")
        await months(clock, 2)
        assert await forgotten(store, clock) == []
        assert await store.outbox.fate("late") == DeliveryStatus("sent")

    async def test_a_lifetime_notice_is_sent_only_once(self, store: Store, clock: ManualClock) -> None:
        """The store keeps the key of this notice permanently."""
        await sent(store, "budget:total:")
        await sent(store, "budget:day:2026-01-05")
        await sent(store, "newer")
        await months(clock)
        await forgotten(store, clock)
        assert not await store.outbox.put(post("budget:total:"))
        assert await store.outbox.fate("budget:day:2026-01-05") is None

    async def test_an_old_posts_thread_can_be_found(self, store: Store, clock: ManualClock) -> None:
        """A reply to an old post belongs to its conversation, and a late decision can still edit its card."""
        await sent(store, "a", "p1")
        await sent(store, "b", "p2", OTHER)
        await months(clock)
        assert sum(await forgotten(store, clock)) == 1
        assert await store.outbox.thread_of(CHANNEL, "p1") == THREAD
        assert await store.outbox.posted_ids("a") == ["p1"]
        assert await store.outbox.is_noted("web", "p1")

    # ---- never deleted ----

    async def test_retention_keeps_the_journal_the_audit_log_and_the_ledger(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await asked(store, clock)
        await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
        await closed(store, lease)
        await store.ledger.record(THREAD, TurnId("T1"), Spend("1", "main", "u1", "known", Usage(100, 20), 0.5))
        events, audit = await store.journal.events(THREAD), await store.audit.tail(1000, chain_name=THREAD)
        await months(clock)
        await answered(store, "T2", OTHER)
        assert sum(await forgotten(store, clock)) > 0
        assert (await store.journal.events(THREAD), await store.audit.tail(1000, chain_name=THREAD)) == (events, audit)
        assert [row.usd for row in await store.ledger.usage(900)] == [0.5]
        assert [event.thread for event in await store.search.messages("hello", within=THREAD)] == [THREAD]
        await answered(store, "T3")
        numbers = [event.seq for event in await store.journal.events(THREAD)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > len(events)

    # ---- batches and schedule ----

    async def test_deletion_works_in_batches_and_skips_no_row(self, store: Store, clock: ManualClock) -> None:
        """Rows that must remain do not prevent the deletion of newer rows."""
        for number in range(11):
            thread = make_thread_id("web", "lobby", str(number))
            if number % 3:
                await answered(store, f"T{number}", thread)
            else:
                await store.inbox.accept(prompt(f"w{number}", thread), 9)
            await sent(store, f"p{number}", "", thread)
            await reserved(store, clock, (f"thread:{number}", "2026-01-05"), (f"turn:{clock.new_id()}", ""))
        await months(clock)
        await sent(store, "newest")
        await store.inbox.accept(prompt("newest"), 9)
        steps = await forgotten(store, clock, 3)
        assert max(steps) <= 3
        assert sum(steps) == 7 + 7 + 11 + 11 + 11, "messages, replies, posts, and budget totals of days and turns"
        assert await forgotten(store, clock, 3) == []
        assert len(await store.inbox.waiting()) == 5

    async def test_concurrent_deletions_do_not_block_writers(self, store: Store, clock: ManualClock) -> None:
        for number in range(20):
            await sent(store, f"p{number}", "", make_thread_id("web", "lobby", str(number)))
        await months(clock)
        await sent(store, "newest")
        arriving = asyncio.gather(*(store.inbox.accept(prompt(f"k{number}"), 99) for number in range(20)))
        steps = [*await asyncio.gather(*(forgotten(store, clock, 4) for _ in range(4))), await forgotten(store, clock)]
        await arriving
        total = sum(map(sum, steps))
        assert total == 20
        assert (await store.inbox.backlog()).prompts == 20

    async def test_the_number_of_rows_stays_constant(self, store: Store, clock: ManualClock) -> None:
        days, kept_days = 9, 4
        async with running(store.bookkeeping, kept_days):
            for day in range(days):
                await answered(store, f"T{day}")
                await delivered(store, f"T{day}:reply")
                await until(clock, clock.now() + timedelta(days=1))
        known = [(await store.outbox.fate(f"T{day}:reply")) is not None for day in range(days)]
        assert known == [False] * (days - kept_days) + [True] * kept_days
        again = [(await store.inbox.accept(prompt(f"m-T{day}"), 99)).status for day in range(days)]
        assert again == ["accepted"] * (days - kept_days) + ["duplicate"] * kept_days

    async def test_a_briefly_wrong_clock_deletes_nothing(self, store: Store, clock: ManualClock) -> None:
        wrong = 2 * DAYS * 86_400.0
        await answered(store, "T")
        await delivered(store, "T:reply")
        await sent(store, "newest")
        async with running(store.bookkeeping, DAYS):
            for pause in (timedelta(minutes=5), timedelta(hours=23, minutes=55)):
                await until(clock, clock.now() + pause)
                clock.jump(wrong)
                await until(clock, clock.now() + timedelta(minutes=10))
                clock.jump(-wrong)
                await until(clock, clock.now() + timedelta(hours=2))
                assert await store.outbox.fate("T:reply") is not None
            clock.jump(wrong)
            await until(clock, clock.now() + timedelta(days=1, hours=3))
        assert await store.outbox.fate("T:reply") is None

    async def test_nothing_is_deleted_if_retention_is_unlimited(self, store: Store, clock: ManualClock) -> None:
        await sent(store, "old")
        await store.bookkeeping.run(0)
        assert await store.outbox.fate("old") == DeliveryStatus("sent")
