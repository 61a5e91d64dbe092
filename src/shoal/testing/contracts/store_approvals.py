"""Contract tests for approvals. An approval is decided once and used once. It ends with its turn or when it expires."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from shoal.kernel.errors import Conflict, Gone, InvalidInput, NotFound, ShoalError
from shoal.kernel.events import ApprovalRequested, ApprovalSettled, AssistantSaid, Scope, Verdict
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId
from shoal.kernel.permissions import CardItem, Coverage, CoveredFile
from shoal.kernel.records import Commit, Lease, NewApproval
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD, closed, leased, opened, types

EXPIRES_SECONDS = 3600.0
RACERS = 8


COVERS = Coverage((CoveredFile("/workspace/x.sh", 5, "ab"),), others=2, others_digest="cd")


def question(clock: ManualClock, identity: str = "A1", digest: str = "d1", covers: Coverage = COVERS) -> Commit:
    """Return a commit that requests an approval."""
    expires_at = clock.now() + timedelta(seconds=EXPIRES_SECONDS)
    call, actions = CallId(f"c-{identity}"), ("tool:bash:rm x",)
    asked = ApprovalRequested(ApprovalId(identity), call, "bash", actions, "rm x", expires_at, covers=covers)
    approval = NewApproval(
        ApprovalId(identity),
        call,
        "bash",
        actions,
        digest,
        "rm x",
        "u1",
        expires_at,
        "why",
        call_digest=f"call-{digest}",
        covers=covers,
        needs_trust=True,
    )
    return Commit(TurnId("T1"), (asked,), approvals=(approval,))


async def asked(store: Store, clock: ManualClock, identity: str = "A1", digest: str = "d1") -> Lease:
    """Open a turn that requests an approval."""
    lease = await opened(store)
    await store.journal.commit(lease, question(clock, identity, digest))
    return lease


def use(identity: str = "A1") -> Commit:
    return Commit(TurnId("T1"), (AssistantSaid("it runs"),), use_approval=ApprovalId(identity))


def card(clock: ManualClock, calls: int = 3) -> Commit:
    """Return a commit that requests approval for several calls on one card."""
    commits = [question(clock, f"A{number}", f"d{number}") for number in range(1, calls + 1)]
    items = [CardItem(CardId("C1"), number, calls) for number in range(1, calls + 1)]
    approvals = [replace(commit.approvals[0], item=item) for commit, item in zip(commits, items, strict=True)]
    events = [event for commit in commits for event in commit.events]
    return Commit(TurnId("T1"), tuple(events), approvals=tuple(approvals))


class ApprovalRules:
    """Tests of `Approvals`, mixed into `StoreContract`."""

    async def test_a_card_is_decided_completely_or_not_at_all(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, card(clock))
        calls = await store.approvals.on_card(CardId("C1"))
        assert [(call.id, call.item.number) for call in calls] == [("A1", 1), ("A2", 2), ("A3", 3)]
        await store.approvals.record_decision(ApprovalId("A2"), "deny", "once", "u1", "owner")
        both: dict[ApprovalId, Verdict] = {ApprovalId("A1"): "allow", ApprovalId("A2"): "allow"}
        with pytest.raises(Conflict):
            await store.approvals.record_decisions(both, "once", "u1", "owner")
        states = [call.state for call in await store.approvals.on_card(CardId("C1"))]
        assert states == ["pending", "deny", "pending"]
        rest: dict[ApprovalId, Verdict] = {ApprovalId("A1"): "allow", ApprovalId("A3"): "deny"}
        settlements = await store.approvals.record_decisions(rest, "once", "u1", "owner")
        assert [settlement.approval.state for settlement in settlements] == ["allow", "deny"]
        with pytest.raises(Conflict, match="allowed and denied"):
            await store.approvals.choose(CardId("C1"), [1], "post", "")

    async def test_concurrent_decisions_decide_a_card_once(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, card(clock))

        async def decide(verdict: Verdict) -> str:
            verdicts: dict[ApprovalId, Verdict] = {ApprovalId(f"A{number}"): verdict for number in (1, 2, 3)}
            try:
                await store.approvals.record_decisions(verdicts, "once", "u1", "owner")
            except Conflict:
                return "late"
            return verdict

        given: list[Verdict] = ["allow", "deny"] * (RACERS // 2)
        outcomes = await asyncio.gather(*(decide(verdict) for verdict in given))
        (won,) = [outcome for outcome in outcomes if outcome != "late"]
        assert {call.state for call in await store.approvals.on_card(CardId("C1"))} == {won}

    async def test_a_card_expires_or_is_cancelled_as_a_whole(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, card(clock))
        await clock.advance(EXPIRES_SECONDS + 1)
        assert len(await store.approvals.expire()) == 3
        with pytest.raises(Gone):
            await store.approvals.choose(CardId("C1"), [1], "post", "")
        with pytest.raises(NotFound):
            await store.approvals.choose(CardId("C2"), [1], "post", "")

    async def test_two_processes_expire_a_card_once(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        await store.journal.commit(lease, card(clock))
        await clock.advance(EXPIRES_SECONDS + 1)
        settlements = await asyncio.gather(*(store.approvals.expire() for _ in range(RACERS)))
        assert sum(map(len, settlements)) == 3

    async def test_a_request_is_returned_unchanged(self, store: Store, clock: ManualClock) -> None:
        await asked(store, clock)
        approval = await store.approvals.get(ApprovalId("A1"))
        assert approval is not None
        assert (approval.thread, approval.turn, approval.call_id, approval.tool) == (THREAD, "T1", "c-A1", "bash")
        assert (approval.actions, approval.digest, approval.shown) == (("tool:bash:rm x",), "d1", "rm x")
        assert (approval.state, approval.asked_by, approval.reason) == ("pending", "u1", "why")
        assert (approval.call_digest, approval.covers, approval.decided_trust) == ("call-d1", COVERS, None)
        assert approval.needs_trust
        assert approval.expires_at == clock.now() + timedelta(seconds=EXPIRES_SECONDS)
        assert await store.approvals.get(ApprovalId("unknown")) is None

    async def test_a_decision_is_stored_journaled_and_audited(self, store: Store, clock: ManualClock) -> None:
        """One transaction stores, journals and audits the decision."""
        await asked(store, clock)
        settlement = await store.approvals.record_decision(ApprovalId("A1"), "deny", "once", "u2", "trusted")
        assert settlement.approval.decided_trust == "trusted"
        assert (settlement.verdict, settlement.approval.state, settlement.approval.decided_by) == ("deny", "deny", "u2")
        assert settlement.approval.decided_at == clock.now()
        event = (await store.journal.events(THREAD))[-1]
        assert event == settlement.event
        assert event.turn == "T1"
        assert event.data == ApprovalSettled(ApprovalId("A1"), CallId("c-A1"), "deny", "once", "u2")
        (row,) = await store.audit.tail(1000, chain_name=THREAD)
        assert (row.entry.kind, row.entry.decision, row.entry.user) == ("approval", "deny", "u2")

    async def test_an_approval_is_decided_once(self, store: Store, clock: ManualClock) -> None:
        await asked(store, clock)
        await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
        for verdict in ("allow", "deny"):
            with pytest.raises(Conflict, match="allow"):
                await store.approvals.record_decision(ApprovalId("A1"), verdict, "once", "u2", "owner")
        assert (await types(store)).count("approval_decided") == 1

    async def test_one_of_concurrent_decisions_wins(self, store: Store, clock: ManualClock) -> None:
        await asked(store, clock)

        async def decide(verdict: Verdict) -> str:
            try:
                return (await store.approvals.record_decision(ApprovalId("A1"), verdict, "once", "u1", "owner")).verdict
            except Conflict:
                return "late"

        verdicts: tuple[Verdict, ...] = ("allow", "deny") * (RACERS // 2)
        outcomes = await asyncio.gather(*(decide(verdict) for verdict in verdicts))
        assert outcomes.count("late") == RACERS - 1
        approval = await store.approvals.get(ApprovalId("A1"))
        assert approval is not None
        assert approval.state in outcomes
        assert (await types(store)).count("approval_decided") == 1
        assert len(await store.audit.tail(1000, chain_name=THREAD)) == 1

    async def test_an_unknown_approval_cannot_be_decided(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.approvals.record_decision(ApprovalId("unknown"), "allow", "once", "u1", "owner")

    async def test_an_expired_approval_cannot_be_decided(self, store: Store, clock: ManualClock) -> None:
        await asked(store, clock)
        await clock.advance(EXPIRES_SECONDS)
        for _ in range(2):
            with pytest.raises(Gone):
                await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
            await store.approvals.expire()
        assert (await store.journal.events(THREAD))[-1].data == ApprovalSettled(
            ApprovalId("A1"), CallId("c-A1"), "expired", "once", "clock"
        )

    async def test_only_due_approvals_expire(self, store: Store, clock: ManualClock) -> None:
        lease = await asked(store, clock)
        await clock.advance(10)
        await store.journal.commit(lease, question(clock, "A2"))
        await clock.advance(EXPIRES_SECONDS - 10)
        assert [settlement.approval.id for settlement in await store.approvals.expire()] == ["A1"]
        assert await store.approvals.expire() == []
        await clock.advance(10)
        assert [settlement.approval.id for settlement in await store.approvals.expire()] == ["A2"]

    async def test_an_allowed_call_runs_once(self, store: Store, clock: ManualClock) -> None:
        """One transaction uses the approval and records the call's start."""
        lease = await asked(store, clock)
        with pytest.raises(Conflict):
            await store.journal.commit(lease, use())
        await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
        await store.journal.commit(lease, use())
        with pytest.raises(Conflict):
            await store.journal.commit(lease, use())
        assert (await types(store)).count("assistant_message") == 1

    async def test_a_denied_or_expired_call_does_not_run(self, store: Store, clock: ManualClock) -> None:
        lease = await asked(store, clock)
        await store.journal.commit(lease, question(clock, "A2"))
        await store.approvals.record_decision(ApprovalId("A1"), "deny", "once", "u1", "owner")
        await clock.advance(EXPIRES_SECONDS)
        await store.approvals.expire()
        for identity in ("A1", "A2"):
            with pytest.raises(Conflict):
                await store.journal.commit(lease, use(identity))

    async def test_a_decision_can_race_with_the_end_of_its_turn(self, store: Store, clock: ManualClock) -> None:
        lease = await asked(store, clock)

        async def decide() -> str:
            try:
                return (await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")).verdict
            except ShoalError:
                return "late"

        outcome, _ = await asyncio.gather(decide(), closed(store, lease, outcome="aborted"))
        approval = await store.approvals.get(ApprovalId("A1"))
        assert approval is not None
        assert approval.state == ("allow" if outcome == "allow" else "cancelled")
        assert (await types(store)).count("approval_decided") == 1

    @pytest.mark.parametrize(("scope", "granted"), [("once", False), ("thread", True)])
    async def test_only_a_grant_for_the_thread_can_be_reused(
        self, store: Store, clock: ManualClock, scope: Scope, *, granted: bool
    ) -> None:
        """A grant applies only to exactly the same call in the same thread. Using the approval does not end the
        grant.
        """
        lease = await asked(store, clock, digest="d1")
        assert not await store.approvals.grants(THREAD, "call-d1")
        await store.approvals.record_decision(ApprovalId("A1"), "allow", scope, "u1", "owner")
        assert bool(await store.approvals.grants(THREAD, "call-d1")) is granted
        await store.journal.commit(lease, use())
        grants = await store.approvals.grants(THREAD, "call-d1")
        assert [(grant.digest, grant.covers, grant.decided_trust) for grant in grants] == [
            ("d1", COVERS, "owner")
        ] * granted
        assert not await store.approvals.grants(THREAD, "call-d2")
        assert not await store.approvals.grants(OTHER, "call-d1")

    async def test_an_uncovered_call_cannot_be_allowed_for_the_thread(self, store: Store, clock: ManualClock) -> None:
        lease = await opened(store)
        covers = Coverage(uncovered="it runs what it fetches")
        await store.journal.commit(lease, question(clock, covers=covers))
        with pytest.raises(InvalidInput, match="only be allowed once, because it runs what it fetches"):
            await store.approvals.record_decision(ApprovalId("A1"), "allow", "thread", "u1", "owner")
        settlement = await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
        assert settlement.approval.state == "allow"

    async def test_a_denial_for_the_thread_grants_nothing(self, store: Store, clock: ManualClock) -> None:
        await asked(store, clock)
        await store.approvals.record_decision(ApprovalId("A1"), "deny", "thread", "u1", "owner")
        assert not await store.approvals.grants(THREAD, "call-d1")

    async def test_approvals_are_listed_newest_first(self, store: Store, clock: ManualClock) -> None:
        lease = await asked(store, clock)
        await clock.advance(1)
        await store.journal.commit(lease, question(clock, "A2"))
        await store.approvals.record_decision(ApprovalId("A1"), "deny", "once", "u1", "owner")
        search = store.approvals.search
        assert [approval.id for approval in await search()] == ["A2"]
        assert [approval.id for approval in await search(pending=False)] == ["A2", "A1"]
        assert [approval.id for approval in await search(pending=False, limit=1)] == ["A2"]
        assert await search(thread=ThreadId(OTHER)) == []
        assert [approval.id for approval in await search(thread=THREAD)] == ["A2"]

    async def test_a_decision_wakes_the_thread(self, store: Store, clock: ManualClock) -> None:
        """The lease of a waiting turn contains the sequence number of the decision."""
        await asked(store, clock)
        await store.approvals.record_decision(ApprovalId("A1"), "allow", "once", "u1", "owner")
        assert (await leased(store)).last_seq == 4
