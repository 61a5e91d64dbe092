"""Contract tests for budgets: concurrent reservations never exceed a limit, and every reservation ends."""

import asyncio
from datetime import timedelta

from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Usage
from shoal.kernel.records import Ceiling, Commit, Reservation, Reserved, Spend
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import opened

RACERS = 50
STANDS_SECONDS = 600


class Purse:
    """Reservations for one day, under several limits."""

    def __init__(self, store: Store, clock: ManualClock, **ceilings: tuple[float, int]) -> None:
        self._store = store
        self._clock = clock
        self.day = clock.now().date().isoformat()
        self.ceilings = tuple(Ceiling(scope, self.day, *bounds) for scope, bounds in ceilings.items())

    async def reserve(self, identity: str, usd: float = 0.0, tokens: int = 0) -> Reserved:
        """Reserve an amount. The reservation expires after STANDS_SECONDS."""
        until = self._clock.now() + timedelta(seconds=STANDS_SECONDS)
        return await self._store.budget.reserve(Reservation(identity, self.ceilings, usd, tokens, until))

    async def spent(self, scope: str) -> tuple[float, int]:
        """Return the cents and tokens used under a limit."""
        (standing,) = await self._store.budget.standings([(scope, self.day)])
        return round(standing.usd * 100), standing.tokens


