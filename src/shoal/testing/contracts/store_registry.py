"""Contract tests for agents: registry, bindings, settings per channel, and active threads."""

import asyncio

import msgspec

from shoal.kernel.agents import Binding
from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.records import Commit, Step
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, opened

RACERS = 8


def binding(clock: Clock, channel: str, agent: str, *, made: bool = False) -> Binding:
    return Binding("fake", channel, agent, "fake:ada", clock.now(), made)


class RegistryRules:
    """Tests of `AgentStore`, mixed into `StoreContract`."""

    async def test_an_agent_has_one_row_that_follows_its_changes(self, store: Store, clock: ManualClock) -> None:
        assert await store.registry.put("main", "a")
        first = clock.now()
        await clock.advance(10)
        assert not await store.registry.put("main", "a")
        (row,) = await store.registry.all()
        assert (row.name, row.state, row.digest, row.created_at, row.changed_at) == (
            "main",
            "active",
            "a",
            first,
            first,
        )
        assert not await store.registry.put("main", "b")
        (row,) = await store.registry.all()
        assert (row.digest, row.created_at, row.changed_at) == ("b", first, clock.now())

    async def test_a_retired_agent_loses_its_bindings(self, store: Store, clock: ManualClock) -> None:
        for name in ("main", "other"):
            await store.registry.put(name, "")
        other = binding(clock, "c", "other")
        gone = [binding(clock, "a", "main", made=True), binding(clock, "b", "main")]
        for each in (other, *gone):
            await store.registry.bind(each)
        assert await store.registry.retire("main") == gone
        assert await store.registry.bindings() == [other]
        assert [(row.name, row.state) for row in await store.registry.all()] == [
            ("main", "destroyed"),
            ("other", "active"),
        ]
        assert await store.registry.retire("nobody") == []
        assert await store.registry.put("main", "")

    async def test_a_channel_has_one_binding(self, store: Store, clock: ManualClock) -> None:
        await asyncio.gather(*(store.registry.bind(binding(clock, "a", f"agent{n}")) for n in range(RACERS)))
        last = msgspec.structs.replace(binding(clock, "a", "last"), listen="named")
        await store.registry.bind(last)
        assert await store.registry.bindings() == [last]
        assert await store.registry.unbind("fake", "a")
        assert not await store.registry.unbind("fake", "a")
        assert await store.registry.bindings() == []

    async def test_choices_for_a_channel_are_stored_until_removed(self, store: Store) -> None:
        await store.settings.put("elsewhere", "fake", "x")
        await store.registry.choose("fake", "{}")
        await store.registry.choose("fake:a", '{"model":"m"}')
        await store.registry.choose("fake", '{"model":"n"}')
        assert await store.registry.choices() == {"fake": '{"model":"n"}', "fake:a": '{"model":"m"}'}
        await store.registry.choose("fake", "")
        assert await store.registry.choices() == {"fake:a": '{"model":"m"}'}

    async def test_threads_with_running_or_queued_work_are_listed_with_their_state(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert await store.registry.at_work() == []
        lease = await opened(store)
        step = Step(1, "model", clock.now(), 40)
        await store.journal.commit(lease, Commit(TurnId("T1"), steps=(step,)))
        await clock.advance(5)
        waiting = Prompt(ThreadId("fake:c:9"), "k9", "later", Author("u2", trusted=True), clock.now(), agent="other")
        await store.inbox.accept(waiting, 5)
        by_thread = {work.thread: work for work in await store.registry.at_work()}
        assert list(by_thread) == [THREAD, waiting.thread]
        busy, queued = by_thread[THREAD], by_thread[waiting.thread]
        assert (busy.turn, busy.steps, busy.questions, busy.queued) == ("T1", 1, 0, 0)
        assert busy.asked == "hello"
        assert busy.since is not None
        assert (queued.turn, queued.since, queued.asked, queued.queued) == ("", None, "", 1)
        assert [work.thread for work in await store.registry.at_work("other")] == [waiting.thread]
        assert len(await store.registry.at_work(limit=1)) == 1
        assert await store.registry.at_work("other", 5) == [queued]
