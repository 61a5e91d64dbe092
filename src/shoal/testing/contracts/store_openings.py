"""Contract tests for posts that open a thread for a prompt. The store accepts the prompt once, together with
the post.
"""

from msgspec.structs import replace

from shoal.kernel.ids import ThreadId, unopened
from shoal.kernel.records import (
    DeliveryStatus,
    NewPost,
    Opening,
    OutboxRow,
)
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, post, prompt

PLACE = unopened("web", "lobby")
SAID = prompt("k1", PLACE)
AWAY_DAYS = 900


def beginning(trigger: str = "", *, disables: bool = False, recurs: bool = False) -> NewPost:
    """Return a post that opens a thread for a prompt."""
    return NewPost(SAID.key, PLACE, SAID.text, "opening", opening=Opening(SAID, trigger, disables, recurs))


async def claimed_one(store: Store) -> OutboxRow:
    """Claim the only due row."""
    (row,) = await store.outbox.claim(["web"], 10, 60.0)
    return row


async def opens(store: Store, row: OutboxRow, thread: ThreadId = THREAD, prompts_max: int = 5) -> str:
    """Record that the post opened a thread. Return the status of the prompt's receipt."""
    receipt = await store.outbox.opened(row, thread, [post("rest", thread)], replace(SAID, thread=thread), prompts_max)
    assert receipt is not None
    return receipt.status


class OpeningRules:
    """Tests of thread openings in `Outbox`, mixed into `StoreContract`."""

    async def test_a_prompt_starts_in_the_thread_that_its_post_opened(self, store: Store) -> None:
        assert [await store.outbox.put(beginning()) for _ in range(2)] == [True, False]
        assert await store.inbox.waiting() == []
        row = await claimed_one(store)
        assert await opens(store, row) == "accepted"
        assert await store.inbox.waiting() == [THREAD]
        assert (await claimed_one(store)).id == "rest"
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("sent")

    async def test_a_prompt_is_accepted_once_even_if_its_post_opens_two_threads(self, store: Store) -> None:
        """A sender may be suspended while another sender claims its post."""
        await store.outbox.put(beginning())
        former = await claimed_one(store)
        await store.outbox.release("web")
        assert await opens(store, await claimed_one(store)) == "accepted"
        assert await opens(store, former, OTHER) == "duplicate"
        assert await store.inbox.waiting() == [THREAD]

    async def test_a_failed_opening_without_a_trigger_can_be_enqueued_again(self, store: Store) -> None:
        await store.outbox.put(beginning())
        await store.outbox.fail(await claimed_one(store), "no such channel")
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("failed", "no such channel")
        assert [await store.outbox.put(beginning()) for _ in range(2)] == [True, False]
        row = await claimed_one(store)
        assert (row.part, row.attempts, row.maybe_sent) == (0, 0, False)
        assert await opens(store, row) == "accepted"
        assert not await store.outbox.put(beginning())

    async def test_only_pending_posts_can_be_withdrawn(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(beginning())
        row = await claimed_one(store)
        assert await store.outbox.withdraw(SAID.key) is None
        await store.outbox.retry(row, clock.now(), "slow down")
        assert await store.outbox.fate(SAID.key) == DeliveryStatus("pending", "slow down")
        assert [await store.outbox.withdraw(SAID.key) for _ in range(2)] == ["slow down", None]
        assert await store.outbox.depth() == 0
        assert await store.outbox.fate("unknown") is None