class BudgetRules:
    """Tests of `BudgetStore`, mixed into `StoreContract`."""

    async def test_concurrent_reservations_never_exceed_a_limit(self, store: Store, clock: ManualClock) -> None:
        purse = Purse(store, clock, day=(10.0, 1000))
        reserved = await asyncio.gather(*(purse.reserve(f"r{number}", 0.5, 100) for number in range(RACERS)))
        assert sum(outcome.blocked is None for outcome in reserved) == 10
        assert await purse.spent("day") == (500, 1000)

    async def test_concurrent_reservations_under_several_limits_do_not_deadlock(
        self, store: Store, clock: ManualClock
    ) -> None:
        ways = [Purse(store, clock, a=(0, 9000), b=(0, 300), c=(0, 9000)) for _ in range(2)]
        ways[1].ceilings = tuple(reversed(ways[0].ceilings))
        reserved = await asyncio.gather(*(ways[number % 2].reserve(f"r{number}", 0, 100) for number in range(RACERS)))
        assert sum(outcome.blocked is None for outcome in reserved) == 3
        assert [await ways[0].spent(scope) for scope in "abc"] == [(0, 300)] * 3

    async def test_a_blocked_reservation_names_its_limit_and_reserves_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        purse = Purse(store, clock, day=(1.0, 0), user=(0.2, 0))
        reserved = await purse.reserve("r1", 0.5)
        assert reserved.blocked is not None
        assert (reserved.blocked.scope, reserved.blocked.usd_max) == ("user", 0.2)
        assert await purse.spent("day") == (0, 0)

    async def test_a_repeated_call_replaces_its_reservation(self, store: Store, clock: ManualClock) -> None:
        """Repeating a call after a crash reserves nothing extra."""
        purse = Purse(store, clock, day=(1.0, 0))
        await purse.reserve("r1", 0.9, 10)
        assert (await purse.reserve("r1", 0.8, 20)).blocked is None
        assert await purse.spent("day") == (80, 20)

    async def test_a_reservation_is_released_once(self, store: Store, clock: ManualClock) -> None:
        purse = Purse(store, clock, day=(1.0, 0))
        await purse.reserve("r1", 0.5, 10)
        await purse.reserve("r2", 0.25, 5)
        for _ in range(2):
            await store.budget.release("r1")
        assert await purse.spent("day") == (25, 5)

    async def test_a_reservation_expires(self, store: Store, clock: ManualClock) -> None:
        """A process that crashes does not release its reservation."""
        purse = Purse(store, clock, day=(1.0, 0))
        await purse.reserve("r1", 0.9)
        assert (await purse.reserve("r2", 0.9)).blocked is not None
        await clock.advance(STANDS_SECONDS)
        assert (await purse.reserve("r2", 0.9)).blocked is None
        assert await purse.spent("day") == (90, 0)

    async def test_a_spend_replaces_its_reservation_with_the_actual_cost(
        self, store: Store, clock: ManualClock
    ) -> None:
        purse = Purse(store, clock, day=(1.0, 0))
        lease = await opened(store)
        await purse.reserve("T1:1", 0.9, 5000)
        spend = Spend("T1:1", "main", "u1", "demo", Usage(100, 20), 0.25, reservation="T1:1")
        await store.journal.commit(lease, Commit(TurnId("T1"), (), spend=spend))
        assert await purse.spent("day") == (25, 120)

    async def test_a_spend_with_an_expired_reservation_counts_once(self, store: Store, clock: ManualClock) -> None:
        """A reservation may expire during a slow call or after a change of the wall clock. The cost is still
        counted.
        """
        purse = Purse(store, clock, day=(1.0, 0), user=(0.5, 0))
        lease = await opened(store)
        await purse.reserve("T1:1", 0.5, 5000)
        await clock.advance(STANDS_SECONDS)
        await purse.reserve("T1:2", 0.1, 10)
        assert await purse.spent("day") == (10, 10)
        spend = Spend("T1:1", "main", "u1", "demo", Usage(100, 20), 0.25, "T1:1", purse.ceilings)
        for _ in range(2):
            await store.ledger.record(lease.thread, TurnId("T1"), spend)
        assert [await purse.spent(scope) for scope in ("day", "user")] == [(35, 130)] * 2

    async def test_suspended_limits_apply_again_the_next_day(self, store: Store, clock: ManualClock) -> None:
        purse = Purse(store, clock, total=(0, 10))
        assert (await purse.reserve("r1", 0, 20)).blocked is not None
        assert not await store.budget.is_lifted()
        assert await store.budget.lift() == purse.day
        assert await store.budget.is_lifted()
        assert (await purse.reserve("r1", 0, 20)).blocked is None
        await clock.advance(86_400)
        assert not await store.budget.is_lifted()
        assert (await purse.reserve("r2", 0, 20)).blocked is not None

    async def test_a_call_outside_turns_counts_once(self, store: Store, clock: ManualClock) -> None:
        purse = Purse(store, clock, day=(1.0, 0))
        lease = await opened(store)
        await purse.reserve("summary:1", 0.9, 5000)
        spend = Spend("summary:1", "main", "", "demo", Usage(100, 20), 0.25, reservation="summary:1")
        for _ in range(2):
            await store.ledger.record(lease.thread, TurnId(""), spend)
        assert await purse.spent("day") == (25, 120)
        assert [row.calls for row in await store.ledger.usage()] == [1]

    async def test_usage_by_thread_lists_the_most_expensive_first(self, store: Store, clock: ManualClock) -> None:
        """The totals include calls outside turns."""
        cheap, dear = ThreadId("web:lobby:cheap"), ThreadId("web:lobby:dear")

        async def record(thread: ThreadId, before: str, usd: float | None) -> None:
            turn = TurnId(clock.new_id())
            spent = Spend(f"{before}{turn}:1", "main", "u1", "demo", Usage(100, 20, 60), usd)
            await store.ledger.record(thread, turn, spent)

        await record(cheap, "", 9.0)
        await clock.advance(40 * 86_400)
        for before in ("", "summary:", "probe:", "title:", "snapshot:"):
            await record(cheap, before, None)
        await record(dear, "", 0.5)
        first, second = await store.ledger.by_thread(30)
        assert (first.thread, first.calls, first.tokens, first.usd) == (dear, 1, 120, 0.5)
        assert (second.thread, second.calls, second.cached_tokens, second.usd) == (cheap, 5, 300, None)
