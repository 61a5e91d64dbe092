"""Rules of the outbox: posts of a thread are sent in order, by one claimant each, and unknown outcomes are recorded."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from shoal.kernel.events import UserSaid
from shoal.kernel.ids import ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Author
from shoal.kernel.records import NewPost, OutboxRow
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, ending, opened, post, prompt

CLAIM_SECONDS = 60.0
RACERS = 8
NOTE = UserSaid("said here", Author("agent:deck", "deck", is_bot=True, trusted=True), origin="system")


async def claimed(store: Store, limit: int = 10, platforms: Sequence[str] = ("web",)) -> list[OutboxRow]:
    """Claim what is due."""
    return await store.outbox.claim(platforms, limit, CLAIM_SECONDS)


class DeliveryRules:
    """Rules of `Outbox`."""

    async def test_a_post_is_enqueued_once(self, store: Store) -> None:
        assert await store.outbox.put(post("a"))
        assert not await store.outbox.put(post("a"))
        assert await store.outbox.depth() == 1

    async def test_a_note_is_journaled_once_with_its_post_also_where_nothing_was_said(self, store: Store) -> None:
        """From then on, the thread is the speaker's."""
        noted = replace(post("a"), note=NOTE)
        assert [await store.outbox.put(noted) for _ in range(2)] == [True, False]
        assert [event.data for event in await store.journal.events(THREAD)] == [NOTE]
        known = await store.journal.thread(THREAD)
        assert known is not None
        assert (known.agent, known.title, known.queued) == ("deck", "reply", 0)

    async def test_an_opening_takes_its_note_and_the_rest_to_what_it_opened(self, store: Store) -> None:
        """They do not go to the original place."""
        await store.outbox.put(NewPost("a", THREAD, "reply", "opening", note=NOTE))
        assert await store.journal.thread(THREAD) is None
        (row,) = await claimed(store)
        await store.outbox.opened(row, OTHER, [post("b", OTHER)])
        assert [event.data for event in await store.journal.events(OTHER)] == [NOTE]
        assert [(row.id, row.thread) for row in await claimed(store)] == [("b", OTHER)]

    async def test_posts_of_a_thread_leave_one_after_another(self, store: Store) -> None:
        """Other threads do not wait for it."""
        for identity in ("a", "b"):
            await store.outbox.put(post(identity))
        await store.outbox.put(post("c", OTHER))
        first, other = await claimed(store)
        assert (first.id, other.id) == ("a", "c")
        assert await claimed(store) == []
        assert await store.outbox.posted(first, 0, "p1", last=True), "b waits"
        assert not await store.outbox.posted(other, 0, "p2", last=True), "nothing waits there"
        assert [row.id for row in await claimed(store)] == ["b"]

    async def test_a_claim_takes_the_oldest_within_its_limit(self, store: Store) -> None:
        """Only the requested platforms count."""
        threads = [make_thread_id("web", "lobby", f"t{number}") for number in range(4)]
        for number, thread in enumerate(threads):
            await store.outbox.put(post(f"p{number}", thread))
        await store.outbox.put(post("elsewhere", make_thread_id("terminal", "local", "x")))
        assert [row.id for row in await claimed(store, 3)] == ["p0", "p1", "p2"]
        assert [row.id for row in await claimed(store, 3, ["web", "terminal"])] == ["p3", "elsewhere"]
        assert await claimed(store, 3, []) == []

    async def test_racing_claims_share_no_row(self, store: Store) -> None:
        threads = [make_thread_id("web", "lobby", f"t{number}") for number in range(20)]
        for number, thread in enumerate(threads):
            await store.outbox.put(post(f"a{number}", thread))
            await store.outbox.put(post(f"b{number}", thread))
        taken = await asyncio.gather(*(claimed(store, 5) for _ in range(RACERS)))
        rows = [row.id for rows in taken for row in rows]
        assert sorted(rows) == sorted(set(rows))
        assert set(rows) <= {f"a{number}" for number in range(20)}
        assert len(rows) + len(await claimed(store, 20)) == 20

    async def test_what_was_claimed_and_not_begun_is_due_at_once_and_no_repeat(self, store: Store) -> None:
        """Another process may claim it meanwhile."""
        await store.outbox.put(post("a"))
        (first,) = await claimed(store)
        await store.outbox.give_back(first)
        (second,) = await claimed(store)
        assert not second.maybe_sent
        await store.outbox.give_back(first)
        assert await claimed(store) == []

    async def test_the_end_of_a_turn_may_claim_its_answer(self, store: Store, clock: ManualClock) -> None:
        """No other process has it until the claim ends, when it may have been sent."""
        lease = await opened(store)
        ended = await store.journal.finish_turn(lease, replace(ending("T1"), claim_seconds=60))
        (row,) = ended.claimed
        assert (row.id, row.post, row.part, row.created_at) == ("T1:reply", ending("T1").posts[0], 0, clock.now())
        assert await claimed(store) == []
        await clock.advance(61)
        (again,) = await claimed(store)
        assert again == replace(row, maybe_sent=True, claims=1)

    async def test_an_answer_is_not_claimed_with_its_turn_while_another_post_goes_first(self, store: Store) -> None:
        """Only posts of its own thread count."""
        await store.outbox.put(post("elsewhere", OTHER))
        assert (await store.journal.finish_turn(await opened(store), replace(ending("T1"), claim_seconds=60))).claimed
        lease = await opened(store, "T2")
        assert not (await store.journal.finish_turn(lease, replace(ending("T2"), claim_seconds=60))).claimed
        (other,) = await claimed(store)
        assert other.id == "elsewhere"

    async def test_an_answer_that_was_claimed_with_its_turn_is_given_back(self, store: Store) -> None:
        """This works once. A later claim is permanent."""
        lease = await opened(store)
        (row,) = (await store.journal.finish_turn(lease, replace(ending("T1"), claim_seconds=60))).claimed
        await store.outbox.give_back(row)
        (again,) = await claimed(store)
        assert not again.maybe_sent
        await store.outbox.give_back(row)
        assert await claimed(store) == []

    async def test_an_answer_that_is_claimed_with_its_turn_overtakes_earlier_previews(self, store: Store) -> None:
        """A later claim does the same."""
        assert await store.outbox.begin_preview(THREAD, TurnId("T0"))
        await store.journal.finish_turn(await opened(store), replace(ending("T1"), claim_seconds=60))
        assert await store.outbox.is_overtaken(THREAD, TurnId("T0"))

    async def test_pieces_are_remembered_with_the_platforms_ids(self, store: Store) -> None:
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

    async def test_a_retry_waits_for_its_time_and_keeps_its_place(self, store: Store, clock: ManualClock) -> None:
        await store.outbox.put(post("a"))
        await store.outbox.put(post("b"))
        (row,) = await claimed(store)
        at = clock.now() + timedelta(seconds=5)
        await store.outbox.retry(row, at, "slow down")
        assert await claimed(store) == []
        await clock.advance(5)
        (row,) = await claimed(store)
        assert (row.id, row.attempts, row.maybe_sent) == ("a", 1, False)

    async def test_a_clock_that_is_set_back_keeps_no_post_waiting(self, store: Store, clock: ManualClock) -> None:
        """This includes posts behind it: no wait is longer than the longest retry."""
        for identity in ("a", "b"):
            await store.outbox.put(post(identity))
        (row,) = await claimed(store)
        await store.outbox.retry(row, clock.now() + timedelta(seconds=300), "slow down")
        clock.jump(-3600)
        (row,) = await claimed(store)
        assert row.id == "a"
        await store.outbox.posted(row, 0, "m1", last=True)
        assert [row.id for row in await claimed(store)] == ["b"]

    async def test_an_unknown_outcome_is_told_to_the_next_try(self, store: Store, clock: ManualClock) -> None:
        """It then reads back first, or marks the repeat."""
        await store.outbox.put(post("a"))
        (row,) = await claimed(store)
        await store.outbox.retry(row, clock.now(), "timeout", maybe_sent=True)
        (row,) = await claimed(store)
        assert row.maybe_sent
        await store.outbox.posted(row, 0, "p0", last=False)
        await store.outbox.retry(row, clock.now(), "slow down")
        (row,) = await claimed(store)
        assert not row.maybe_sent

    async def test_a_claim_of_a_process_that_died_expires(self, store: Store, clock: ManualClock) -> None:
        """The post may have been sent."""
        await store.outbox.put(post("a"))
        assert len(await claimed(store)) == 1
        await clock.advance(CLAIM_SECONDS - 1)
        assert await claimed(store) == []
        await clock.advance(1)
        (row,) = await claimed(store)
        assert row.maybe_sent

    async def test_what_is_held_is_claimed_anew_however_late(self, store: Store, clock: ManualClock) -> None:
        """Posts that were put back, sent or given up meanwhile are not claimed."""
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

    async def test_a_former_holder_puts_nothing_back(self, store: Store, clock: ManualClock) -> None:
        """It was frozen while another took over. It can only record that a piece was posted."""
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

    async def test_a_post_given_up_lets_the_next_pass(self, store: Store) -> None:
        await store.outbox.put(post("a"))
        await store.outbox.put(post("b"))
        (row,) = await claimed(store)
        await store.outbox.fail(row, "the channel is gone")
        assert [row.id for row in await claimed(store)] == ["b"]

    async def test_a_post_comes_back_as_it_was_put(self, store: Store) -> None:
        whole = post("a", ThreadId(THREAD), "text with nul \0 and ☃")
        await store.outbox.put(whole)
        (row,) = await claimed(store)
        assert (row.post, row.thread, row.part, row.attempts) == (whole, THREAD, 0, 0)

    async def test_a_preview_that_is_begun_is_known_before_its_message_is(self, store: Store) -> None:
        """Its id takes the first place when it arrives, and the thread's next preview does not inherit it."""
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

    async def test_no_preview_is_begun_while_a_post_of_the_thread_is_to_be_made(self, store: Store) -> None:
        """The post may wait or be in flight. Posts elsewhere do not matter."""
        await store.outbox.put(post("elsewhere", OTHER))
        await store.outbox.put(post("a", ThreadId(THREAD)))
        assert not await store.outbox.begin_preview(THREAD, TurnId("T1"))
        rows = await claimed(store)
        assert not await store.outbox.begin_preview(THREAD, TurnId("T1"))
        assert await store.outbox.posted_ids("preview:T1") == []
        for row in rows:
            await store.outbox.posted(row, 0, row.id, last=True)
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))

    async def test_a_preview_is_overtaken_by_the_next_post_of_its_thread(self, store: Store) -> None:
        """Edits do not overtake it, and it cannot be started again."""
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

    async def test_a_preview_is_taken_by_its_answer_and_none_begins_after_that(self, store: Store) -> None:
        """This holds however late another machine learns about the answer."""
        assert await store.outbox.begin_preview(THREAD, TurnId("T1"))
        await store.outbox.put(post("T1:reply", ThreadId(THREAD)))
        (row,) = await claimed(store)
        assert not await store.outbox.is_overtaken(THREAD, TurnId("T1"))
        await store.outbox.posted(row, 0, "m1", last=True)
        for _ in range(2):
            assert not await store.outbox.begin_preview(THREAD, TurnId("T1"))
        assert await store.outbox.begin_preview(THREAD, TurnId("T2"))

    async def test_a_message_that_is_underway_is_awaited(self, store: Store, clock: ManualClock) -> None:
        """A reference to it before its id is known still finds its thread. Other channels do not wait."""
        with store.outbox.underway(THREAD):
            asking = asyncio.ensure_future(store.outbox.thread_of("web:lobby:", "m1"))
            await clock.sleepers()  # it waits
            assert await store.outbox.thread_of("web:other:", "m1") is None
            await store.outbox.begin_preview(THREAD, TurnId("T1"))
            await store.outbox.previewed(THREAD, TurnId("T1"), "m1")
        assert await asking == THREAD
        assert await store.outbox.thread_of("web:lobby:", "m2") is None

    async def test_what_stays_underway_is_not_awaited_for_ever(self, store: Store, clock: ManualClock) -> None:
        with store.outbox.underway(THREAD), store.outbox.underway(THREAD):
            asking = asyncio.ensure_future(store.outbox.thread_of("web:lobby:", "m1"))
            await clock.sleepers()
            await clock.advance(5)
            assert await asking is None

    async def test_a_message_leads_to_its_thread(self, store: Store) -> None:
        """Our messages are found by id and prompts by key, within their channel. A preview becomes the answer."""
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
