"""Contract for the trigger table and for the turns and posts that triggers start."""

import asyncio
from datetime import datetime, timedelta
from typing import Literal

import pytest
from msgspec.structs import replace

from shoal.features.triggers.records import NewTrigger, Trigger
from shoal.features.triggers.store import WALKS, TriggerStore
from shoal.kernel.messages import Author
from shoal.kernel.records import DeliveryStatus, NewPost, Opening
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, prompt
from shoal.testing.contracts.store_bookkeeping import DAYS, forgotten, months
from shoal.testing.contracts.store_openings import PLACE, SAID, beginning, claimed_one, opens

AWAY_DAYS = 900
RACERS = 8


async def scheduled(triggers: TriggerStore, clock: ManualClock) -> str:
    """Add a trigger for a channel, record one failure, and return the trigger's id."""
    spec = NewTrigger(
        "periodic",
        "0 * * * *",
        "hello",
        platform="web",
        channel="lobby",
        author=Author("owner", trusted=True),
        tainted_by="",
    )
    trigger = await triggers.add(spec, clock.now())
    await triggers.record_outcome(trigger, error="before")
    return trigger.id


async def known(triggers: TriggerStore) -> Trigger:
    (trigger,) = await triggers.all()
    return trigger


async def into_channel(store: Store, triggers: TriggerStore, clock: ManualClock) -> str:
    """Add a trigger that has run once, and return the key of its post, which is still pending."""
    spec = NewTrigger(
        "one-shot",
        "2026-01-05",
        "hello",
        platform="web",
        channel="lobby",
        author=Author("owner", trusted=True),
        tainted_by="",
    )
    trigger = await triggers.add(spec, clock.now())
    occurrence = await triggers.claim(trigger, None)
    assert occurrence is not None
    said = prompt(occurrence.key, PLACE)
    await store.outbox.put(NewPost(said.key, PLACE, said.text, "opening", opening=Opening(said, trigger.id)))
    await store.outbox.retry(await claimed_one(store), clock.now() + timedelta(days=AWAY_DAYS), "away")
    return said.key


async def added(triggers: TriggerStore, clock: ManualClock, seconds: float, name: str = "reminder") -> Trigger:
    spec = NewTrigger(
        "periodic",
        "0 * * * *",
        "look at the mail",
        thread=THREAD,
        name=name,
        timezone="Europe/Berlin",
        author=Author("owner", trusted=True),
        tainted_by="",
    )
    return await triggers.add(spec, clock.now() + timedelta(seconds=seconds))


async def due_at(triggers: TriggerStore, at: datetime, kind: Literal["one-shot", "periodic"] = "one-shot") -> Trigger:
    return await triggers.add(
        NewTrigger(kind, at.isoformat(), "hello", thread=THREAD, author=Author("owner", trusted=True), tainted_by=""),
        at,
    )


