"""A state machine that compares the mailbox with a model made of lists: order, bounds and exactly-once delivery."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.kernel.errors import StaleEpoch
from shoal.kernel.events import Outcome, Steered
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Abort, Prompt
from shoal.kernel.records import Lease
from shoal.store.store import Store
from shoal.testing.contracts.steps import OTHER, PERSON, THREAD, answer, ending, follow_up, opening, prompt, steer

PROMPTS_MAX = 3
T = TypeVar("T")

threads = st.sampled_from([THREAD, OTHER])
keys = st.integers(0, 30).map(lambda number: f"k{number}")


class Thread:
    """Model of a thread. `late` lists the pending steers and follow-ups as pairs of lane and text."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.late: list[tuple[str, str]] = []
        self.turn = ""
        self.aborting = False
        self.answered: list[str] = []


class MailboxMachine(RuleBasedStateMachine):
    """State machine over a store. A subclass opens the store. The text of each message is also its key."""

    def __init__(self, open_store: Callable[[], Awaitable[Store]]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.run(open_store())
        self.order: list[str] = []
        self.threads = {THREAD: Thread(), OTHER: Thread()}
        self.leases: dict[ThreadId, Lease] = {}
        self.stale: list[Lease] = []
        self.turns = 0

    def run(self, waits: Awaitable[T]) -> T:
        async def waiting() -> T:
            return await waits

        return self.runner.run(waiting())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def lease(self, thread: ThreadId) -> Lease | None:
        lease = self.run(self.store.journal.lease(thread))
        if lease is not None:
            if thread in self.leases:
                self.stale.append(self.leases[thread])
            self.leases[thread] = lease
        return lease

    # ---- people ----

    @rule(thread=threads, key=keys)
    def accept(self, thread: ThreadId, key: str) -> None:
        model = self.threads[thread]
        expected = "duplicate" if key in self.order else "busy" if len(model.queue) >= PROMPTS_MAX else "accepted"
        assert self.run(self.store.inbox.accept(prompt(key, thread, key), PROMPTS_MAX)).status == expected
        if expected == "accepted":
            self.order.append(key)
            model.queue.append(key)

    @rule(thread=threads, key=keys, lane=st.sampled_from(["steer", "follow_up"]))
    def accept_now(self, thread: ThreadId, key: str, lane: str) -> None:
        model = self.threads[thread]
        expected = "duplicate" if key in self.order else "delivered" if model.turn else "dropped"
        message = steer(key, thread, key) if lane == "steer" else follow_up(key, thread, key)
        receipt = self.run(self.store.inbox.accept_now(message))
        assert receipt.status == expected
        if expected == "delivered":
            assert receipt.turn == model.turn
            self.order.append(key)
            model.late.append((lane, key))

    @rule(thread=threads, all_queued=st.booleans())
    def abort(self, thread: ThreadId, all_queued: bool) -> None:
        """Stop the running turn. If no turn is running, drop the next prompt or, with `all_queued`, all prompts."""
        model = self.threads[thread]
        receipt = self.run(self.store.inbox.abort(Abort(thread, PERSON, all_queued)))
        drops_next = not model.turn and bool(model.queue)
        assert receipt.status == ("delivered" if model.turn or drops_next else "dropped")
        model.aborting = bool(model.turn)
        if all_queued:
            model.queue.clear()
        elif drops_next:
            model.queue.pop(0)

    # ---- workers ----

    @rule(thread=threads)
    def work(self, thread: ThreadId) -> None:
        model, lease = self.threads[thread], self.lease(thread)
        assert (lease is None) == (not model.turn and not model.queue)
        if lease is None:
            return
        steers = bool(model.turn) and any(lane == "steer" for lane, _ in model.late)
        assert (lease.open_turn, lease.aborting, lease.steers) == (model.turn, model.aborting, steers)
        assert (lease.prompt.key if lease.prompt else None) == (model.queue[0] if model.queue else None)
        if lease.prompt is not None and not model.turn:
            self.open(model, lease, lease.prompt)

    @rule(thread=threads)
    def go_on(self, thread: ThreadId) -> None:
        if (lease := self.leases.get(thread)) is None:
            return
        model, found = self.threads[thread], self.run(self.store.journal.held(lease))
        assert (found is None) == (bool(model.turn) or not model.queue)
        if found is not None:
            assert found.prompt is not None
            assert (found.epoch, found.prompt.key) == (lease.epoch, model.queue[0])
            self.leases[thread] = found
            self.open(model, found, found.prompt)

    def open(self, model: Thread, lease: Lease, said: Prompt) -> None:
        self.turns += 1
        model.turn = f"T{self.turns}"
        self.run(self.store.journal.open_turn(lease, said, opening(model.turn, said)))
        model.answered.append(model.queue.pop(0))

    def held(self, thread: ThreadId) -> tuple[Thread, Lease] | None:
        model, lease = self.threads[thread], self.leases.get(thread)
        return (model, lease) if lease is not None and model.turn else None

    @rule(thread=threads)
    def take_steers(self, thread: ThreadId) -> None:
        if (held := self.held(thread)) is None:
            return
        model, lease = held
        committed = self.run(self.store.journal.take_steers(lease, TurnId(model.turn)))
        expected = [key for lane, key in model.late if lane == "steer"]
        assert [event.data.text for event in committed.events if isinstance(event.data, Steered)] == expected
        model.late = [(lane, key) for lane, key in model.late if lane != "steer"]
        model.answered += expected

    @rule(thread=threads, outcome=st.sampled_from(["done", "limit", "aborted", "failed"]))
    def finish(self, thread: ThreadId, outcome: Outcome) -> None:
        """End the turn. The store rejects a normal end after a stop. Before any other normal end, it answers late
        messages.
        """
        if (held := self.held(thread)) is None:
            return
        model, lease = held
        committed = self.run(self.store.journal.finish_turn(lease, ending(model.turn, outcome)))
        if outcome in ("done", "limit") and model.aborting:
            assert (committed.events, committed.aborting) == ((), True)
            return
        late = [key for _, key in model.late]
        model.late = []
        if outcome in ("done", "limit") and late:
            assert [event.data.text for event in committed.events if isinstance(event.data, Steered)] == late
            model.answered += late
            return
        assert committed.events[-1].type == "turn_finished"
        model.turn, model.aborting = "", False
        if outcome == "failed":
            self.requeue(model, late)
        assert (committed.prompt.key if committed.prompt else None) == (model.queue[0] if model.queue else None)

    def requeue(self, model: Thread, late: list[str]) -> None:
        model.queue = sorted(model.queue + late, key=self.order.index)

    @precondition(lambda self: bool(self.stale))
    @rule(data=st.data())
    def use_a_stale_lease(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.stale))
        with pytest.raises(StaleEpoch):
            self.run(self.store.journal.commit(lease, answer("T0")))

    # ---- invariants ----

    @invariant()
    def everything_waits_that_should(self) -> None:
        expected = sorted(thread for thread, model in self.threads.items() if model.turn or model.queue)
        assert sorted(self.run(self.store.inbox.waiting())) == expected
        backlog = self.run(self.store.inbox.backlog())
        assert backlog.prompts == sum(len(model.queue) for model in self.threads.values())
        assert backlog.turns == sum(bool(model.turn) for model in self.threads.values())

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        """Also checks that the journal's event numbers have no gap."""
        for thread, model in self.threads.items():
            assert len(model.answered) == len(set(model.answered))
            events = self.run(self.store.journal.events(thread))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
