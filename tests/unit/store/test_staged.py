"""Staged sets of calls under crashes: accepted calls run once and in order, and nothing else runs."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import Conflict
from shoal.kernel.events import (
    ApprovalRequested,
    EffectsAccepted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
    Verdict,
)
from shoal.kernel.ids import ApprovalId, CallId, CardId, TurnId
from shoal.kernel.messages import AcceptedCalls, Prompt, ToolCall
from shoal.kernel.permissions import CardItem
from shoal.kernel.records import Commit, NewApproval, NewPost
from shoal.kernel.settings import TurnsSettings
from shoal.kernel.turnstate import Finish, RunCalls, TurnState, next_move
from shoal.store.driver import Driver, Script
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.contracts.steps import PERSON, THREAD, opened
from shoal.testing.database import empty_database
from shoal.testing.faults import WrappedDriver

EXAMPLES = int(os.environ.get("STAGED_SETS", "60"))
"""Use 10,000 for a longer manual run."""
CARD = CardId("C1")
FIRST, SECOND = TurnId("T1"), TurnId("T2")
LIMITS = TurnsSettings()
T = TypeVar("T")


class Crash(Exception):
    """Simulates a kill of the process."""


class CrashingDriver(WrappedDriver):
    """A driver that crashes at the given writes, counted over all lives. Odd-numbered writes are lost and
    even-numbered ones are stored.
    """

    def __init__(self, driver: Driver, crashes: Sequence[int]) -> None:
        super().__init__(driver)
        self.crashes = set(crashes)
        self.writes = 0

    async def write(self, script: Script[T]) -> T:
        self.writes += 1
        mine = self.writes in self.crashes
        if mine and self.writes % 2:
            raise Crash
        result = await self._driver.write(script)
        if mine:
            raise Crash
        return result


class Life:
    """The work of one process on a staged set. It continues where the previous process stopped."""

    def __init__(self, store: Store, calls: int, accepted: frozenset[int], by_one: bool) -> None:
        self.store = store
        self.ids = [CallId(f"c{number}") for number in range(1, calls + 1)]
        self.verdicts: dict[ApprovalId, Verdict] = {
            ApprovalId(f"A{number}"): "allow" if number in accepted else "deny" for number in range(1, calls + 1)
        }
        self.by_one = by_one
        self.world = list[str]()

    async def run(self) -> None:
        await self.stage()
        await self.decide()
        if "allow" in self.verdicts.values():
            await self.act()

    async def stage(self) -> None:
        info = await self.store.journal.thread(THREAD)
        if info is not None and await self.store.approvals.on_card(CARD):
            return
        if info is None:
            await opened(self.store)
        lease = await self.store.journal.lease(THREAD)
        if lease is None or not lease.open_turn:
            said = lease.prompt if lease is not None else None
            assert said is not None
            assert lease is not None
            commit = Commit(FIRST, (TurnStarted("main", "demo"), UserSaid(said.text, said.author, said.key)))
            await self.store.journal.open_turn(lease, said, commit)
        expires_at = SystemClock().now() + timedelta(hours=1)
        calls = tuple(ToolCall(id, "send", "{}") for id in self.ids)
        approvals = tuple(
            NewApproval(approval, id, "send", (), f"d{id}", f"send {id}", "u1", expires_at, item=self.item(number))
            for number, (approval, id) in enumerate(zip(self.verdicts, self.ids, strict=True), 1)
        )
        asked = tuple(
            ApprovalRequested(one.id, one.call_id, "send", (), one.shown, expires_at, item=one.item)
            for one in approvals
        )
        accepted = AcceptedCalls(CARD, calls, tuple(self.verdicts))
        staged = Prompt(THREAD, f"staged:{CARD}", "", PERSON, expires_at, origin="staged", accepted=accepted)
        post = NewPost(f"approval:{CARD}", THREAD, "card", "card", approval=CARD)
        ends = Commit(FIRST, (*asked, TurnFinished("done", "hi")), (post,), approvals=approvals, staged=staged)
        await self.store.journal.finish_turn(lease, ends)

    def item(self, number: int) -> CardItem:
        return CardItem(CARD, number, len(self.ids), staged=True)

    async def decide(self) -> None:
        calls = await self.store.approvals.on_card(CARD)
        waiting = {call.id: self.verdicts[call.id] for call in calls if call.state == "pending"}
        groups = [{id: verdict} for id, verdict in waiting.items()] if self.by_one else [waiting] if waiting else []
        for verdicts in groups:
            await self.store.approvals.record_decisions(verdicts, "once", "u1", "owner")
        with suppress(Conflict):
            await self.store.approvals.record_decisions(self.verdicts, "once", "u1", "owner")
            raise AssertionError("a set was decided twice")

    async def act(self) -> None:
        lease = await self.store.journal.lease(THREAD)
        if lease is None:
            return
        if not lease.open_turn:
            prompt = lease.prompt
            assert prompt is not None
            assert prompt.accepted is not None
            said = UserSaid(prompt.text, prompt.author, prompt.key, origin="staged")
            accepted = prompt.accepted
            begins = EffectsAccepted(accepted.card, accepted.calls, accepted.approvals, accepted.by)
            await self.store.journal.open_turn(
                lease, prompt, Commit(SECOND, (TurnStarted("main", "demo"), said, begins))
            )
            lease = await self.store.journal.lease(THREAD)
            assert lease is not None
        state = TurnState(SECOND)
        seen = 0
        while True:
            for event in await self.store.journal.events(THREAD, seen):
                state.apply(event)
                seen = event.seq
            match next_move(state, LIMITS):
                case RunCalls(calls=(call, *_)):
                    if call.id in state.started:
                        lost = ToolFinished(call.id, "send", "unknown", is_error=True)
                        await self.store.journal.commit(lease, Commit(SECOND, (lost,)))
                        continue
                    approval = state.approvals[call.id].approval_id
                    begun = Commit(SECOND, (ToolStarted(call.id, "send"),), use_approval=approval)
                    await self.store.journal.commit(lease, begun)
                    self.world.append(call.id)
                    done = ToolFinished(call.id, "send", "sent")
                    await self.store.journal.commit(lease, Commit(SECOND, (done,), outcomes=((approval, "ran"),)))
                case Finish():
                    await self.store.journal.finish_turn(lease, Commit(SECOND, (TurnFinished("done"),), shows=CARD))
                    return
                case move:
                    raise AssertionError(f"a turn of accepted calls does {move}")


SETS = st.integers(1, 6).flatmap(lambda calls: st.tuples(st.just(calls), st.frozensets(st.integers(1, calls))))


@seed(45)
@settings(max_examples=EXAMPLES, deadline=None)
@given(SETS, st.booleans(), st.lists(st.integers(1, 40), max_size=6))
def test_only_accepted_calls_run_once_and_in_order(
    wanted: tuple[int, frozenset[int]], by_one: bool, crashes: list[int]
) -> None:
    asyncio.run(_check(*wanted, by_one, crashes))


async def _check(calls: int, accepted: frozenset[int], by_one: bool, crashes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        driver = CrashingDriver(SqliteDriver(empty_database(Path(folder) / "shoal.db")), crashes)
        store = Store(driver, SystemClock())
        life = Life(store, calls, accepted, by_one)
        try:
            while True:
                with suppress(Crash):
                    await life.run()
                    break
            driver.crashes.clear()
            events = await store.journal.events(THREAD)
            results = [event.data for event in events if isinstance(event.data, ToolFinished)]
            chosen = [f"c{number}" for number in sorted(accepted)]
            assert [one.call_id for one in results] == chosen, "each accepted call has one result, in order"
            assert [one.call_id for one in results if not one.is_error] == [
                id for id in life.world if id in {one.call_id for one in results if not one.is_error}
            ]
            assert life.world == [id for id in chosen if id in life.world], "once, and in order"
            assert crashes or life.world == chosen
            states = {call.call_id: call.state for call in await store.approvals.on_card(CARD)}
            assert states == {id: "used" if id in chosen else "deny" for id in life.ids}
            assert await store.journal.lease(THREAD) is None, "nothing is left to do"
        finally:
            await store.close()
