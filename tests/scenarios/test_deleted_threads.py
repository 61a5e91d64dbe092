"""Permanently deleted threads: the data that is deleted, the data that is kept, and later messages."""

from pathlib import Path

import pytest
from tests.scenarios.kit import calls

from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.errors import Conflict
from shoal.kernel.events import TurnFinished
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.records import DeletedThread
from shoal.kernel.traits import Traits
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply, Seen, Step
from shoal.testing.scenario import World, scenario
from shoal.tools.executor import LiveToolServices
from shoal.tools.functions import tool
from shoal.tools.storage import delete_thread

REPORT = "".join(f"row {number}: hay\n" for number in range(1000))


@tool(Traits(origin="own"))
async def report() -> str:
    """Return a long report."""
    return REPORT


def reporter(seen: Seen) -> Step | str:
    return calls("report") if seen.rounds == 0 else f"{sum(message.role == 'user' for message in seen.messages)} said"


async def delete(world: World, thread: ThreadId) -> DeletedThread:
    app = world.app
    return await delete_thread(
        app[Store], app[Home], app[LiveToolServices].artifacts, app[Folders], thread, "web:owner"
    )


async def test_a_deleted_thread_leaves_no_messages_or_files(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=reporter), tools=[report]) as world:
        bob, home = world.person("bob", "2"), world.app[Home]
        for person in (world.ada, bob):
            await person.says("the treasure is under the pier")
            await person.sees("1 said")
        saved = await world.app[ConversationSnapshots].save(world.ada.thread, "the pier")
        (kept,) = await world.app[Store].artifacts.of_thread(world.ada.thread)
        (home.scratch(world.ada.thread) / "deep").mkdir(parents=True)
        await delete(world, world.ada.thread)
        assert not home.thread(world.ada.thread).exists()
        assert not (home.agent("main") / "sessions" / f"{saved.id}.json").exists()
        assert await world.app[ConversationSnapshots].history(bob.thread) == []
        assert world.app[LiveToolServices].artifacts.has(kept.digest), "bob's thread keeps the same result"
        await delete(world, bob.thread)
        assert not world.app[LiveToolServices].artifacts.has(kept.digest)
        assert await world.app[Store].search.messages("treasure") == []
        assert await world.app[Store].journal.threads() == []


async def test_a_message_after_deletion_starts_an_empty_conversation(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=reporter), tools=[report]) as world:
        await world.ada.says("one")
        await world.ada.sees("1 said")
        await world.ada.says("two")
        await world.ada.sees("2 said")
        await delete(world, world.ada.thread)
        await world.ada.says("three")
        await world.happens(world.ada.thread, "turn_finished")
        events = await world.journal()
        assert events[0].seq == 1
        assert [event.data.reply for event in events if isinstance(event.data, TurnFinished)] == ["1 said"]
        folder = world.app[Home].thread(world.ada.thread)
    log = (folder / "log.jsonl").read_text()
    assert "three" in log
    assert "two" not in log


async def test_deleting_a_busy_thread_is_refused_and_changes_no_file(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel("first", Reply("second", gate=gate))) as world:
        await world.ada.says("one")
        await world.ada.sees("first")
        note = world.app[Home].scratch(world.ada.thread) / "note"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text("mine")
        await world.ada.says("two")
        await gate.reached.wait()
        with pytest.raises(
            Conflict, match=r"^(“.+”|The thread) is running or has messages waiting\. Stop it, then delete the thread"
        ):
            await delete(world, world.ada.thread)
        gate.open()
        await world.ada.sees("second")
        assert note.read_text() == "mine"
