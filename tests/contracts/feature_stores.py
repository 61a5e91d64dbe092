"""The contract of what features store, over any database."""

from shoal.features.memory.store import CHANGES, MemoryChange, MemoryHistory
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.store_bookkeeping import DAYS, forgotten, months


class MemoryRules:
    """`MemoryHistory`."""

    async def test_changes_of_memory_are_forgotten_with_the_messages(self, store: Store, clock: ManualClock) -> None:
        """So that words that were forgotten do not stay in the database for ever."""
        history = MemoryHistory(store.driver, clock)
        store.bookkeeping.walks.append(CHANGES)
        for days in (2, DAYS - 1, 0):
            change = MemoryChange(clock.new_id(), clock.now(), "data/MEMORY.md", 1, ("- a",), ("- b", "- c"), "me")
            await history.note(change)
            await months(clock, days)
        assert await forgotten(store, clock) == [1]
        newest, oldest = await history.newest(9)
        assert (newest, await history.newest(9, newest.id)) == (change, [oldest])
        await history.note_undone(newest)
        assert [one.undone for one in await history.newest(9)] == [True, False]
        await history.drop(oldest)
        assert await history.get(oldest.id) is None


class FeatureRules(MemoryRules):
    """Every rule; a subclass gives the fixtures `store` and `clock`."""
