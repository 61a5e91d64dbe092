"""Contract tests for naming, listing and deleting threads."""

import hashlib

import pytest

from shoal.kernel.clock import to_micros
from shoal.kernel.errors import Conflict, NotFound
from shoal.kernel.events import Event, ToolFinished, UserSaid, encode_data
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.records import Commit, Step
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, PERSON, THREAD, answer, closed, leased, opened, prompt


def digest_of(events: list[Event]) -> str:
    """Return the digest of these events in the form that the audit log stores."""
    lines = [
        f"{event.thread}\t{event.seq}\t{event.turn}\t{event.type}\t{to_micros(event.at)}\t"
        f"{encode_data(event.data).decode()}\n"
        for event in events
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


async def conversation(store: Store, thread: ThreadId = THREAD, turn: str = "T1") -> None:
    """Create an idle thread with an answer, a tool result and a step."""
    lease = await opened(store, turn, thread)
    result = ToolFinished(CallId("c1"), "bash", "…", artifact="ab" * 16, artifact_bytes=9)
    step = Step(1, "tool bash", prompt("x").at, 5)
    await store.journal.commit(lease, Commit(TurnId(turn), (result, UserSaid("a \0 treasure", PERSON)), steps=(step,)))
    await store.journal.commit(lease, answer(turn, "no treasure here"))
    await closed(store, lease, turn)


class ThreadRules:
    """Tests of `ThreadStore` and of the journal's lists, mixed into `StoreContract`."""

    async def test_a_thread_is_renamed_pinned_and_archived(self, store: Store) -> None:
        await conversation(store)
        await store.threads.change(THREAD, title="Tea", pinned=True)
        await store.threads.change(THREAD, model="fake/big")
        (info,) = await store.journal.threads()
        assert (info.title, info.pinned, info.archived, info.model) == ("Tea", True, False, "fake/big")
        await store.threads.change(THREAD, archived=True)
        assert await store.journal.threads() == await store.journal.pinned() == []
        assert [info.thread for info in await store.journal.threads(archived=True)] == [THREAD]
        with pytest.raises(NotFound):
            await store.threads.change(OTHER, pinned=True)

    async def test_archived_threads_have_their_own_lists(self, store: Store) -> None:
        for thread in (THREAD, OTHER):
            await conversation(store, thread, thread[-3:])
        await store.threads.change(OTHER, archived=True, agent="main")
        journal, lobby = store.journal, ["web:lobby:"]
        assert [info.thread for info in await journal.threads(agent="main")] == [THREAD]
        assert [info.thread for info in await journal.threads(agent="main", archived=True)] == [OTHER]
        assert [info.thread for info in await journal.threads(channels=lobby)] == [THREAD]
        assert [info.thread for info in await journal.threads(channels=lobby, archived=True)] == [OTHER]

    async def test_a_models_title_never_replaces_a_persons_title(self, store: Store) -> None:
        await conversation(store)
        assert await store.threads.is_untitled(THREAD)
        assert await store.threads.name(THREAD, "Treasure")
        assert not await store.threads.name(THREAD, "Pirates")
        await store.threads.change(THREAD, title="Mine")
        assert not await store.threads.name(THREAD, "Treasure")
        info = await store.journal.thread(THREAD)
        assert info is not None
        assert info.title == "Mine"

    async def test_a_deleted_thread_leaves_only_its_digest(self, store: Store) -> None:
        await conversation(store)
        await conversation(store, OTHER, "T2")
        events = await store.journal.events(THREAD)
        deleted = await store.threads.delete(THREAD, "web:owner", "")
        assert (deleted.threads, deleted.events, deleted.digest) == (1, len(events), digest_of(events))
        assert await store.journal.thread(THREAD) is None
        assert await store.journal.events(THREAD) == []
        assert await store.artifacts.of_thread(THREAD) == []
        assert await store.journal.steps(THREAD) == []
        assert {event.thread for event in await store.search.messages("treasure")} == {OTHER}
        assert (await store.inbox.accept(prompt("m-T1"), 100)).status == "accepted", (
            "the thread's messages must be deleted"
        )
        (entry,) = await store.audit.tail(10, chain_name=THREAD)
        assert (entry.entry.action, entry.entry.user) == ("thread:delete", "web:owner")
        assert deleted.digest in entry.entry.detail

    async def test_a_thread_with_pending_work_cannot_be_deleted(self, store: Store) -> None:
        lease = await opened(store)
        with pytest.raises(Conflict):
            await store.threads.check_rest(THREAD)
        with pytest.raises(Conflict):
            await store.threads.delete(THREAD, "web:owner", "")
        await closed(store, lease)
        await store.threads.check_rest(THREAD)
        await store.inbox.accept(prompt("m9"), 100)
        with pytest.raises(Conflict):
            await store.threads.delete(THREAD, "web:owner", "")
        assert await store.journal.events(THREAD)
        with pytest.raises(NotFound):
            await store.threads.delete(OTHER, "web:owner", "")

    async def test_a_lease_from_before_a_deletion_is_invalid_for_the_new_thread(
        self, store: Store, clock: ManualClock
    ) -> None:
        """The new thread may reuse the old lease's epoch."""
        await conversation(store)
        await store.inbox.accept(prompt("again"), 100)
        before = await leased(store)
        await store.journal.open_turn(before, prompt("again"), Commit(TurnId("T8"), (UserSaid("x", PERSON),)))
        await closed(store, before, "T8")
        await store.threads.delete(THREAD, "web:owner", "")
        await clock.advance(1)
        await store.inbox.accept(prompt("new"), 100)
        after = await leased(store)
        while after.epoch < before.epoch:
            after = await leased(store)
        assert after.epoch == before.epoch
        assert after.created_at != before.created_at
        assert await store.journal.held(before) is None
        assert await store.journal.held(after) is not None

    async def test_a_search_can_match_the_beginning_of_its_last_word(self, store: Store) -> None:
        await conversation(store)
        assert await store.search.messages("no treas", prefix=True)
        assert not await store.search.messages("no treas")
        assert not await store.search.messages("n treasure", prefix=True)
