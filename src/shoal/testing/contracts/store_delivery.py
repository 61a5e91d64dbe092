"""Contract tests for the outbox. The posts of a thread are sent in order, each by one process, and unknown
outcomes are recorded.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from shoal.kernel.events import UserSaid
from shoal.kernel.ids import ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Author
from shoal.kernel.records import NewPost, OutboxRow
from shoal.store.outbox import UNDERWAY_SECONDS
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, ending, opened, post, prompt

CLAIM_SECONDS = 60.0
RACERS = 8
NOTE = UserSaid("said here", Author("agent:deck", "deck", is_bot=True, trusted=True), origin="system")


async def claimed(store: Store, limit: int = 10, platforms: Sequence[str] = ("web",)) -> list[OutboxRow]:
    return await store.outbox.claim(platforms, limit, CLAIM_SECONDS)


class DeliveryRules:
    """Tests of `Outbox`, mixed into `StoreContract`."""

    async def test_a_post_is_enqueued_once(self, store: Store) -> None:
        assert await store.outbox.put(post("a"))
        assert not await store.outbox.put(post("a"))
        assert await store.outbox.depth() == 1

    async def test_a_posts_note_is_journaled_once_even_in_a_new_thread(self, store: Store) -> None:
        """The agent in the note becomes the agent of the new thread."""
        noted = replace(post("a"), note=NOTE)
        assert [await store.outbox.put(noted) for _ in range(2)] == [True, False]
        assert [event.data for event in await store.journal.events(THREAD)] == [NOTE]
        known = await store.journal.thread(THREAD)
        assert known is not None
        assert (known.agent, known.title, known.queued) == ("deck", "reply", 0)

    async def test_the_note_and_further_parts_of_an_opening_go_to_the_new_thread(self, store: Store) -> None:
        await store.outbox.put(NewPost("a", THREAD, "reply", "opening", note=NOTE))
        assert await store.journal.thread(THREAD) is None
        (row,) = await claimed(store)
        await store.outbox.opened(row, OTHER, [post("b", OTHER)])
        assert [event.data for event in await store.journal.events(OTHER)] == [NOTE]
        assert [(row.id, row.thread) for row in await claimed(store)] == [("b", OTHER)]

    async def test_posts_of_a_thread_are_sent_one_after_another(self, store: Store) -> None:
        for identity in ("a", "b"):
            await store.outbox.put(post(identity))
        await store.outbox.put(post("c", OTHER))
        first, other = await claimed(store)
        assert (first.id, other.id) == ("a", "c")
        assert await claimed(store) == []
        assert await store.outbox.posted(first, 0, "p1", last=True), "b waits"
        assert not await store.outbox.posted(other, 0, "p2", last=True), "nothing waits there"
        assert [row.id for row in await claimed(store)] == ["b"]

    async def test_a_claim_returns_the_oldest_posts_up_to_its_limit(self, store: Store) -> None:
        threads = [make_thread_id("web", "lobby", f"t{number}") for number in range(4)]
        for number, thread in enumerate(threads):
            await store.outbox.put(post(f"p{number}", thread))
        await store.outbox.put(post("elsewhere", make_thread_id("terminal", "local", "x")))
        assert [row.id for row in await claimed(store, 3)] == ["p0", "p1", "p2"]
        assert [row.id for row in await claimed(store, 3, ["web", "terminal"])] == ["p3", "elsewhere"]
        assert await claimed(store, 3, []) == []

    async def test_concurrent_claims_never_share_a_post(self, store: Store) -> None:
        threads = [make_thread_id("web", "lobby", f"t{number}") for number in range(20)]
        for number, thread in enumerate(threads):
            await store.outbox.put(post(f"a{number}", thread))
            await store.outbox.put(post(f"b{number}", thread))
        taken = await asyncio.gather(*(claimed(store, 5) for _ in range(RACERS)))
        rows = [row.id for rows in taken for row in rows]
        assert sorted(rows) == sorted(set(rows))
        assert set(rows) <= {f"a{number}" for number in range(20)}
        assert len(rows) + len(await claimed(store, 20)) == 20

    async def test_a_released_post_is_due_immediately_and_not_marked_as_a_repeat(self, store: Store) -> None:
        await store.outbox.put(post("a"))
        (first,) = await claimed(store)
        await store.outbox.give_back(first)
        (second,) = await claimed(store)
        assert not second.maybe_sent
        await store.outbox.give_back(first)
        assert await claimed(store) == []

    async def test_the_end_of_a_turn_may_claim_its_answer(self, store: Store, clock: ManualClock) -> None:
        """If the process dies, another process may send the answer again after the claim expires."""
        lease = await opened(store)
        ended = await store.journal.finish_turn(lease, replace(ending("T1"), claim_seconds=60))
        (row,) = ended.claimed
        assert (row.id, row.post, row.part, row.created_at) == ("T1:reply", ending("T1").posts[0], 0, clock.now())
        assert await claimed(store) == []
        await clock.advance(61)
        (again,) = await claimed(store)
        assert again == replace(row, maybe_sent=True, claims=1)

    async def test_an_answer_behind_another_post_is_not_claimed_with_its_turn(self, store: Store) -> None:
        await store.outbox.put(post("elsewhere", OTHER))
        assert (await store.journal.finish_turn(await opened(store), replace(ending("T1"), claim_seconds=60))).claimed
        lease = await opened(store, "T2")
        assert not (await store.journal.finish_turn(lease, replace(ending("T2"), claim_seconds=60))).claimed
        (other,) = await claimed(store)
        assert other.id == "elsewhere"

    async def test_an_answer_claimed_with_its_turn_can_be_released(self, store: Store) -> None:
        lease = await opened(store)
        (row,) = (await store.journal.finish_turn(lease, replace(ending("T1"), claim_seconds=60))).claimed
        await store.outbox.give_back(row)
        (again,) = await claimed(store)
        assert not again.maybe_sent
        await store.outbox.give_back(row)
        assert await claimed(store) == []

    async def test_an_answer_claimed_with_its_turn_replaces_earlier_previews(self, store: Store) -> None:
        assert await store.outbox.begin_preview(THREAD, TurnId("T0"))
        await store.journal.finish_turn(await opened(store), replace(ending("T1"), claim_seconds=60))
        assert await store.outbox.is_overtaken(THREAD, TurnId("T0"))

    async def test_parts_are_stored_with_their_message_ids(self, store: Store) -> None:
        await store.outbox.put(post("a"))
        (row,) = await claimed(store)
        await store.outbox.posted(row, 0, "p0", last=False)
        await store.outbox.retry(row, row.created_at, "slow down")
        (row,) = await claimed(store)
        assert (row.part, row.attempts) == (1, 1)
        await store.outbox.posted(row, 1, "p1", last=True)
        assert await store.outbox.posted_ids("a") == ["p0", "p1"]
        assert await claimed(store) == []
        assert await store.outbox.depth() == 0

    async def test_a_retry_waits_until_it_is_due_and_keeps_its_position(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(post("a"))
        await store.outbox.put(post("b"))
        (row,) = await claimed(store)
        at = clock.now() + timedelta(seconds=5)
        await store.outbox.retry(row, at, "slow down")
        assert await claimed(store) == []
        await clock.advance(5)
        (row,) = await claimed(store)
        assert (row.id, row.attempts, row.maybe_sent) == ("a", 1, False)

    async def test_a_clock_set_back_does_not_delay_posts(self, store: Store, clock: ManualClock) -> None:
        """No post waits longer than the longest retry."""
        for identity in ("a", "b"):
            await store.outbox.put(post(identity))
        (row,) = await claimed(store)
        await store.outbox.retry(row, clock.now() + timedelta(seconds=300), "slow down")
        clock.jump(-3600)
        (row,) = await claimed(store)
        assert row.id == "a"
        await store.outbox.posted(row, 0, "m1", last=True)
        assert [row.id for row in await claimed(store)] == ["b"]

    async def test_a_retry_records_whether_the_post_may_already_have_been_sent(
        self, store: Store, clock: ManualClock
    ) -> None:
        """The next attempt looks up the post on the platform, or marks it as a possible repeat."""
        await store.outbox.put(post("a"))
        (row,) = await claimed(store)
        await store.outbox.retry(row, clock.now(), "timeout", maybe_sent=True)
        (row,) = await claimed(store)
        assert row.maybe_sent
        await store.outbox.posted(row, 0, "p0", last=False)
        await store.outbox.retry(row, clock.now(), "slow down")
        (row,) = await claimed(store)
        assert not row.maybe_sent

    async def test_the_claim_of_a_dead_process_expires(self, store: Store, clock: ManualClock) -> None:
        """The claim may expire after the post was sent."""
        await store.outbox.put(post("a"))
        assert len(await claimed(store)) == 1
        await clock.advance(CLAIM_SECONDS - 1)
        assert await claimed(store) == []
        await clock.advance(1)
        (row,) = await claimed(store)
        assert row.maybe_sent

    async def test_a_process_can_renew_an_expired_claim(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(post("a"))
        await store.outbox.put(post("b", OTHER))
        (_, other) = await claimed(store)
        await store.outbox.retry(other, clock.now(), "slow down")
        await clock.advance(2 * CLAIM_SECONDS)
        again = await store.outbox.claim(["web"], 1, CLAIM_SECONDS, ["a", "b", "unknown"])
        assert [row.id for row in again] == ["b"]
        await clock.advance(CLAIM_SECONDS - 1)
        assert await claimed(store) == []
        await clock.advance(1)
        assert [row.id for row in await claimed(store)] == ["a", "b"]

    async def test_a_former_claimant_cannot_release_a_post(self, store: Store, clock: ManualClock) -> None:
        """The claimant was suspended while another process claimed the post. It can still record the parts that it
        posted.
        """
        await store.outbox.put(post("a"))
        (former,) = await claimed(store)
        await store.outbox.release("web")
        (row,) = await claimed(store)
        await store.outbox.retry(former, clock.now(), "late")
        await store.outbox.fail(former, "late")
        assert await claimed(store) == []
        await store.outbox.posted(row, 0, "p0", last=True)
        await store.outbox.retry(former, clock.now(), "late")
        await store.outbox.retry(row, clock.now(), "late too")
        await store.outbox.posted(former, 0, "p0", last=False)
        assert await claimed(store) == []
        assert await store.outbox.depth() == 0

    async def test_an_abandoned_post_does_not_block_the_next(self, store: Store) -> None:
        await store.outbox.put(post("a"))
        await store.outbox.put(post("b"))
        (row,) = await claimed(store)
        await store.outbox.fail(row, "the channel is gone")
        assert [row.id for row in await claimed(store)] == ["b"]

    async def test_a_post_is_returned_unchanged(self, store: Store) -> None:
        whole = post("a", ThreadId(THREAD), "text with nul \0 and ☃")
        await store.outbox.put(whole)
        (row,) = await claimed(store)
        assert (row.post, row.thread, row.part, row.attempts) == (whole, THREAD, 0, 0)

    async def test_a_preview_is_recorded_before_its_message_id_is_known(self, store: Store) -> None:
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))
        assert await store.outbox.posted_ids("preview:T1") == [""]
        for _ in range(2):
            assert await store.outbox.previewed(THREAD, TurnId("T1"), "m1")
        assert (await store.outbox.posted_ids("preview:T1"))[0] == "m1"
        assert await store.outbox.begin_preview(THREAD, TurnId("T2"))
        assert await store.outbox.posted_ids("preview:T1") == ["m1"]
        assert await store.outbox.posted_ids("preview:T2") == [""]
        await store.outbox.unpreviewed(THREAD, TurnId("T1"))
        assert not await store.outbox.previewed(THREAD, TurnId("T1"), "m0")
        assert await store.outbox.posted_ids("preview:T2") == [""]
        await store.outbox.unpreviewed(THREAD, TurnId("T2"))
        assert await store.outbox.posted_ids("preview:T2") == []
        assert await store.outbox.posted_ids("preview:T1") == ["m1"]

    async def test_no_preview_begins_while_the_thread_has_an_unsent_post(self, store: Store) -> None:
        await store.outbox.put(post("elsewhere", OTHER))
        await store.outbox.put(post("a", ThreadId(THREAD)))
        assert not await store.outbox.begin_preview(THREAD, TurnId("T1"))
        rows = await claimed(store)
        assert not await store.outbox.begin_preview(THREAD, TurnId("T1"))
        assert await store.outbox.posted_ids("preview:T1") == []
        for row in rows:
            await store.outbox.posted(row, 0, row.id, last=True)
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))

    async def test_the_threads_next_post_replaces_a_preview(self, store: Store) -> None:
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))
        edit = replace(post("e", ThreadId(THREAD)), kind="edit", edits="x")
        for post_given in (edit, post("elsewhere", OTHER)):
            await store.outbox.put(post_given)
            (row,) = await claimed(store)
            assert not await store.outbox.is_overtaken(THREAD, TurnId("T1"))
            await store.outbox.posted(row, 0, "", last=True)
        await store.outbox.put(post("b", ThreadId(THREAD)))
        (row,) = await claimed(store)
        assert await store.outbox.is_overtaken(THREAD, TurnId("T1"))
        await store.outbox.posted(row, 0, "m1", last=True)
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))
        assert await store.outbox.is_overtaken(THREAD, TurnId("T1"))
        assert await store.outbox.begin_preview(THREAD, TurnId("T2"))
        assert not await store.outbox.is_overtaken(THREAD, TurnId("T2"))

    async def test_an_answer_takes_over_its_preview_and_prevents_another(self, store: Store) -> None:
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))
        await store.outbox.put(post("T1:reply", ThreadId(THREAD)))
        (row,) = await claimed(store)
        assert not await store.outbox.is_overtaken(THREAD, TurnId("T1"))
        await store.outbox.posted(row, 0, "m1", last=True)
        for _ in range(2):
            assert not await store.outbox.begin_preview(THREAD, TurnId("T1"))
        assert await store.outbox.begin_preview(THREAD, TurnId("T2"))

    async def test_a_lookup_waits_for_a_message_in_flight(self, store: Store, clock: ManualClock) -> None:
        """Lookups in other channels do not wait."""
        with store.outbox.underway(THREAD):
            asking = asyncio.ensure_future(store.outbox.thread_of("web:lobby:", "m1"))
            await clock.sleepers()  # the lookup waits
            assert await store.outbox.thread_of("web:other:", "m1") is None
            await store.outbox.begin_preview(THREAD, TurnId("T1"))
            await store.outbox.previewed(THREAD, TurnId("T1"), "m1")
        assert await asking == THREAD
        assert await store.outbox.thread_of("web:lobby:", "m2") is None

    async def test_a_reaction_finds_the_post_of_a_message_in_flight(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(post("card", ThreadId(THREAD)))
        (row,) = await claimed(store)
        with store.outbox.underway(THREAD):
            asking = asyncio.ensure_future(store.outbox.post_of(THREAD, "m1"))
            await clock.sleepers()  # the lookup waits
            await store.outbox.posted(row, 0, "m1", last=True)
        assert await asking == "card"
        assert await store.outbox.post_of(THREAD, "m2") == ""

    async def test_lookups_do_not_wait_forever(self, store: Store, clock: ManualClock) -> None:
        with store.outbox.underway(THREAD), store.outbox.underway(THREAD):
            thread = asyncio.ensure_future(store.outbox.thread_of("web:lobby:", "m1"))
            of_post = asyncio.ensure_future(store.outbox.post_of(THREAD, "m1"))
            await clock.sleepers(2)
            await clock.advance(UNDERWAY_SECONDS)
            assert await thread is None
            assert await of_post == ""

    async def test_a_message_id_or_key_identifies_its_thread(self, store: Store) -> None:
        """Within a channel, the bot's messages are found by id and prompts by key."""
        await store.outbox.begin_preview(THREAD, TurnId("T1"))
        await store.outbox.previewed(THREAD, TurnId("T1"), "m1")
        assert (await store.outbox.posted_ids("preview:T1"))[0] == "m1"
        assert await store.outbox.is_noted("web", "m1")
        assert not await store.outbox.is_noted("web", "m2")
        assert not await store.outbox.is_noted("terminal", "m1")
        assert await store.outbox.thread_of("web:lobby:", "m1") == THREAD
        await store.outbox.put(post("a"))
        (row,) = await claimed(store)
        await store.outbox.posted(row, 0, "m1", last=True)
        assert "m1" not in await store.outbox.posted_ids("preview:T1")
        assert await store.outbox.thread_of("web:lobby:", "m1") == THREAD
        await store.inbox.accept(prompt("k1", OTHER), 5)
        assert await store.outbox.thread_of("web:lobby:", "", "k1") == OTHER
        for channel in ("web:lob:", "web:lobby2:", "terminal:lobby:"):
            assert await store.outbox.thread_of(channel, "m1", "k1") is None
