"""Contract tests for the journal. Only one process holds a thread, sequence numbers have no gaps, and commits are
atomic.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from shoal.kernel.errors import Conflict, NotFound, QueueChanged, StaleEpoch
from shoal.kernel.events import (
    AssistantSaid,
    Cleared,
    Compacted,
    Event,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId, make_thread_id
from shoal.kernel.messages import Abort, ToolCall, Usage
from shoal.kernel.records import (
    AdmittedCalls,
    AuditEntry,
    Commit,
    Lease,
    NewApproval,
    Spend,
    Step,
)
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import (
    OTHER,
    PERSON,
    THREAD,
    answer,
    closed,
    follow_up,
    leased,
    opened,
    opening,
    post,
    prompt,
    steer,
    types,
)

RACERS = 8


def everything(clock: ManualClock) -> Commit:
    """Return a commit that contains every kind of record."""
    return Commit(
        TurnId("T1"),
        (AssistantSaid("hi"),),
        posts=(post("T1:1"),),
        audit=(AuditEntry("action", "tool:bash:ls", "allow"),),
        approvals=(NewApproval(ApprovalId("A1"), CallId("c1"), "bash", ("x",), "digest", "ls", "u1", clock.now()),),
        spend=Spend("T1:1", "main", "u1", "demo", Usage(10, 5), 0.25),
        steps=(Step(1, "model", clock.now(), 200),),
        prompts=(("sha", b"You are."),),
        settings=(("last", "main", THREAD),),
    )


def starting(last_seq: int) -> Commit:
    """Return a commit with a message and a tool call. The call starts only if the last event of the thread is
    `last_seq`.
    """
    call = ToolCall(CallId("c1"), "bash", "{}")
    audit = (AuditEntry("action", "tool:bash:ls", "allow"),)
    starts = AdmittedCalls(last_seq, (ToolStarted(call.id, call.name, ("tool:bash:ls",)),), audit)
    return Commit(TurnId("T1"), (AssistantSaid("hi", (call,)),), starts=starts)


class JournalRules:
    """Tests of `Journal`, mixed into `StoreContract`."""

    async def test_an_idle_or_unknown_thread_has_no_lease(self, store: Store) -> None:
        assert await store.journal.lease(THREAD) is None
        await closed(store, await opened(store))
        assert await store.journal.lease(THREAD) is None

    async def test_a_lease_has_the_threads_state(self, store: Store) -> None:
        first = await opened(store)
        await store.journal.commit(first, answer("T1"))
        lease = await leased(store)
        assert (lease.open_turn, lease.turn_seq, lease.last_seq, lease.window_seq) == ("T1", 1, 3, 0)
        assert lease.epoch > first.epoch

    async def test_a_lease_can_be_renewed_for_the_next_turn(self, store: Store) -> None:
        lease = await opened(store)
        await closed(store, lease)
        await store.journal.append(THREAD, [Cleared("u1")])
        await store.inbox.accept(prompt("next"), 5)
        await store.inbox.accept(prompt("after"), 5)
        held = await store.journal.held(lease)
        assert held is not None
        assert (held.epoch, held.prompt, held.agent) == (lease.epoch, prompt("next"), "main")
        assert (held.open_turn, held.last_seq, held.window_seq) == ("", 4, 4)
        await store.journal.open_turn(held, prompt("next"), opening("T2", prompt("next")))
        assert (await leased(store)).open_turn == "T2"

    async def test_a_lease_cannot_be_renewed_if_the_thread_has_changed(self, store: Store) -> None:
        lease = await opened(store)
        await store.inbox.accept(prompt("next"), 5)
        assert await store.journal.held(lease) is None
        await closed(store, lease)
        assert await store.journal.held(lease) is not None
        newer = await leased(store)
        assert await store.journal.held(lease) is None
        await store.journal.open_turn(newer, prompt("next"), opening("T2", prompt("next")))
        await closed(store, newer, "T2")
        assert await store.journal.held(newer) is None

    async def test_a_stale_lease_cannot_change_anything(self, store: Store, clock: ManualClock) -> None:
        stale = await opened(store)
        await leased(store)
        await store.inbox.accept(prompt("next"), 5)
        attempts = (
            lambda: store.journal.commit(stale, everything(clock)),
            lambda: store.journal.take_steers(stale, TurnId("T1")),
            lambda: closed(store, stale),
            lambda: store.journal.commit(stale, Commit(TurnId("T1"), void_approvals=True)),
            lambda: store.journal.commit(stale, starting(last_seq=2)),
            lambda: store.journal.open_turn(stale, prompt("next"), opening("T2", prompt("next"))),
        )
        for attempt in attempts:
            with pytest.raises(StaleEpoch):
                await attempt()
        assert await types(store) == ["turn_started", "user_message"]
        assert await store.outbox.claim(["web"], 10, 60) == []
        assert await store.approvals.search() == []
        assert await store.settings.get("last", "main") is None
        assert (await leased(store)).prompt == prompt("next")

    async def test_one_of_concurrent_holders_advances_the_thread(self, store: Store) -> None:
        await opened(store)

        async def attempt() -> str:
            lease = await leased(store)
            try:
                await store.journal.commit(lease, answer("T1"))
            except StaleEpoch:
                return "stale"
            return "done"

        outcomes = await asyncio.gather(*(attempt() for _ in range(RACERS)))
        assert "done" in outcomes
        events = await store.journal.events(THREAD)
        assert len(events) == 2 + outcomes.count("done")
        assert [event.seq for event in events] == list(range(1, len(events) + 1))

    async def test_a_prompt_opens_one_turn(self, store: Store) -> None:
        """One transaction removes the prompt from the mailbox and opens the turn."""
        lease = await opened(store, key="a")
        with pytest.raises(QueueChanged):
            await store.journal.open_turn(lease, prompt("a"), opening("T2", prompt("a")))
        assert (await types(store)).count("turn_started") == 1

    async def test_sequence_numbers_have_no_gaps(self, store: Store) -> None:
        """The test mixes commits, appends outside turns, and failed commits."""
        lease = await opened(store)

        async def refused() -> None:
            with suppress(Conflict):
                commit = Commit(TurnId("T1"), (AssistantSaid("no"),), use_approval=ApprovalId("unknown"))
                await store.journal.commit(lease, commit)

        past = [UserSaid("beside", PERSON, backfill=True), UserSaid("it", PERSON, backfill=True)]
        await asyncio.gather(
            *(store.journal.commit(lease, answer("T1")) for _ in range(RACERS)),
            *(refused() for _ in range(RACERS)),
            *(store.journal.append(THREAD, past) for _ in range(RACERS)),
        )
        events = await store.journal.events(THREAD)
        assert [event.seq for event in events] == list(range(1, 2 + 3 * RACERS + 1))
        assert (await leased(store)).last_seq == len(events)

    async def test_a_commit_returns_its_events_as_stored(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.append(THREAD, [UserSaid("beside", PERSON, backfill=True)])
        await clock.advance(1.5)
        committed = await store.journal.commit(lease, answer("T1", "fine"))
        assert committed.events == tuple(await store.journal.events(THREAD, 3))
        event = committed.events[0]
        assert (event.seq, event.turn, event.at, event.data) == (4, "T1", clock.now(), AssistantSaid("fine"))

    async def test_a_commit_stores_all_its_records(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, everything(clock))
        assert (await types(store))[-1] == "assistant_message"
        assert [row.id for row in await store.outbox.claim(["web"], 10, 60)] == ["T1:1"]
        assert [row.entry.action for row in await store.audit.tail(1000, chain_name=THREAD)] == ["tool:bash:ls"]
        assert [approval.id for approval in await store.approvals.search()] == ["A1"]
        assert [(row.model, row.usage, row.usd) for row in await store.ledger.usage()] == [("demo", Usage(10, 5), 0.25)]
        assert [step.step.duration_ms for step in await store.journal.steps(THREAD)] == [200]
        assert await store.journal.prompt("sha") == b"You are."
        for thread in (THREAD, OTHER, OTHER):
            await store.journal.commit(lease, Commit(TurnId("T1"), settings=(("last", "main", thread),)))
            assert await store.settings.get("last", "main") == thread

    async def test_a_failed_commit_stores_nothing(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        parts = everything(clock)
        with pytest.raises(Conflict):
            await store.journal.commit(
                lease, Commit(parts.turn, parts.events, parts.posts, parts.audit, use_approval=ApprovalId("unknown"))
            )
        assert (await types(store))[-1] == "user_message"
        assert await store.outbox.claim(["web"], 10, 60) == []
        assert await store.audit.tail(1000, chain_name=THREAD) == []
        await store.journal.commit(lease, answer("T1"))
        assert [event.seq for event in await store.journal.events(THREAD)] == [1, 2, 3]

    async def test_calls_start_with_their_message_if_the_thread_is_unchanged(self, store: Store) -> None:
        """Messages that only wait for the end of the turn do not count as changes."""
        lease = await opened(store)
        await store.inbox.accept_now(follow_up("later"))
        committed = await store.journal.commit(lease, starting(last_seq=2))
        assert [event.type for event in committed.events] == ["assistant_message", "tool_started"]
        assert committed.events == tuple(await store.journal.events(THREAD, 2))
        assert [row.entry.action for row in await store.audit.tail(1000, chain_name=THREAD)] == ["tool:bash:ls"]

    @pytest.mark.parametrize("happening", ["steer", "stop", "event"])
    async def test_calls_do_not_start_if_the_thread_has_changed(self, store: Store, happening: str) -> None:
        lease = await opened(store)
        if happening == "steer":
            await store.inbox.accept_now(steer("wait"))
        elif happening == "stop":
            await store.inbox.abort(Abort(THREAD, PERSON))
        else:
            await store.journal.append(THREAD, [UserSaid("beside", PERSON, backfill=True)])
        committed = await store.journal.commit(lease, starting(last_seq=2))
        assert [event.type for event in committed.events] == ["assistant_message"]
        assert committed.aborting == (happening == "stop")
        assert await store.audit.tail(1000, chain_name=THREAD) == []

    async def test_a_prompt_text_is_stored_once(self, store: Store) -> None:
        lease = await opened(store)
        for _ in range(2):
            await store.journal.commit(lease, Commit(TurnId("T1"), prompts=(("sha", b"You are."),)))
        assert await store.journal.prompt("sha") == b"You are."
        assert await store.journal.prompt("other") is None

    async def test_a_finished_turn_is_closed_with_its_reply(self, store: Store) -> None:
        lease = await opened(store)
        committed = await closed(store, lease)
        assert isinstance(committed.events[-1].data, TurnFinished)
        assert committed.prompt is None
        assert [row.post.text for row in await store.outbox.claim(["web"], 10, 60)] == ["hi"]

    async def test_the_end_of_a_turn_cancels_its_open_approvals(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, everything(clock))
        committed = await closed(store, lease)
        assert [event.type for event in committed.events] == ["approval_decided", "turn_finished"]
        approval = await store.approvals.get(ApprovalId("A1"))
        assert approval is not None
        assert approval.state == "cancelled"

    async def test_the_window_begins_after_a_clear_or_compaction(self, store: Store) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, Commit(TurnId("T1"), (Compacted(1, "they said hello"),)))
        assert (await leased(store)).window_seq == 1
        await store.journal.append(THREAD, [Cleared("u1")])
        assert (await leased(store)).window_seq == 4

    async def test_events_are_read_by_range(self, store: Store) -> None:
        lease = await opened(store)
        for _ in range(4):
            await store.journal.commit(lease, answer("T1"))
        assert [event.seq for event in await store.journal.events(THREAD, 2)] == [3, 4, 5, 6]
        assert [event.seq for event in await store.journal.events(THREAD, 2, before=5)] == [3, 4]
        assert [event.seq for event in await store.journal.events(THREAD, 0, 2)] == [1, 2]
        assert await store.journal.events(OTHER) == []

    async def test_an_unknown_thread_cannot_be_appended_to(self, store: Store) -> None:
        """Only people's messages create threads."""
        with pytest.raises(NotFound):
            await store.journal.append(THREAD, [Cleared("u1")])

    async def test_threads_active_at_the_same_time_are_listed_by_creation(
        self, store: Store, clock: ManualClock
    ) -> None:
        threads = [make_thread_id("web", "lobby", name) for name in ("b", "a", "c")]
        for thread in threads:
            await store.inbox.accept(prompt(f"first {thread}", thread), 5)
            await clock.advance(1)
        for thread in threads:
            await store.inbox.accept(prompt(f"second {thread}", thread), 5)
        for channels in ((), ("web:lobby:",)):
            assert [info.thread for info in await store.journal.threads(channels=channels)] == threads[::-1]

    async def test_threads_are_listed_by_last_activity(self, store: Store, clock: ManualClock) -> None:
        began = clock.now()
        await store.inbox.accept(prompt("a", text="  first\nquestion  "), 5)
        await clock.advance(1)
        await store.inbox.accept(prompt("b", OTHER), 5)
        await clock.advance(1)
        lease: Lease = await leased(store)
        await store.journal.open_turn(lease, lease.prompt or prompt("a"), opening("T1", prompt("a")))
        await store.inbox.accept(prompt("c"), 5)
        first, second = await store.journal.threads()
        assert (first.thread, second.thread) == (THREAD, OTHER)
        assert (first.title, first.open_turn, first.queued, first.last_seq) == ("first question", "T1", 1, 2)
        assert (first.created_at, first.updated_at) == (began, clock.now())
        assert first == await store.journal.thread(THREAD)
        assert [info.thread for info in await store.journal.threads(1)] == [THREAD]
        assert [info.thread for info in await store.journal.threads(before=first.updated_at)] == [OTHER]
        assert await store.journal.threads(agent="nobody") == []
        assert await store.journal.thread(ThreadId("web:lobby:three")) is None

    async def test_a_conversation_is_imported_once_with_its_times(self, store: Store, clock: ManualClock) -> None:
        then, turn = clock.now() - timedelta(days=300), TurnId("T0")
        events_told = (
            UserSaid("When is high water?", PERSON), TurnStarted("main", "x"), AssistantSaid("At ten."),
            TurnFinished("done", "At ten."),
        )  # fmt: skip
        events = [Event(0, THREAD, turn, then + timedelta(seconds=n), data) for n, data in enumerate(events_told)]
        assert await store.journal.add_thread(THREAD, "main", "Tides", events)
        assert not await store.journal.add_thread(THREAD, "main", "Tides", events)
        stored = await store.journal.events(THREAD)
        assert [(event.seq, event.turn, event.at, event.data) for event in stored] == [
            (n, turn, data_of_event.at, data_of_event.data) for n, data_of_event in enumerate(events, 1)
        ]
        info = await store.journal.thread(THREAD)
        assert info is not None
        assert (info.title, info.created_at, info.updated_at, info.open_turn) == ("Tides", then, events[-1].at, "")
        await store.inbox.accept(prompt("a"), 5)
        lease = await leased(store)
        committed = await store.journal.open_turn(lease, prompt("a"), opening("T1", prompt("a")))
        assert committed.events[0].seq == len(events) + 1
