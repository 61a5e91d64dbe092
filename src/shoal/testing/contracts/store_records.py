"""Contract tests for audit chains, usage and settings."""

import asyncio

from shoal.kernel.clock import to_micros
from shoal.kernel.ids import TurnId
from shoal.kernel.messages import Usage
from shoal.kernel.moved import MovedChats, ids_of
from shoal.kernel.records import GENESIS, AuditEntry, AuditRow, Commit, Spend, canonical_entry, entry_hash
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, opened

RACERS = 8


def entry(action: str) -> AuditEntry:
    return AuditEntry("action", action, "allow", user="u1")


def is_chained(rows: list[AuditRow], head: str) -> bool:
    """Return True if the rows are a complete chain that ends with the hash `head`."""
    previous = GENESIS
    for number, row in enumerate(rows, 1):
        expected = entry_hash(previous, row.chain, number, to_micros(row.at), canonical_entry(row.entry))
        if (row.number, row.previous, row.hash) != (number, previous, expected):
            return False
        previous = row.hash
    return previous == head


class RecordRules:
    """Tests of `AuditLog`, `Ledger` and `SettingStore`, mixed into `StoreContract`."""

    # ---- audit ----

    async def test_audit_entries_are_chained(self, store: Store, clock: ManualClock) -> None:
        """Each hash covers all earlier entries of the thread."""
        lease = await opened(store)
        await store.journal.commit(lease, Commit(TurnId("T1"), audit=(entry("a"), entry("b"))))
        await clock.advance(1)
        await store.audit.record(THREAD, [entry("c")])
        rows = await store.audit.tail(1000, chain_name=THREAD)
        assert [row.entry.action for row in rows] == ["a", "b", "c"]
        assert await store.audit.chains() == [(THREAD, 3, rows[-1].hash)]
        assert is_chained(rows, rows[-1].hash)

    async def test_concurrent_entries_keep_the_chain_intact(self, store: Store) -> None:
        await asyncio.gather(*(store.audit.record("app", [entry(f"{n}a"), entry(f"{n}b")]) for n in range(RACERS)))
        rows = await store.audit.tail(1000, chain_name="app")
        assert len(rows) == 2 * RACERS
        ((_, count, head),) = await store.audit.chains()
        assert count == len(rows)
        assert is_chained(rows, head)

    async def test_the_audit_tail_is_the_newest_entries(self, store: Store, clock: ManualClock) -> None:
        for number, chain in enumerate(["x", "y", "x", "x"]):
            await store.audit.record(chain, [entry(str(number))])
            await clock.advance(1)
        assert [row.entry.action for row in await store.audit.tail(3)] == ["1", "2", "3"]
        assert [row.entry.action for row in await store.audit.tail(2, chain_name="x")] == ["2", "3"]

    # ---- ledger and settings ----

    async def test_usage_is_summed_by_day_agent_and_model(self, store: Store, clock: ManualClock) -> None:
        """An unknown price is None, not 0."""
        lease = await opened(store)

        async def spend(identity: str, model: str, usd: float | None) -> None:
            used = Spend(identity, "main", "u1", model, Usage(100, 20, 50, 5, 3), usd)
            await store.journal.commit(lease, Commit(TurnId("T1"), spend=used))

        await spend("1", "known", 0.5)
        await spend("1", "known", 0.5)
        await spend("2", "known", 0.25)
        await spend("3", "unknown", None)
        await clock.advance(86_400)
        await spend("4", "known", 1.0)
        rows = [(row.day, row.model, row.calls, row.usd) for row in await store.ledger.usage()]
        assert rows == [
            ("2026-01-06", "known", 1, 1.0),
            ("2026-01-05", "known", 2, 0.75),
            ("2026-01-05", "unknown", 1, None),
        ]
        assert (await store.ledger.usage())[1].usage == Usage(200, 40, 100, 10, 6)
        assert [row.day for row in await store.ledger.usage(1)] == ["2026-01-06"]
        assert [row.day for row in await store.ledger.usage(2)] == ["2026-01-06", "2026-01-05", "2026-01-05"]

    async def test_a_setting_keeps_its_last_value(self, store: Store) -> None:
        assert await store.settings.get("telegram:main", "offset") is None
        await store.settings.put("telegram:main", "offset", "1")
        await store.settings.put("telegram:main", "offset", "2")
        await store.settings.put("telegram:other", "offset", "9")
        assert await store.settings.get("telegram:main", "offset") == "2"

    async def test_one_of_concurrent_swaps_succeeds(self, store: Store) -> None:
        for expected, value in ((None, "first"), ("first", "second")):
            swaps = (store.settings.swap("workspace", "main", expected, value) for _ in range(RACERS))
            assert sorted(await asyncio.gather(*swaps)) == [False] * (RACERS - 1) + [True]
            assert await store.settings.get("workspace", "main") == value

    async def test_a_chat_that_moved_keeps_its_first_id(self, store: Store) -> None:
        processes = [MovedChats("fake", store.settings) for _ in range(RACERS)]
        for old, new in (("a", "b"), ("b", "c")):
            noted = await asyncio.gather(*(process.note(old, new) for process in processes))
            assert sorted(noted) == [False] * (RACERS - 1) + [True]
        assert not await processes[0].note("c", "a")
        again = MovedChats("fake", store.settings)
        await again.load()
        for process in (*processes, again):
            assert (process.first_id("c"), process.newest_id("a"), process.newest_id("x")) == ("a", "c", "x")
        assert await ids_of(store.settings, "fake", "a") == ("a", "b", "c")

    async def test_settings_are_listed_by_scope_and_page(self, store: Store) -> None:
        for key in ("c", "a", "b"):
            await store.settings.put("marks", key, f"of {key}")
        await store.settings.put("hook", "a", "other")
        assert await store.settings.page("marks", limit=2) == [("a", "of a"), ("b", "of b")]
        assert await store.settings.page("marks", "b") == [("c", "of c")]
        assert await store.settings.page("none") == []

    async def test_a_changed_setting_is_not_deleted(self, store: Store) -> None:
        await store.settings.put("marks", "a", "new")
        assert not await store.settings.drop("marks", "a", "old")
        assert await store.settings.get("marks", "a") == "new"
        assert await store.settings.drop("marks", "a", "new")
        assert await store.settings.get("marks", "a") is None
