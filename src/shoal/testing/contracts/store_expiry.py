"""Contract tests for the deletion of old decisions, schedules, totals and measurements."""

from datetime import timedelta

from msgspec.structs import replace

from shoal.kernel.ids import ApprovalId, TurnId
from shoal.kernel.records import Commit, Step
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, closed, opened
from shoal.testing.contracts.store_approvals import asked, question, use
from shoal.testing.contracts.store_bookkeeping import forgotten, months, reserved


def question_of(clock: ManualClock, turn: str, name: str, days: float = 1) -> Commit:
    """Return a commit that requests an approval. The approval expires after `days` days."""
    new_question = question(clock, name)
    (approval,) = new_question.approvals
    return replace(
        new_question, turn=TurnId(turn), approvals=(replace(approval, expires_at=clock.now() + timedelta(days=days)),)
    )


def timed(clock: ManualClock, turn: str, number: int) -> Commit:
    """Return a commit that records the duration of a step."""
    return Commit(TurnId(turn), steps=(Step(number, "model", clock.now(), 200),))


class ExpiryRules:
    """Tests of how `Bookkeeping` deletes rows unrelated to delivery, mixed into `StoreContract`."""

    # ---- approvals ----

    async def test_old_decisions_are_deleted_except_grants_for_a_thread(self, store: Store, clock: ManualClock) -> None:
        lease = await asked(store, clock, "A1", "d1")
        await store.approvals.record_decision(ApprovalId("A1"), "allow", "thread", "u1", "owner")
        await store.journal.commit(lease, use("A1"))
        await closed(store, lease)
        again = await opened(store, "T2")
        for name in ("A2", "A3"):
            await store.journal.commit(again, question_of(clock, "T2", name))
        await store.approvals.record_decision(ApprovalId("A2"), "deny", "thread", "u1", "owner")
        await closed(store, again, "T2")
        await months(clock)
        young = await opened(store, "T3")
        await store.journal.commit(young, question_of(clock, "T3", "A4"))
        await closed(store, young, "T3")
        await forgotten(store, clock)
        left = [approval.id for approval in await store.approvals.search(pending=False)]
        assert left == ["A4", "A1"]
        assert await store.approvals.grants(THREAD, "call-d1")

    async def test_approvals_of_an_open_turn_are_not_deleted(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        for name in ("A1", "A2"):
            await store.journal.commit(lease, question_of(clock, "T1", name, days=900))
        await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
        await months(clock)
        await forgotten(store, clock)
        await store.journal.commit(lease, use("A1"))
        assert [approval.id for approval in await store.approvals.search()] == ["A2"]

    # ---- steps and budgets ----

    async def test_old_steps_are_deleted_except_those_of_open_turns(self, store: Store, clock: ManualClock) -> None:
        """The page shows the step durations of open turns."""
        lease = await opened(store, "T1")
        await store.journal.commit(lease, timed(clock, "T1", 1))
        await closed(store, lease, "T1")
        lease = await opened(store, "T2")
        await store.journal.commit(lease, timed(clock, "T2", 2))
        await months(clock)
        await store.journal.commit(lease, timed(clock, "T2", 3))
        await forgotten(store, clock)
        assert [step.step.number for step in await store.journal.steps(THREAD)] == [2, 3]
        await closed(store, lease, "T2")
        await forgotten(store, clock)
        assert [step.step.number for step in await store.journal.steps(THREAD)] == [3]

    async def test_budget_totals_of_old_days_and_turns_are_deleted(self, store: Store, clock: ManualClock) -> None:
        """Lifetime totals and the totals of open turns remain."""
        day = clock.now().date().isoformat()
        over, open_turn = clock.new_id(), clock.new_id()
        await opened(store, open_turn)
        old = [("agent:main", day), ("day", day), (f"turn:{over}", ""), (f"turn:{open_turn}", ""), ("total", "")]
        await reserved(store, clock, *old)
        await months(clock)
        young = [("day", clock.now().date().isoformat()), (f"turn:{clock.new_id()}", "")]
        await reserved(store, clock, *young)
        assert sum(await forgotten(store, clock)) == 3
        left = [await reserved(store, clock, key, tokens=0) for key in (*old, *young)]
        assert left == [[0], [0], [0], [10], [10], [10], [10]]
