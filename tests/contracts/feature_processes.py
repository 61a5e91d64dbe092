"""Contract for the process table."""

import asyncio
from datetime import timedelta

from shoal.features.processes.records import Hook, Process, ProcessEnd, ProcessSpec
from shoal.features.processes.store import ProcessStore
from shoal.kernel.clock import Clock
from shoal.kernel.events import TurnStarted, UserSaid
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.records import Commit
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.steps import THREAD, closed, leased, opened

RACERS = 8


def process(clock: Clock, id: str, *, agent: str = "main", depth: int = 0) -> Process:
    spec = ProcessSpec(
        agent,
        THREAD,
        "make all",
        name="build",
        hooks=(Hook("exit", "look", (1, 2)),),
        depth=depth,
        author=Author("u1", trusted=True),
        tainted_by="",
    )
    return Process(id, spec, "running", "host 1 2 3", "", clock.now(), clock.now())


class ProcessRules:
    async def test_a_started_process_is_stored_with_its_details(self, store: Store, clock: ManualClock) -> None:
        rows = ProcessStore(store.driver, clock)
        one = process(clock, "p1")
        assert await rows.add(one, 5)
        assert await rows.get("p1") == one
        await rows.identify("p1", "77 12 boot")
        row = await rows.get("p1")
        assert row is not None
        assert (row.identity, row.pid) == ("77 12 boot", 77)
        assert await rows.get("p2") is None

    async def test_an_agents_running_processes_are_limited(self, store: Store, clock: ManualClock) -> None:
        rows = ProcessStore(store.driver, clock)
        assert [await rows.add(process(clock, f"p{n}"), 2) for n in range(3)] == [True, True, False]
        assert await rows.add(process(clock, "q", agent="other"), 2)
        await rows.end("p0", ProcessEnd("exited", 0))
        assert await rows.add(process(clock, "p3"), 2)
        assert [row.id for row in await rows.search(agent="main", running=True)] == ["p3", "p1"]
        assert [row.id for row in await rows.search(agent="main", limit=1)] == ["p3"]
        assert len(await rows.search()) == 4

    async def test_a_process_ends_once(self, store: Store, clock: ManualClock) -> None:
        rows = ProcessStore(store.driver, clock)
        await rows.add(process(clock, "p1"), 5)
        await clock.advance(9)
        ends = [rows.end("p1", ProcessEnd("exited", n, "done")) for n in range(RACERS)]
        (first,) = [end for end in await asyncio.gather(*ends) if end is not None]
        assert first == await rows.get("p1")
        assert (first.state, first.reason, first.ended_at) == ("exited", "done", clock.now())
        assert first.exit_code in range(RACERS)

    async def test_an_end_is_reported_until_it_is_acknowledged(self, store: Store, clock: ManualClock) -> None:
        """A crash between the end of a process and its report must not lose the report."""
        rows = ProcessStore(store.driver, clock)
        for name in ("p1", "p2", "p3"):
            await rows.add(process(clock, name), 5)
        await rows.end("p2", ProcessEnd("lost"))
        await clock.advance(1)
        await rows.end("p1", ProcessEnd("exited", 1))
        assert [row.id for row in await rows.unreported()] == ["p2", "p1"]
        await rows.mark_reported("p2")
        assert [row.id for row in await rows.unreported()] == ["p1"]

    async def test_a_running_process_can_be_asked_to_end(self, store: Store, clock: ManualClock) -> None:
        rows = ProcessStore(store.driver, clock)
        await rows.add(process(clock, "p1"), 5)
        await clock.advance(3)
        assert await rows.beat("somebody else") == []
        assert await rows.kill("p1", "owner")
        (mine,) = await rows.beat("host 1 2 3")
        assert (mine.killed_by, mine.seen_at) == ("owner", clock.now())
        await rows.end("p1", ProcessEnd("killed"))
        assert not await rows.kill("p1", "owner")
        assert await rows.beat("host 1 2 3") == []

    async def test_old_rows_are_deleted_once_they_were_reported(self, store: Store, clock: ManualClock) -> None:
        rows = ProcessStore(store.driver, clock)
        for name in ("p1", "p2", "p3"):
            await rows.add(process(clock, name), 5)
        for name in ("p1", "p2"):
            await rows.end(name, ProcessEnd("exited", 0))
        await rows.mark_reported("p1")
        assert await rows.forget(clock.now()) == []
        removed = await rows.forget(clock.now() + timedelta(seconds=1))
        assert [row.id for row in removed] == ["p1"]
        assert {row.id for row in await rows.search()} == {"p2", "p3"}

    async def test_depth_counts_the_hooks_that_led_to_a_turn(self, store: Store, clock: ManualClock) -> None:
        rows = ProcessStore(store.driver, clock)
        lease = await opened(store)
        assert await rows.depth(THREAD, TurnId("T1")) == 0
        await rows.add(process(clock, "p1", depth=1), 5)
        await closed(store, lease)
        key = "process:p1:exit"
        prompt = Prompt(
            THREAD, key, "it ended", Author("u", trusted=True), clock.now(), origin="trigger", message_id=key
        )
        await store.inbox.accept(prompt, 5)
        said = UserSaid(prompt.text, prompt.author, message_id=key, origin="trigger")
        begun = Commit(TurnId("T2"), (TurnStarted("main", "demo"), said))
        await store.journal.open_turn(await leased(store), prompt, begun)
        assert await rows.depth(THREAD, TurnId("T2")) == 2
        assert await rows.depth(ThreadId("web:lobby:none"), TurnId("T9")) == 0
