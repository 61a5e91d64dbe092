"""Contract for the features' tables, on any database."""

from tests.contracts.feature_processes import ProcessRules
from tests.contracts.feature_triggers import TriggerRules
from tests.contracts.feature_undo import UndoRules

from shoal.features.memory.store import CHANGES, MemoryChange, MemoryHistory
from shoal.features.openai_api.conversations import CONVERSATIONS
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import OTHER, THREAD
from shoal.testing.contracts.store_bookkeeping import DAYS, answered, forgotten, months


class MemoryRules:
    async def test_memory_changes_are_deleted_with_old_messages(self, store: Store, clock: ManualClock) -> None:
        """A memory change contains removed text, so it must be deleted as well."""
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
        assert [change.undone for change in await history.newest(9)] == [True, False]
        await history.drop(oldest)
        assert await history.get(oldest.id) is None


class OpenAiRules:
    async def test_active_api_conversations_are_kept(self, store: Store, clock: ManualClock) -> None:
        store.bookkeeping.walks.append(CONVERSATIONS)
        for name, thread in (("a", THREAD), ("b", OTHER)):
            await answered(store, f"T{name}", thread)
            await store.settings.put("openai", name, thread)
            await store.settings.put("elsewhere", name, thread)
        await months(clock)
        await answered(store, "T3", OTHER)
        await forgotten(store, clock)
        assert await store.settings.page("openai") == [("b", OTHER)]
        assert len(await store.settings.page("elsewhere")) == 2


class FeatureRules(MemoryRules, OpenAiRules, ProcessRules, TriggerRules, UndoRules):
    """All feature rules. A subclass provides the fixtures `store` and `clock`."""
