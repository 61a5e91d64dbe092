"""Rules of posts that open threads for prompts: the prompt is there with the post, once, and its trigger knows."""

from datetime import timedelta

from msgspec.structs import replace

from shoal.kernel.ids import ThreadId, unopened
from shoal.kernel.messages import Author
from shoal.kernel.records import (
    DeliveryStatus,
    NewPost,
    Opening,
    OutboxRow,
)
from shoal.kernel.triggers import NewTrigger, Trigger
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, post, prompt

PLACE = unopened("web", "lobby")
SAID = prompt("k1", PLACE)
AWAY_DAYS = 900


def beginning(trigger: str = "", *, disables: bool = False, recurs: bool = False) -> NewPost:
    """A post that opens a thread for a prompt."""
    return NewPost(SAID.key, PLACE, SAID.text, "opening", opening=Opening(SAID, trigger, disables, recurs))


async def claimed_one(store: Store) -> OutboxRow:
    """Claim the one row that is due."""
    (row,) = await store.outbox.claim(["web"], 10, 60.0)
    return row


async def opens(store: Store, row: OutboxRow, thread: ThreadId = THREAD, prompts_max: int = 5) -> str:
    """The post has opened a thread; returns what became of the prompt."""
    receipt = await store.outbox.opened(row, thread, [post("rest", thread)], replace(SAID, thread=thread), prompts_max)
    assert receipt is not None
    return receipt.status


async def scheduled(store: Store, clock: ManualClock) -> str:
    """A trigger into the channel that has failed once; its id."""
    spec = NewTrigger(
        "periodic",
        "0 * * * *",
        "hello",
        platform="web",
        channel="lobby",
        author=Author("owner", trusted=True),
        tainted_by="",
    )
    trigger = await store.triggers.add(spec, clock.now())
    await store.triggers.settle(trigger, error="before")
    return trigger.id


async def known(store: Store) -> Trigger:
    """The trigger as it is now."""
    (trigger,) = await store.triggers.all()
    return trigger


async def into_channel(store: Store, clock: ManualClock) -> str:
    """A trigger that has come once, and whose post waits for its platform; the key of that."""
    spec = NewTrigger(
        "one-shot",
        "2026-01-05",
        "hello",
        platform="web",
        channel="lobby",
        author=Author("owner", trusted=True),
        tainted_by="",
    )
    trigger = await store.triggers.add(spec, clock.now())
    occurrence = await store.triggers.claim(trigger, None)
    assert occurrence is not None
    said = prompt(occurrence.key, PLACE)
    await store.outbox.put(NewPost(said.key, PLACE, said.text, "opening", opening=Opening(said, trigger.id)))
    await store.outbox.retry(await claimed_one(store), clock.now() + timedelta(days=AWAY_DAYS), "away")
    return said.key


