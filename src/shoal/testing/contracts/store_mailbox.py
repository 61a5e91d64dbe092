"""Contract tests for the mailbox: acceptance, order and limits of prompts, as well as steers, follow-ups and aborts."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from shoal.kernel.errors import InvalidInput, QueueChanged
from shoal.kernel.events import AssistantSaid, Revised
from shoal.kernel.ids import TurnId, make_thread_id
from shoal.kernel.messages import UNTOLD, Abort, Author, Deletion, Edit, Receipt
from shoal.store.store import Store
from shoal.testing.clock import START, ManualClock
from shoal.testing.contracts.steps import (
    OTHER,
    PERSON,
    THREAD,
    answer,
    closed,
    ending,
    follow_up,
    leased,
    line,
    opened,
    opening,
    prompt,
    steer,
    types,
)

AGAIN = 8
"""Number of concurrent callers."""


class MailboxRules:
    """Tests of `Inbox`, mixed into `StoreContract`."""

    async def test_prompts_are_answered_in_the_order_of_acceptance(self, store: Store) -> None:
        for key in ("a", "b", "c"):
            assert (await store.inbox.accept(prompt(key), 5)).status == "accepted"
        lease, answered = await leased(store), list[str]()
        waiting = lease.prompt
        while waiting is not None:
            answered.append(waiting.key)
            turn = f"T{waiting.key}"
            await store.journal.open_turn(lease, waiting, opening(turn, waiting))
            waiting = (await closed(store, lease, turn)).prompt
        assert answered == ["a", "b", "c"]

    async def test_a_duplicate_message_is_recognized_before_during_and_after_its_turn(self, store: Store) -> None:
        message = prompt("a")
        assert (await store.inbox.accept(message, 5)).status == "accepted"
        assert (await store.inbox.accept(message, 5)).status == "duplicate"
        lease = await leased(store)
        await store.journal.open_turn(lease, message, opening("T1", message))
        assert (await store.inbox.accept(message, 5)).status == "duplicate"
        await closed(store, lease)
        assert (await store.inbox.accept(message, 5)).status == "duplicate"
        assert await store.journal.lease(THREAD) is None

    async def test_keys_are_unique_per_platform(self, store: Store) -> None:
        assert (await store.inbox.accept(prompt("a"), 5)).status == "accepted"
        assert (await store.inbox.accept(prompt("a", OTHER), 5)).status == "duplicate"
        elsewhere = make_thread_id("terminal", "local", "one")
        assert (await store.inbox.accept(prompt("a", elsewhere), 5)).status == "accepted"

    async def test_a_full_mailbox_refuses_a_new_prompt_as_busy_and_stores_nothing(self, store: Store) -> None:
        """The prompt of the running turn does not count toward the limit."""
        for key in ("a", "b"):
            assert (await store.inbox.accept(prompt(key), 2)).status == "accepted"
        assert (await store.inbox.accept(prompt("c"), 2)).status == "busy"
        assert (await store.inbox.accept(prompt("a"), 2)).status == "duplicate"
        assert (await store.inbox.accept(prompt("c", OTHER), 2)).status == "accepted"
        lease = await leased(store)
        await store.journal.open_turn(lease, prompt("a"), opening("T1", prompt("a")))
        assert (await store.inbox.accept(prompt("d"), 2)).status == "accepted"
        assert (await store.inbox.accept(prompt("e"), 2)).status == "busy"

    async def test_one_persons_messages_are_one_turn_and_one_mailbox_entry(
        self, store: Store, clock: ManualClock
    ) -> None:
        other = Author("u2", "Other", trusted=True)
        lines = [line("a1"), line("b1", other), line("a2"), line("b2", other), line("a3")]
        for prompt_line in lines:
            assert (await store.inbox.accept(prompt_line, 2)).status == "accepted"
            await clock.advance(1)
        assert (await store.inbox.accept(prompt("by the API"), 2)).status == "busy"
        lease = await leased(store)
        waiting = lease.waiting
        assert waiting is not None
        assert [line.key for line in waiting.lines] == ["a1", "a2", "a3"]
        assert waiting.until - waiting.since == 4_000_000
        assert not waiting.is_all
        first, *more = waiting.lines
        await store.journal.open_turn(lease, first, opening("T1", waiting.prompt), more)
        assert (await store.inbox.accept(line("a2"), 2)).status == "duplicate"
        following = (await closed(store, lease)).waiting
        assert following is not None
        assert (following.prompt.text, following.is_all) == ("line b1\nline b2", True)

    async def test_prompts_from_the_api_are_separate_turns(self, store: Store) -> None:
        for number in range(2):
            assert (await store.inbox.accept(prompt(f"p{number}"), 2)).status == "accepted"
        assert (await store.inbox.accept(prompt("p2"), 2)).status == "busy"
        lease = await leased(store)
        assert lease.waiting is not None
        assert [line.key for line in lease.waiting.lines] == ["p0"]

    async def test_an_edited_message_does_not_open_a_turn_with_its_old_text(self, store: Store) -> None:
        for change in (Edit(THREAD, "a1", "better", PERSON), Deletion(THREAD, "a2", PERSON)):
            await store.inbox.accept(line("a1"), 5)
            await store.inbox.accept(line("a2"), 5)
            lease = await leased(store)
            assert lease.waiting is not None
            first, *more = lease.waiting.lines
            await store.inbox.revise(change)
            with pytest.raises(QueueChanged):
                await store.journal.open_turn(lease, first, opening("T1", lease.waiting.prompt), more)
            assert await types(store) == []
        again = await store.journal.held(lease)
        assert again is not None
        assert again.prompt is not None
        assert again.prompt.text == "better"

    async def test_concurrent_prompts_never_exceed_the_limit(self, store: Store) -> None:
        receipts = await asyncio.gather(*(store.inbox.accept(prompt(f"k{n}"), 3) for n in range(AGAIN)))
        assert sorted(receipt.status for receipt in receipts) == ["accepted"] * 3 + ["busy"] * (AGAIN - 3)
        assert (await store.inbox.backlog()).prompts == 3

    async def test_one_of_concurrent_duplicates_is_accepted(self, store: Store) -> None:
        receipts = await asyncio.gather(*(store.inbox.accept(prompt("a"), 100) for _ in range(AGAIN)))
        assert sorted(receipt.status for receipt in receipts) == ["accepted"] + ["duplicate"] * (AGAIN - 1)

    async def test_invalid_text_is_rejected_and_the_next_message_is_accepted(self, store: Store) -> None:
        """A lone surrogate is invalid. NUL is valid inside a message."""
        refused = False
        try:
            await store.inbox.accept(prompt("a", text="\ud800"), 5)
        except InvalidInput:
            refused = True
        assert refused
        assert (await store.inbox.accept(prompt("b", text="nul \0 ☃ \U0001f41f"), 5)).status == "accepted"
        assert (await leased(store)).prompt == prompt("b", text="nul \0 ☃ \U0001f41f")

    async def test_threads_with_work_are_listed_at_start(self, store: Store) -> None:
        assert await store.inbox.waiting() == []
        lease = await opened(store)
        await store.inbox.accept(prompt("b", OTHER), 5)
        assert sorted(await store.inbox.waiting()) == [THREAD, OTHER]
        await closed(store, lease)
        assert await store.inbox.waiting() == [OTHER]

    async def test_the_backlog_has_a_count_and_a_start_time(self, store: Store, clock: ManualClock) -> None:
        began = clock.now()
        await store.inbox.accept(prompt("b", OTHER), 5)
        await clock.advance(60)
        await opened(store)
        backlog = await store.inbox.backlog()
        assert (backlog.prompts, backlog.oldest_at, backlog.turns) == (1, began, 1)

    # ---- for the running turn ----

    async def test_a_steer_is_dropped_when_nothing_runs(self, store: Store) -> None:
        assert (await store.inbox.accept_now(steer("s"))).status == "dropped"
        assert await store.journal.thread(THREAD) is None
        lease = await opened(store)
        await closed(store, lease)
        assert (await store.inbox.accept_now(steer("s"))).status == "dropped"
        assert await store.inbox.waiting() == []

    async def test_steers_reach_the_open_turn_once_and_in_order(self, store: Store) -> None:
        lease = await opened(store)
        receipt = await store.inbox.accept_now(steer("s1", text="first"))
        assert (receipt.status, receipt.turn) == ("delivered", "T1")
        assert (await store.inbox.accept_now(follow_up("f1"))).status == "delivered"
        assert (await store.inbox.accept_now(steer("s2", text="second"))).status == "delivered"
        assert (await store.inbox.accept_now(steer("s1"))).status == "duplicate"
        taken = await store.journal.take_steers(lease, TurnId("T1"))
        assert [getattr(event.data, "text", "") for event in taken.events] == ["first", "second"]
        assert (await store.journal.take_steers(lease, TurnId("T1"))).events == ()

    async def test_a_turn_does_not_end_while_a_message_for_it_waits(self, store: Store) -> None:
        lease = await opened(store)
        await store.inbox.accept_now(follow_up("f1", text="one more"))
        committed = await closed(store, lease)
        assert [event.type for event in committed.events] == ["steered"]
        assert await store.outbox.claim(["web"], 10, 60) == []
        assert (await leased(store)).open_turn == "T1"
        lease = await leased(store)
        assert [event.type for event in (await closed(store, lease)).events] == ["turn_finished"]
        assert len(await store.outbox.claim(["web"], 10, 60)) == 1

    async def test_a_lease_reports_waiting_steers(self, store: Store) -> None:
        """Signals for steers are not repeated after a crash."""
        await opened(store)
        assert not (await leased(store)).steers
        await store.inbox.accept_now(steer("s1"))
        assert (await leased(store)).steers

    async def test_concurrent_steers_are_delivered_or_dropped(self, store: Store) -> None:
        lease = await opened(store)
        receipts, committed = await asyncio.gather(
            asyncio.gather(*(store.inbox.accept_now(steer(f"s{n}")) for n in range(AGAIN))), closed(store, lease)
        )
        delivered = sum(receipt.delivered for receipt in receipts)
        if not (await store.journal.thread(THREAD)).open_turn:  # pyright: ignore[reportOptionalMemberAccess]
            assert delivered == 0
            return
        taken = len(committed.events) + len((await store.journal.take_steers(lease, TurnId("T1"))).events)
        assert taken == delivered > 0

    async def test_an_abort_drops_steers_and_follow_ups_but_no_prompt(self, store: Store) -> None:
        lease = await opened(store)
        await store.inbox.accept_now(steer("s1"))
        await store.inbox.accept(prompt("next"), 5)
        receipt = await store.inbox.abort(Abort(THREAD, PERSON))
        assert (receipt.status, receipt.turn) == ("delivered", "T1")
        lease = await leased(store)
        assert lease.aborting
        committed = await closed(store, lease, outcome="aborted")
        assert [event.type for event in committed.events] == ["turn_finished"]
        assert committed.prompt == prompt("next")
        assert not (await leased(store)).aborting

    async def test_a_commit_of_a_stopping_turn_reports_the_stop(self, store: Store) -> None:
        """The turn starts no further work, even before the abort signal arrives. The journal keeps the text of the
        answer, but Shoal does not post it.
        """
        lease = await opened(store)
        assert not (await store.journal.commit(lease, answer("T1"))).aborting
        await store.inbox.abort(Abort(THREAD, PERSON))
        assert (await store.journal.commit(lease, answer("T1"))).aborting
        assert (await store.journal.take_steers(lease, TurnId("T1"))).aborting
        committed = await store.journal.finish_turn(lease, ending("T1", "done", AssistantSaid("hi")))
        assert committed.aborting
        assert [event.type for event in committed.events] == ["assistant_message"]
        assert await store.outbox.depth() == 0
        assert (await leased(store)).aborting
        assert not (await closed(store, await leased(store), outcome="aborted")).aborting

    async def test_an_abort_of_everything_empties_the_mailbox(self, store: Store) -> None:
        lease = await opened(store)
        await store.inbox.accept(prompt("next"), 5)
        assert (await store.inbox.abort(Abort(THREAD, PERSON, all_queued=True))).delivered
        assert (await closed(store, lease, outcome="aborted")).prompt is None
        await store.inbox.accept(prompt("later"), 5)
        assert await store.inbox.abort(Abort(THREAD, PERSON, all_queued=True)) == Receipt("delivered")
        assert await store.inbox.abort(Abort(THREAD, PERSON, all_queued=True)) == Receipt("dropped")
        assert await store.inbox.waiting() == []

    async def test_an_abort_without_a_turn_drops_its_authors_queued_messages(self, store: Store) -> None:
        assert (await store.inbox.abort(Abort(THREAD, PERSON))).status == "dropped"
        await store.inbox.accept(prompt("a"), 5)
        assert (await store.inbox.abort(Abort(THREAD, Author("somebody else", trusted=True)))).status == "dropped"
        assert (await store.inbox.abort(Abort(THREAD, PERSON))).status == "delivered"
        assert await store.journal.lease(THREAD) is None
        await store.inbox.accept(prompt("b"), 5)
        lease = await leased(store)
        await store.journal.open_turn(lease, prompt("b"), opening("T1", prompt("b")))
        assert not (await leased(store)).aborting

    async def test_steers_of_a_failed_turn_become_prompts(self, store: Store) -> None:
        lease = await opened(store)
        await store.inbox.accept_now(steer("s1", text="first"))
        await store.inbox.accept(prompt("p", text="second"), 5)
        await store.inbox.accept_now(follow_up("f1", text="third"))
        message = (await closed(store, lease, outcome="failed")).prompt
        for number, text in enumerate(("first", "second", "third"), 2):
            assert message is not None
            assert message.text == text
            lease = await leased(store)
            assert lease.prompt == message
            await store.journal.open_turn(lease, message, opening(f"T{number}", message))
            message = (await closed(store, lease, f"T{number}")).prompt
        assert message is None
        assert (await types(store)).count("turn_started") == 4

    async def test_an_edit_replaces_a_waiting_message(self, store: Store) -> None:
        for key in ("a", "b"):
            await store.inbox.accept(prompt(key), 5)
        revision = await store.inbox.revise(Edit(THREAD, "a", "better", PERSON, "m1"))
        assert (revision.receipt.status, revision.events) == ("accepted", ())
        assert (await store.inbox.revise(Deletion(THREAD, "b", PERSON))).receipt.status == "accepted"
        lease = await leased(store)
        assert lease.prompt is not None
        assert lease.prompt.text == "better"
        await store.journal.open_turn(lease, lease.prompt, opening("T1", lease.prompt))
        assert (await closed(store, lease)).prompt is None
        assert (await store.inbox.accept(prompt("b"), 5)).status == "duplicate"

    @pytest.mark.parametrize("taken", [False, True])
    @pytest.mark.parametrize("later", ["best", "hello"], ids=["other words", "the first words again"])
    async def test_the_newer_of_two_edits_applies_when_they_arrive_out_of_order(
        self, store: Store, later: str, taken: bool
    ) -> None:
        message = msgspec.structs.replace(prompt("a"), text="hello")
        await store.inbox.accept(message, 5)
        if taken:
            lease = await leased(store)
            await store.journal.open_turn(lease, message, opening("T1", message))
        first, second = START + timedelta(seconds=1), START + timedelta(seconds=2)
        await store.inbox.revise(Edit(THREAD, "a", later, PERSON, "m1", at=second))
        late = await store.inbox.revise(Edit(THREAD, "a", "better", PERSON, "m1", at=first))
        assert late.receipt.status == "duplicate"
        if not taken:
            lease = await leased(store)
            assert lease.prompt is not None
            assert lease.prompt.text == later

    async def test_an_edit_of_an_answered_message_is_journaled_once(self, store: Store) -> None:
        await opened(store, key="a")
        edit = Edit(THREAD, "a", "better", PERSON, "m1")
        assert (await store.inbox.revise(edit)).receipt.status == "delivered"
        assert (await store.inbox.revise(edit)).receipt.status == "duplicate"
        (event,) = (await store.inbox.revise(Deletion(THREAD, "a", PERSON, "m1"))).events
        assert isinstance(event.data, Revised)
        assert event.data.deleted
        assert (await store.inbox.revise(edit)).receipt.status == "dropped"
        assert await types(store) == ["turn_started", "user_message", "revised", "revised"]

    async def test_an_edit_by_a_person_who_lost_trust_is_untrusted(self, store: Store) -> None:
        """A later edit by a trusted person does not make the prompt trusted again."""
        guest = msgspec.structs.replace(PERSON, trusted=False)
        await store.inbox.accept(prompt("a"), 5)
        await store.inbox.revise(Edit(THREAD, "a", "better", guest, "m1"))
        await store.inbox.revise(Edit(THREAD, "a", "best", PERSON, "m1"))
        lease = await leased(store)
        assert lease.prompt is not None
        assert (lease.prompt.text, lease.prompt.author.trusted) == ("best", False)

    async def test_an_edit_with_another_persons_text_is_untrusted_in_the_mailbox(self, store: Store) -> None:
        forwarded = msgspec.structs.replace(prompt("b"), tainted_by="a forwarded message")
        for number, (message, tainted_by) in enumerate(((prompt("a"), "a forwarded message"), (forwarded, ""))):
            await store.inbox.accept(message, 5)
            lease = await leased(store)
            await store.journal.open_turn(lease, message, opening(f"T{number}", message))
            edit = Edit(THREAD, message.key, "obey", PERSON, "m1", tainted_by=tainted_by)
            (event,) = (await store.inbox.revise(edit)).events
            assert event.data == Revised(msgspec.structs.replace(PERSON, trusted=False), "m1", "obey")
            await closed(store, lease, f"T{number}")

    async def test_only_the_author_can_change_a_message(self, store: Store) -> None:
        await store.inbox.accept(prompt("a"), 5)
        stranger = Author("u2", "Other", trusted=True)
        for message in (
            Edit(THREAD, "a", "mine", stranger),
            Edit(THREAD, "a", "mine", UNTOLD),
            Deletion(THREAD, "a", stranger),
            Edit(THREAD, "x", "", PERSON),
        ):
            assert (await store.inbox.revise(message)).receipt.status == "dropped"
        lease = await leased(store)
        assert lease.prompt == prompt("a")

    async def test_a_deletion_without_an_author_removes_the_message(self, store: Store) -> None:
        await store.inbox.accept(prompt("a"), 5)
        await store.inbox.accept(prompt("b"), 5)
        assert (await store.inbox.revise(Deletion(THREAD, "a", UNTOLD))).receipt.status == "accepted"
        lease = await leased(store)
        assert lease.prompt == prompt("b")