class TriggerRules:
    @pytest.fixture
    def triggers(self, store: Store, clock: ManualClock) -> TriggerStore:
        triggers = TriggerStore(store.driver, clock)
        store.causes.append(triggers)
        store.bookkeeping.walks += WALKS
        return triggers

    async def test_finished_triggers_are_deleted_and_others_still_run(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        once = await due_at(triggers, clock.now())
        often = await due_at(triggers, clock.now(), "periodic")
        rests = await due_at(triggers, clock.now() + timedelta(days=1))
        assert await triggers.pause(rests.id)
        assert await triggers.claim(once, None) is not None
        later = clock.now() + timedelta(days=DAYS)
        assert await triggers.claim(often, later) is not None
        await months(clock)
        young = await due_at(triggers, clock.now())
        assert await triggers.claim(young, None) is not None
        assert sum(await forgotten(store, clock)) == 3, "two old occurrences and the finished trigger"
        left = {trigger.id: trigger.state for trigger in await triggers.all()}
        assert left == {often.id: "active", rests.id: "paused", young.id: "done"}
        assert await triggers.claim(often, None) is None, "this occurrence was already claimed"
        (due,) = await triggers.due()
        claims = [await triggers.claim(due, later + timedelta(days=DAYS)) for _ in range(2)]
        assert [claim is not None for claim in claims] == [True, False]

    async def test_a_trigger_stays_while_its_post_is_pending(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        key = await into_channel(store, triggers, clock)
        await months(clock)
        await forgotten(store, clock)
        assert [trigger.state for trigger in await triggers.all()] == ["done"]
        assert await store.outbox.withdraw(key) == "away"
        await forgotten(store, clock)
        assert await triggers.all() == []

    async def test_triggers_become_due_in_order_of_time(self, triggers: TriggerStore, clock: ManualClock) -> None:
        late = await added(triggers, clock, 20, "late")
        soon = await added(triggers, clock, 10, "soon")
        assert await triggers.all() == [soon, late]
        assert await triggers.next_due_at() == soon.next_at
        assert await triggers.due() == []
        await clock.advance(10)
        assert await triggers.due() == [soon]
        await clock.advance(10)
        assert await triggers.due() == [soon, late]
        assert await triggers.due(1) == [soon]

    async def test_an_occurrence_is_claimed_once_over_all_workers(
        self, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        trigger = await added(triggers, clock, 0)
        next_at = clock.now() + timedelta(hours=1)
        taken = await asyncio.gather(*(triggers.claim(trigger, next_at) for _ in range(RACERS)))
        (occurrence,) = [claim for claim in taken if claim is not None]
        assert (occurrence.due_at, occurrence.trigger) == (trigger.next_at, trigger)
        (after,) = await triggers.all()
        assert (after.state, after.next_at, after.last_at) == ("active", next_at, trigger.next_at)
        assert await triggers.due() == []
        again = await triggers.claim(after, next_at + timedelta(hours=1))
        assert again is not None
        assert again.key != occurrence.key

    async def test_a_trigger_without_a_next_run_is_done(self, triggers: TriggerStore, clock: ManualClock) -> None:
        for missed, state in ((False, "done"), (True, "missed")):
            trigger = await added(triggers, clock, 0)
            assert await triggers.claim(trigger, None, missed=missed) is not None
            stored = next(one for one in await triggers.all() if one.id == trigger.id)
            assert (stored.state, stored.next_at) == (state, None)
            assert await triggers.claim(stored, None) is None
        assert await triggers.next_due_at() is None

    async def test_a_missed_occurrence_of_a_periodic_trigger_leaves_it_active(
        self, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        trigger = await added(triggers, clock, 0)
        assert await triggers.claim(trigger, clock.now() + timedelta(hours=1), missed=True) is not None
        assert [row.state for row in await triggers.all()] == ["active"]

    async def test_a_paused_trigger_is_not_due_until_it_is_resumed(
        self, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        trigger = await added(triggers, clock, 0)
        assert await triggers.pause(trigger.id)
        assert not await triggers.pause(trigger.id)
        assert await triggers.due() == []
        assert await triggers.claim(trigger, None) is None
        assert await triggers.resume(trigger.id, clock.now())
        assert not await triggers.resume(trigger.id, clock.now())
        assert [trigger.id for trigger in await triggers.due()] == [trigger.id]
        await triggers.record_outcome(trigger, error="no", disable=True)
        later = clock.now() + timedelta(hours=1)
        assert await triggers.resume(trigger.id, later)
        (stored,) = await triggers.all()
        assert (stored.state, stored.next_at, stored.failures, stored.error) == ("active", later, 0, "")

    async def test_a_trigger_remembers_its_failures(self, triggers: TriggerStore, clock: ManualClock) -> None:
        trigger = await added(triggers, clock, 0)
        for _ in range(2):
            await triggers.record_outcome(trigger, error="no such channel")
        (found,) = await triggers.all()
        assert (found.failures, found.error, found.state) == (2, "no such channel", "active")
        await triggers.record_outcome(trigger)
        assert [found.failures for found in await triggers.all()] == [0]
        await triggers.record_outcome(trigger, error="gone", disable=True)
        assert await triggers.due() == []
        assert await triggers.next_due_at() is None
        assert await triggers.claim(trigger, None) is None

    async def test_a_removed_trigger_never_runs(self, triggers: TriggerStore, clock: ManualClock) -> None:
        """This includes a worker that read the trigger as due before it was removed."""
        trigger = await added(triggers, clock, 0)
        assert await triggers.remove(trigger.id)
        assert not await triggers.remove(trigger.id)
        assert await triggers.claim(trigger, None) is None

    async def test_a_posted_opening_is_not_an_answer_yet(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        """A trigger's failures are cleared only when its turn has been answered."""
        await store.outbox.put(beginning(await scheduled(triggers, clock)))
        await opens(store, await claimed_one(store))
        trigger = await known(triggers)
        assert (trigger.failures, trigger.error, trigger.state) == (1, "before", "active")

    async def test_a_thread_that_cannot_be_opened_counts_as_one_trigger_failure(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        """A worker that lost its claim cannot record the failure, and no worker can record it twice."""
        await store.outbox.put(beginning(await scheduled(triggers, clock)))
        former = await claimed_one(store)
        await store.outbox.release("web")
        row = await claimed_one(store)
        for claim in (former, row, row):
            await store.outbox.fail(claim, "no such channel")
        trigger = await known(triggers)
        assert (trigger.failures, trigger.error, trigger.state) == (2, "no such channel", "active")
        assert not await store.outbox.put(beginning(trigger.id)), "the trigger will run again anyway"

    async def test_a_failed_last_attempt_disables_its_trigger(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        await store.outbox.put(beginning(await scheduled(triggers, clock), disables=True))
        await store.outbox.fail(await claimed_one(store), "no such channel")
        assert (await known(triggers)).state == "failed"

    async def test_no_outage_disables_a_trigger_that_recurs(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        """Failures caused by a platform outage or a full queue are counted but never disable a recurring trigger."""
        trigger = await scheduled(triggers, clock)
        await store.outbox.put(beginning(trigger, disables=True, recurs=True))
        await store.outbox.fail(await claimed_one(store), "away", refused=False)
        assert (await known(triggers)).state == "active"
        await store.inbox.accept(prompt("before"), 1)
        full = replace(beginning(trigger, disables=True, recurs=True), id="k2")
        await store.outbox.put(full)
        assert await opens(store, await claimed_one(store), prompts_max=1) == "busy"
        stored = await known(triggers)
        assert (stored.state, stored.failures, stored.error) == ("active", 3, "The conversation's queue is full.")

    async def test_a_full_mailbox_fails_the_opening(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        """On some platforms an opening joins an existing thread, and the queue of that thread may be full."""
        await store.inbox.accept(prompt("before"), 1)
        await store.outbox.put(beginning(await scheduled(triggers, clock)))
        assert await opens(store, await claimed_one(store), prompts_max=1) == "busy"
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("failed", "The conversation's queue is full.")
        assert (await known(triggers)).error == "The conversation's queue is full."
        assert await store.outbox.depth() == 0

    async def test_removing_a_trigger_removes_its_pending_post(
        self, store: Store, triggers: TriggerStore, clock: ManualClock
    ) -> None:
        """A post that is being sent, or was sent, is not removed."""
        waits = await into_channel(store, triggers, clock)
        (trigger,) = await triggers.all()
        assert await triggers.remove(trigger.id)
        assert await store.outbox.fate(waits) == DeliveryStatus("failed", "away")
        goes = await into_channel(store, triggers, clock)
        (trigger,) = await triggers.all()
        await clock.advance((AWAY_DAYS + 1) * 86_400)
        assert (await claimed_one(store)).id == goes
        assert await triggers.remove(trigger.id)
        assert await store.outbox.fate(goes) == DeliveryStatus("sending", "away")