class OpeningRules:
    """`Outbox`, of openings."""

    async def test_a_prompt_is_in_the_thread_that_its_post_opened(self, store: Store) -> None:
        """With the rest of the post, and the post is done."""
        assert [await store.outbox.put(beginning()) for _ in range(2)] == [True, False]
        assert await store.inbox.waiting() == []
        row = await claimed_one(store)
        assert await opens(store, row) == "accepted"
        assert await store.inbox.waiting() == [THREAD]
        assert (await claimed_one(store)).id == "rest"
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("sent")

    async def test_a_prompt_is_accepted_once_however_often_its_post_opens_a_thread(self, store: Store) -> None:
        """As when a sender stood still while another one took the post over."""
        await store.outbox.put(beginning())
        former = await claimed_one(store)
        await store.outbox.release("web")
        assert await opens(store, await claimed_one(store)) == "accepted"
        assert await opens(store, former, OTHER) == "duplicate"
        assert await store.inbox.waiting() == [THREAD]

    async def test_an_opening_that_went_well_is_no_answer_yet(self, store: Store, clock: ManualClock) -> None:
        """The failures of its trigger are forgotten when its turn has been answered."""
        await store.outbox.put(beginning(await scheduled(store, clock)))
        await opens(store, await claimed_one(store))
        trigger = await known(store)
        assert (trigger.failures, trigger.error, trigger.state) == (1, "before", "active")

    async def test_the_trigger_of_an_opening_learns_once_that_it_failed(self, store: Store, clock: ManualClock) -> None:
        """Not from a former holder, nor twice."""
        await store.outbox.put(beginning(await scheduled(store, clock)))
        former = await claimed_one(store)
        await store.outbox.release("web")
        row = await claimed_one(store)
        for one in (former, row, row):
            await store.outbox.fail(one, "no such channel")
        trigger = await known(store)
        assert (trigger.failures, trigger.error, trigger.state) == (2, "no such channel", "active")
        assert not await store.outbox.put(beginning(trigger.id)), "its trigger comes again anyway"

    async def test_a_last_try_disables_its_trigger(self, store: Store, clock: ManualClock) -> None:
        """In the same transaction."""
        await store.outbox.put(beginning(await scheduled(store, clock), disables=True))
        await store.outbox.fail(await claimed_one(store), "no such channel")
        assert (await known(store)).state == "failed"

    async def test_no_outage_disables_a_trigger_that_recurs(self, store: Store, clock: ManualClock) -> None:
        """Neither of its platform, nor of the model for which its conversation's mailbox is full."""
        trigger = await scheduled(store, clock)
        await store.outbox.put(beginning(trigger, disables=True, recurs=True))
        await store.outbox.fail(await claimed_one(store), "away", refused=False)
        assert (await known(store)).state == "active"
        await store.inbox.accept(prompt("before"), 1)
        full = replace(beginning(trigger, disables=True, recurs=True), id="k2")
        await store.outbox.put(full)
        assert await opens(store, await claimed_one(store), prompts_max=1) == "busy"
        found = await known(store)
        assert (found.state, found.failures, found.error) == ("active", 3, "The conversation's queue is full.")

    async def test_a_full_mailbox_fails_the_opening(self, store: Store, clock: ManualClock) -> None:
        """Where a platform opens threads that are there already."""
        await store.inbox.accept(prompt("before"), 1)
        await store.outbox.put(beginning(await scheduled(store, clock)))
        assert await opens(store, await claimed_one(store), prompts_max=1) == "busy"
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("failed", "The conversation's queue is full.")
        assert (await known(store)).error == "The conversation's queue is full."
        assert await store.outbox.depth() == 0

    async def test_an_opening_of_no_trigger_that_failed_may_come_again(self, store: Store) -> None:
        """As a call that is made again; once for each time that it failed."""
        await store.outbox.put(beginning())
        await store.outbox.fail(await claimed_one(store), "no such channel")
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("failed", "no such channel")
        assert [await store.outbox.put(beginning()) for _ in range(2)] == [True, False]
        row = await claimed_one(store)
        assert (row.part, row.attempts, row.maybe_sent) == (0, 0, False)
        assert await opens(store, row) == "accepted"
        assert not await store.outbox.put(beginning())

    async def test_only_what_waits_can_be_withdrawn(self, store: Store, clock: ManualClock) -> None:
        """What is at the platform just now goes on."""
        await store.outbox.put(beginning())
        row = await claimed_one(store)
        assert await store.outbox.withdraw(SAID.key) is None
        await store.outbox.retry(row, clock.now(), "slow down")
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("pending", "slow down")
        assert [await store.outbox.withdraw(SAID.key) for _ in range(2)] == ["slow down", None]
        assert await store.outbox.depth() == 0
        assert await store.outbox.fate("unknown") is None

    async def test_a_removed_trigger_takes_its_waiting_post_along(self, store: Store, clock: ManualClock) -> None:
        """What is at the platform, or was posted, stays as it is."""
        waits = await into_channel(store, clock)
        (trigger,) = await store.triggers.all()
        assert await store.triggers.remove(trigger.id)
        assert await store.outbox.fate(waits) == DeliveryStatus("failed", "away")
        goes = await into_channel(store, clock)
        (trigger,) = await store.triggers.all()
        await clock.advance((AWAY_DAYS + 1) * 86_400)
        assert (await claimed_one(store)).id == goes
        assert await store.triggers.remove(trigger.id)
        assert await store.outbox.fate(goes) == DeliveryStatus("sending", "away")
