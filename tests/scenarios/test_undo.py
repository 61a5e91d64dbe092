"""Undo: file changes of turns are shown and reverted, and nobody's work is lost."""

import asyncio
import json
import os
import random
import re
import shutil
import stat
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scenarios.delegation import cast, children_of, delegates
from tests.scenarios.undo_life import tree_of

from shoal.features.undo.records import UndoResult
from shoal.features.undo.store import UndoStore
from shoal.features.undo.undo import Undo
from shoal.kernel.checkpoints import CheckpointsSettings
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, FilesDiffer, Forbidden, InvalidInput, NotFound
from shoal.kernel.events import Checkpointed, FilesChanged, FilesRestored, ToolStarted
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.permissions import Asker
from shoal.permissions.access import AccessRules
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.executor import LiveToolServices
from shoal.tools.storage import Retention, delete_thread
from shoal.tools.tainted_files import MarkedFiles

OWNER = Asker(trust="owner", user="owner")


def calls(*each: tuple[str, dict[str, str]]) -> Reply:
    return Reply(calls=tuple(Call(name, json.dumps(given)) for name, given in each))


def writes(path: str, content: str) -> Reply:
    return calls(("write", {"path": path, "content": content}))


def runs(command: str) -> Reply:
    return calls(("bash", {"command": command}))


def workspace(world: World) -> Path:
    return world.app[Home].agent("main") / "workspace"


async def turn(world: World, text: str = "go") -> str:
    done = (await world.types()).count("turn_finished")
    await world.ada.says(text)
    return (await world.happens(world.ada.thread, "turn_finished", done + 1)).turn


async def test_a_turn_is_undone_and_redone(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "one\n"), "made", writes("a.txt", "two\n"), "changed")
    async with scenario(tmp_path, model) as world:
        await turn(world)
        second = await turn(world)
        undo, file = world.app[Undo], workspace(world) / "a.txt"
        shown = await undo.show(world.ada.thread, second)
        assert [(one.path, one.change, one.diff.splitlines()[1:]) for one in shown.files] == [
            ("a.txt", "changed", ["-one", "+two"])
        ]
        done = await undo.undo(world.ada.thread, second, world.ada.asker)
        assert (file.read_text(), done.files, done.left) == ("one\n", ("a.txt",), ())
        assert (await undo.show(world.ada.thread, second)).undone_by == done.id
        back = await undo.undo(world.ada.thread, done.id, world.ada.asker)
        assert file.read_text() == "two\n"
        assert (await undo.show(world.ada.thread, second)).state == "done"
        assert (await undo.show(world.ada.thread, done.id)).undone_by == back.id
        await undo.undo(world.ada.thread, second, world.ada.asker)
        assert file.read_text() == "one\n"


async def test_an_undo_of_a_missing_turn_reports_the_number_of_turns(tmp_path: Path) -> None:
    model = FakeModel(writes("a", "1"), "one", writes("b", "2"), "two")
    async with scenario(tmp_path, model) as world:
        await turn(world)
        assert (await world.ada.asks("/undo 2")).startswith("Only one turn here has file changes")
        await turn(world)
        assert (await world.ada.asks("/undo 3")).startswith("Only 2 turns here have file changes")


async def test_undo_goes_back_turn_by_turn_despite_clock_changes(tmp_path: Path) -> None:
    gate, clock = Gate(), ManualClock()
    model = FakeModel(writes("a", "1"), Reply("one", gate=gate), writes("a", "2"), "two", writes("b", "3"), "three")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("first")
        await gate.reached.wait()
        clock.jump(3600)
        gate.open()
        await world.happens(world.ada.thread, "turn_finished")
        clock.jump(-1800)
        await turn(world)
        clock.jump(-7200)
        await turn(world)
        folder, seen = workspace(world), list[list[tuple[str, str]]]()
        for _ in range(3):
            seen.append([(name, text) for name, text, _ in tree_of(folder)])
            await world.app[Undo].undo(world.ada.thread, "last", world.ada.asker)
        assert seen == [[("a", "2"), ("b", "3")], [("a", "2")], [("a", "1")]]
        assert tree_of(folder) == []


async def test_an_undo_asks_about_the_file_of_another_turn_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    gate, clock = Gate(), ManualClock()
    model = cast(slow=[writes("a", "1"), Reply("made", gate=gate)], quick=[writes("b", "2"), "made"])
    async with scenario(tmp_path, model, clock=clock) as world:
        bob = world.person("bob", "2")
        await world.ada.says("slow")
        await gate.reached.wait()
        clock.jump(-3600)
        await bob.says("quick")
        await world.happens(bob.thread, "turn_finished")
        clock.jump(1800)
        gate.open()
        await world.happens(world.ada.thread, "turn_finished")
        with pytest.raises(FilesDiffer, match=r": b\. Keep"):
            await world.app[Undo].undo(world.ada.thread, "last", world.ada.asker)


async def test_a_turn_that_writes_nothing_has_no_checkpoint(tmp_path: Path) -> None:
    model = FakeModel(calls(("time", {}), ("list", {})), runs("ls -l"), "seen")
    async with scenario(tmp_path, model) as world:
        last = await turn(world)
        assert "checkpointed" not in await world.types()
        assert not (world.app[Home].data / "checkpoints").exists()
        with pytest.raises(NotFound, match="changed no files"):
            await world.app[Undo].show(world.ada.thread, last)


async def test_the_checkpoint_is_taken_before_the_first_writing_call(tmp_path: Path) -> None:
    model = FakeModel(calls(("list", {})), writes("a.txt", "1"), writes("b.txt", "2"), "done")
    async with scenario(tmp_path, model) as world:
        await turn(world)
        found = [event.data for event in await world.journal()]
        at = next(place for place, data in enumerate(found) if isinstance(data, Checkpointed))
        after = found[at + 1]
        assert isinstance(after, ToolStarted)
        assert after.name == "write"
        assert sum(isinstance(data, Checkpointed) for data in found) == 1
        ends = [data for data in found if isinstance(data, FilesChanged)]
        assert [data.changed for data in ends] == [2]


async def test_an_undo_asks_about_files_changed_since_the_turn(tmp_path: Path) -> None:
    model = FakeModel(runs("echo 1 > a.txt; echo 1 > b.txt"), "done")
    async with scenario(tmp_path, model) as world:
        only, undo, folder = await turn(world), world.app[Undo], workspace(world)
        (folder / "b.txt").write_text("mine")
        assert {one.path: one.since for one in (await undo.show(world.ada.thread, only)).files} == {
            "a.txt": "",
            "b.txt": "changed",
        }
        assert (await undo.show(world.ada.thread, only)).differ == 1
        with pytest.raises(FilesDiffer, match=r"b\.txt"):
            await undo.undo(world.ada.thread, only, world.ada.asker)
        assert (folder / "a.txt").exists(), "nothing is done before somebody has decided"
        done = await undo.undo(world.ada.thread, only, world.ada.asker, "keep")
        assert (done.files, (folder / "b.txt").read_text()) == (("a.txt",), "mine")
        await undo.undo(world.ada.thread, done.id, world.ada.asker)
        again = await undo.undo(world.ada.thread, only, world.ada.asker, "overwrite")
        assert not list(folder.iterdir())
        await undo.undo(world.ada.thread, again.id, world.ada.asker)
        assert (folder / "b.txt").read_text() == "mine", "what was overwritten comes back"


async def test_an_undo_asks_about_unlisted_files_changed_since_the_turn(tmp_path: Path) -> None:
    model = FakeModel(runs("for number in $(seq 300); do : > $number.txt; done"), "done")
    async with scenario(tmp_path, model) as world:
        only, undo = await turn(world), world.app[Undo]
        (workspace(world) / "99.txt").write_text("mine")
        shown = await undo.show(world.ada.thread, only)
        assert (shown.changed, "99.txt" in {one.path for one in shown.files}, shown.differ) == (300, False, 1)


async def test_an_undo_asks_about_files_written_by_two_concurrent_turns(tmp_path: Path) -> None:
    def answer(seen: object) -> Reply | str:
        text = seen.user_text  # type: ignore[attr-defined]
        who = "bob" if "bob" in text else "ada"
        if seen.rounds == 0:  # type: ignore[attr-defined]
            return runs(f"echo {who} > {who}.txt; echo {who} > both.txt")
        if who == "ada" and seen.rounds == 1:  # type: ignore[attr-defined]
            return calls(("wait", {}))
        return "done"

    from shoal.kernel.permissions import Action
    from shoal.kernel.ports import Invocation, ToolContext, ToolOutput
    from shoal.kernel.traits import Traits
    from shoal.tools.functions import Prepared, tool

    met = asyncio.Event()

    @tool(Traits(origin="own"), name="wait")
    def wait(context: ToolContext) -> Invocation:
        """Wait."""

        async def work() -> ToolOutput:
            await met.wait()
            return ToolOutput("waited")

        return Prepared((Action("tool:wait:"),), "wait", "", work)

    async with scenario(tmp_path, FakeModel(script=answer), tools=(wait,)) as world:
        bob = world.person("bob", "2")
        await world.ada.says("ada")
        await world.happens(world.ada.thread, "tool_started", 2)
        await bob.says("bob")
        await world.happens(bob.thread, "turn_finished")
        met.set()
        mine = (await world.happens(world.ada.thread, "turn_finished")).turn
        undo = world.app[Undo]
        assert {one.path: one.since for one in (await undo.show(world.ada.thread, mine)).files} == {
            "ada.txt": "",
            "bob.txt": "shared",
            "both.txt": "shared",
        }
        done = await undo.undo(world.ada.thread, mine, world.ada.asker, "keep")
        assert done.files == ("ada.txt",)


async def test_only_some_people_may_undo(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(writes("a.txt", "1"), "done")) as world:
        only, undo = await turn(world), world.app[Undo]
        for asker in (Asker(trust="trusted", user="eve", platform="fake"), Asker(trust="untrusted", user="ada")):
            with pytest.raises(Forbidden):
                await undo.undo(world.ada.thread, only, asker)
            with pytest.raises(Forbidden):
                await undo.show(world.ada.thread, only, asker)
        with pytest.raises(NotFound):
            await undo.undo(ThreadId("fake:harbour:9"), only, OWNER)
        done = await undo.undo(world.ada.thread, only, OWNER)
        with pytest.raises(Conflict, match="already been undone"):
            await undo.undo(world.ada.thread, only, OWNER)
        rows = await world.app[Store].audit.tail(100)
        told = [row.entry for row in rows if row.entry.kind == "undo"]
        assert [(one.turn, one.detail) for one in told] == [(only, "a.txt")]
        assert done.restored == 1


async def test_the_model_is_informed_with_the_next_message(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1"), "done", "and now?")
    async with scenario(tmp_path, model) as world:
        only = await turn(world)
        await world.app[Undo].undo(world.ada.thread, only, world.ada.asker)
        await turn(world, "what is there?")
        said = model.requests[-1].messages[-1].text
        assert said.startswith("[ada undid earlier changes to files and restored these workspace files: ")
        assert "a.txt" in said.splitlines()[0]


async def test_the_owner_undoes_another_persons_turn_in_a_chat(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1"), "done")
    async with scenario(tmp_path, model, access=AccessRules(owners=("ada",), allow=("bob", "eve"))) as world:
        bob, eve = (world.person(name, "quay") for name in ("bob", "eve"))
        await bob.says("go")
        done = await world.happens(bob.thread, "turn_finished")
        assert "Only the person who asked" in await eve.asks(f"/undo {done.turn}")
        assert "Restored 1 file." in await world.person("ada", "quay").asks(f"/undo {done.turn}")


async def test_a_turn_without_effective_changes_is_skipped_by_undo(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1"), "done", writes("a.txt", "1"), "again")
    async with scenario(tmp_path, model) as world:
        first = await turn(world)
        await turn(world)
        assert (await world.app[Undo].show(world.ada.thread, "last")).turn == first


async def test_a_self_edit_says_how_to_revert_it(tmp_path: Path) -> None:
    edit = ("set_persona", {"file": "SOUL.md", "text": "An old salt."})
    model = FakeModel(calls(("write", {"path": "a", "content": "a"}), edit), "done")
    async with scenario(tmp_path, model, profile="standard", changes=("instructions",)) as world:
        await world.ada.says("go")
        await world.ada.decides((await world.ada.is_asked()).id, allow=True)
        await world.happens(world.ada.thread, "turn_finished")
        assert "`set_persona` ran: SOUL.md. `/agent undo` reverses the change." in await world.ada.asks("/undo")


async def test_undo_is_available_as_a_command(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1\n"), "done")
    async with scenario(tmp_path, model) as world:
        only = await turn(world)
        shown = await world.ada.asks("/undo")
        assert "+1" in shown
        assert "/undo last" in shown
        assert only not in shown
        (workspace(world) / "a.txt").write_text("mine")
        assert f"/undo {only} overwrite" in await world.ada.asks(f"/undo {only}")
        assert "Restored 1 file." in await world.ada.asks(f"/undo {only} overwrite")
        assert not (workspace(world) / "a.txt").exists()
        assert "already been undone" in await world.ada.asks(f"/undo {only}")


async def test_irreversible_changes_are_listed(tmp_path: Path) -> None:
    model = FakeModel(
        calls(("message", {"text": "hello"})), runs("echo 1 > a.txt"), writes("/scratch/x.txt", "1"), "done"
    )
    async with scenario(tmp_path, model) as world:
        shown = await world.app[Undo].show(world.ada.thread, await turn(world))
        told = "\n".join(shown.beyond)
        assert "`message`" in told
        assert "A command ran" in told
        assert "/scratch/x.txt" in told
        assert shown.beyond[-1] == "Undo does not affect messages."


async def test_a_stopped_turn_can_be_undone(tmp_path: Path) -> None:
    model = FakeModel(runs("echo 1 > a.txt"), runs("sleep 60"))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await world.happens(world.ada.thread, "tool_started", 2)
        started = await world.happens(world.ada.thread, "turn_started")
        with pytest.raises(Conflict, match="still running"):
            await world.app[Undo].undo(world.ada.thread, started.turn, OWNER)
        await world.ada.stops()
        ended = await world.happens(world.ada.thread, "turn_finished")
        await world.app[Undo].undo(world.ada.thread, ended.turn, OWNER)
        assert not (workspace(world) / "a.txt").exists()


async def test_a_restored_file_keeps_its_taint(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "clean"), "done")
    async with scenario(tmp_path, model) as world:
        folder, marked = workspace(world), world.app[MarkedFiles]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.txt").write_text("from a page")
        await marked.note(folder, [folder / "a.txt"], "a page")
        only = await turn(world)
        await world.app[Undo].undo(world.ada.thread, only, OWNER)
        assert (folder / "a.txt").read_text() == "from a page"
        assert (await marked.sources([folder]))(folder / "a.txt") == "a page"
        event = (await world.journal())[-1].data
        assert isinstance(event, FilesRestored)
        assert event.tainted_by == "a page"


async def test_exceeded_bounds_are_reported(tmp_path: Path) -> None:
    settings = {"checkpoints": {"files_max": 3, "file_bytes_max": 4, "bytes_max": 6}}
    model = FakeModel(runs("printf 12345 > big; printf 123 > a; printf 1234 > b; mkdir -p d/e; echo > d/e/f"), "done")
    async with scenario(tmp_path, model, settings=settings) as world:
        shown = await world.app[Undo].show(world.ada.thread, await turn(world))
        notes = "\n".join(shown.notes)
        assert "larger than 4 bytes" in notes
        assert "beyond the 6 bytes" in notes
        assert "more than 3 files and folders" in notes


async def test_checkpoints_can_be_disabled(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1"), "done")
    async with scenario(tmp_path, model, settings={"checkpoints": {"days": 0}}) as world:
        await turn(world)
        assert "checkpointed" not in await world.types()


async def test_a_failed_checkpoint_is_reported_and_the_turn_continues(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1"), "done")
    async with scenario(tmp_path, model) as world:
        (world.app[Home].data / "checkpoints").write_text("in the way")
        only = await turn(world)
        assert (workspace(world) / "a.txt").read_text() == "1"
        (before,) = [event.data for event in await world.journal() if isinstance(event.data, Checkpointed)]
        assert "could not read or store" in before.notes[0]
        with pytest.raises(NotFound, match="could not read or store"):
            await world.app[Undo].show(world.ada.thread, only)
        os.unlink(world.app[Home].data / "checkpoints")


async def test_a_disk_error_during_an_undo_is_reported_as_such(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(writes("a.txt", "1"), "done")) as world:
        only, thread, undo = await turn(world), world.ada.thread, world.app[Undo]
        (kept,) = (path for path in (world.app[Home].data / "checkpoints").iterdir() if path.is_dir())
        away = kept.rename(tmp_path / "away")
        kept.write_text("in the way")
        for asked in (undo.undo(thread, only, OWNER), undo.undo(thread, "last", OWNER), undo.show(thread, only)):
            with pytest.raises(Conflict, match="the workspace: Not a directory"):
                await asked
        kept.unlink()
        away.rename(kept)
        assert (await undo.undo(thread, "last", OWNER)).restored == 1


async def test_an_interrupted_undo_is_finished_by_the_next_start(tmp_path: Path) -> None:
    model = FakeModel(runs("echo 1 > a.txt; echo 1 > b.txt"), "done")
    async with scenario(tmp_path, model) as world:
        only, store = await turn(world), world.app[Store]
        row = await store.checkpoints.get(only)
        assert row is not None
        await UndoStore(store.driver, world.app[Clock]).begin("U1", row, "ada", row.after, row.before)
        (workspace(world) / "a.txt").unlink()  # the undo was interrupted at this point
    async with scenario(tmp_path, FakeModel()) as world:
        assert not list(workspace(world).iterdir())
        event = (await world.journal())[-1].data
        assert isinstance(event, FilesRestored)
        assert (event.id, event.files, event.left) == ("U1", ("a.txt", "b.txt"), 0)
        assert await UndoStore(world.app[Store].driver, world.app[Clock]).running() == []


async def test_an_undo_waits_for_the_machine_that_has_its_files(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(writes("a.txt", "1"), "done")) as world:
        only, store = await turn(world), world.app[Store]
        row = await store.checkpoints.get(only)
        assert row is not None
        await UndoStore(store.driver, world.app[Clock]).begin("U1", row, "ada", row.after, row.before)
    there, away = tmp_path / "data" / "checkpoints", tmp_path / "away"
    there.rename(away)
    async with scenario(tmp_path, FakeModel()) as world:
        assert (workspace(world) / "a.txt").exists()
        assert "files_restored" not in await world.types()
        assert [one.id for one in await UndoStore(world.app[Store].driver, world.app[Clock]).running()] == ["U1"]
    shutil.rmtree(there)
    away.rename(there)
    async with scenario(tmp_path, FakeModel()) as world:
        assert not (workspace(world) / "a.txt").exists()
        assert (await world.types())[-1] == "files_restored"


async def test_an_undo_without_its_stored_content_is_reported(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "old"), "done", writes("a.txt", "new"), "done", "nothing")
    async with scenario(tmp_path, model) as world:
        first, second, idle = await turn(world), await turn(world), await turn(world)
        undo, rows = world.app[Undo], world.app[Store].checkpoints
        mine = await undo.undo(world.ada.thread, second, OWNER)
        assert [one async for one in rows.forget(world.app[Clock].now() + timedelta(seconds=1))]
        for gone in (first, second, mine.id):
            with pytest.raises(NotFound, match=r"no longer stored.*days sets how long"):
                await undo.undo(world.ada.thread, gone, OWNER)
        with pytest.raises(NotFound, match="has changed no files"):
            await undo.undo(world.ada.thread, idle, OWNER)
        assert (workspace(world) / "a.txt").read_text() == "old"


async def test_deleting_a_thread_deletes_its_checkpoints(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "hers alone"), "done", writes("b.txt", "his"), "done")
    async with scenario(tmp_path, model) as world:
        app, bob = world.app, world.person("bob", "2")
        await turn(world)
        await bob.says("go")
        his = (await world.happens(bob.thread, "turn_finished")).turn
        (workspace(world) / "a.txt").unlink()
        kept = sorted((tmp_path / "data" / "checkpoints").glob("*/??/*"))
        for path in kept:
            os.utime(path, (0, 0))  # old enough to be deleted, because no new checkpoint can refer to it
        await delete_thread(
            app[Store], app[Home], app[LiveToolServices].artifacts, app[Folders], world.ada.thread, "web:owner"
        )
        assert await app[Store].checkpoints.newest(world.ada.thread) == []
        settings = CheckpointsSettings()
        retention = Retention(
            app[Store],
            app[LiveToolServices].artifacts,
            app[Folders],
            app[Orchestrator].services.loop.checkpoints,
            app[Home],
            app[Clock],
            0,
            settings.days,
        )
        assert await retention.expire_checkpoints() > 0
        left = [path.read_bytes() for path in (tmp_path / "data" / "checkpoints").glob("*/??/*")]
        assert b"hers alone" in left, "his turn began with it"
        await app[Undo].undo(bob.thread, his, OWNER)
        assert not (workspace(world) / "b.txt").exists()
        await delete_thread(
            app[Store], app[Home], app[LiveToolServices].artifacts, app[Folders], bob.thread, "web:owner"
        )
        for path in (tmp_path / "data" / "checkpoints").glob("*/??/*"):
            os.utime(path, (0, 0))
        await retention.expire_checkpoints()
        assert not list((tmp_path / "data" / "checkpoints").glob("*/??/*"))


async def test_a_background_subagents_work_is_undone_in_the_conversation(tmp_path: Path) -> None:
    gate = Gate()
    slow = msgspec.structs.replace(writes("late.txt", "late"), gate=gate)
    model = cast(plan=[delegates("spawn", "slow"), "started", "I see"], slow=[slow, "wrote it"])
    async with scenario(tmp_path, model) as world:
        await turn(world, "plan it")
        await gate.reached.wait()
        gate.open()
        (child,) = await children_of(world)
        late, undo = (await world.happens(child, "turn_finished")).turn, world.app[Undo]
        shown = await world.ada.asks("/undo")
        assert "late.txt" in shown
        assert "Restored 1 file." in await world.ada.asks("/undo last")
        assert not (workspace(world) / "late.txt").exists()
        assert "files_restored" in await world.types(), "the conversation's model is to know"
        done = (await undo.show(world.ada.thread, late)).undone_by
        assert (await undo.undo(child, done, OWNER)).restored == 1


async def test_a_turn_during_a_background_subagent_is_undone_separately(tmp_path: Path) -> None:
    gate = Gate()
    model = cast(
        plan=[delegates("spawn", "slow"), "started"],
        slow=[writes("late.txt", "late"), Reply("wrote it", gate=gate)],
        mine=[writes("mine.txt", "1"), "done", "I see"],
    )
    async with scenario(tmp_path, model) as world:
        await turn(world, "plan it")
        await gate.reached.wait()
        mine = await turn(world, "mine")
        gate.open()
        (child,) = await children_of(world)
        late = (await world.happens(child, "turn_finished")).turn
        found = await world.app[Undo].undoable(world.ada.thread, 5)
        assert {row.id for row, _ in found} == {mine, late}


async def test_a_subagents_work_is_undone_with_its_parents_turn(tmp_path: Path) -> None:
    model = cast(
        plan=[writes("a.txt", "1"), delegates("subagent", "quick"), "done"], quick=[writes("b.txt", "2"), "ok"]
    )
    async with scenario(tmp_path, model) as world:
        only, undo = await turn(world, "plan it"), world.app[Undo]
        assert [(row.id, count) for row, count in await undo.undoable(world.ada.thread, 5)] == [(only, 2)]


async def test_a_turn_is_named_by_last_or_by_a_number(tmp_path: Path) -> None:
    model = FakeModel(writes("a.txt", "1"), "ok", writes("b.txt", "2"), "ok", writes("c.txt", "3"), "ok")
    async with scenario(tmp_path, model) as world:
        for _ in range(3):
            await turn(world)
        shown = await world.ada.asks("/undo")
        assert "Send `/undo last` to restore the files." in shown
        assert re.findall(r"`/undo (\d)` \S+ \S+ \S+, 1 file", shown) == ["2", "3"]
        assert "Restored 1 file." in await world.ada.asks("/undo 2")
        assert "Restored 1 file." in await world.ada.asks("/undo Last")
        assert [path.name for path in workspace(world).iterdir()] == ["a.txt"]
        assert "Only one turn here has file changes" in await world.ada.asks("/undo 2")
        (workspace(world) / "a.txt").unlink()
        assert "No turn here has file changes" in await world.ada.asks("/undo"), "all of it is as before already"


async def test_the_last_undo_is_reverted_without_its_id(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(writes("a.txt", "1"), "ok", writes("b.txt", "2"), "ok")) as world:
        for _ in range(2):
            await turn(world)
        assert "This conversation has no undo to reverse" in await world.ada.asks("/undo back")

        def files() -> list[str]:
            return sorted(path.name for path in workspace(world).iterdir())

        await world.ada.asks("/undo 2")
        assert "`/undo back` reverses this" in await world.ada.asks("/undo last")
        assert files() == []
        for expected in (["b.txt"], [], ["b.txt"]):  # each undo is itself the newest change, which the next one reverts
            await world.ada.asks("/undo Back")
            assert files() == expected


async def test_a_turn_stays_undone_when_another_undo_is_reverted(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(runs("echo 1 > a.txt; echo 1 > b.txt"), "done")) as world:
        only, undo, kept = await turn(world), world.app[Undo], workspace(world) / "b.txt"
        kept.write_text("mine")
        await world.ada.asks("/undo last keep")
        for expected in ("done", "undone") * 3:
            await world.ada.asks("/undo back")
            assert (await undo.show(world.ada.thread, only)).state == expected
        assert "No turn here has file changes" in await world.ada.asks("/undo last overwrite")
        back = (await undo.show(world.ada.thread, only)).undone_by
        assert (await undo.undo(world.ada.thread, back, world.ada.asker)).files == ("a.txt",)
        assert ((await undo.show(world.ada.thread, only)).state, kept.read_text()) == ("done", "mine")


async def test_a_late_undo_reports_that_it_was_already_undone(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(writes("a.txt", "1"), "done")) as world:
        only, undo = await turn(world), world.app[Undo]
        every = [undo.undo(world.ada.thread, only, OWNER) for _ in range(4)]
        found = await asyncio.gather(*every, return_exceptions=True)
        refused = [one for one in found if isinstance(one, Conflict)]
        assert len(refused) == 3
        assert all("already been undone" in str(one) for one in refused)


async def test_a_copy_names_the_original_for_undo(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(writes("a.txt", "1"), "done", writes("b.txt", "2"), "done")) as world:
        first, undo, forks = await turn(world), world.app[Undo], world.app[Forks]
        copy, second = ThreadId("fake:harbour:copy"), ThreadId("fake:harbour:second")
        await forks.fork(world.ada.thread, copy, "owner")
        await forks.fork(copy, second, "owner")
        for thread in (copy, second):
            for id in (first, "last", "back", "1"):
                with pytest.raises(
                    Conflict, match=rf"This conversation is a copy\. .* original conversation, `{world.ada.thread}`"
                ):
                    await undo.undo(thread, id, OWNER)
                with pytest.raises(Conflict, match="This conversation is a copy"):
                    await undo.show(thread, id)
        await world.chat.says("harbour", "copy", "go on", user="ada")
        own = (await world.happens(copy, "turn_finished", 2)).turn
        assert (await undo.undo(copy, "last", OWNER)).files == ("b.txt",)
        with pytest.raises(NotFound, match="has changed no files"):
            await undo.undo(second, own, OWNER)


# ---- content that is not stored ----

TINY: dict[str, object] = {"checkpoints": {"file_bytes_max": 100}}
BIG = "head -c 500 /dev/zero > big"


async def test_a_large_new_file_is_kept_and_reported(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(runs(f"{BIG}; echo s > small"), "done"), settings=TINY) as world:
        only, undo, folder = await turn(world), world.app[Undo], workspace(world)
        shown = await undo.show(world.ada.thread, only)
        assert {one.path: one.note for one in shown.files}[
            "big"
        ] == "It is too large to be stored, so the undo keeps it."
        done = await undo.undo(world.ada.thread, only, world.ada.asker)
        assert (done.files, done.not_restored, done.left[0].path) == (("small",), 1, "big")
        assert "so the undo keeps it" in done.left[0].why
        assert [path.name for path in folder.iterdir()] == ["big"]
        event = (await world.journal())[-1].data
        assert isinstance(event, FilesRestored)
        assert (event.left, event.stayed) == (1, ("big",))
        await turn(world, "and now?")
        assert "not restored: big" in world.model.requests[-1].messages[-1].text


async def test_a_renamed_large_file_keeps_its_new_name(tmp_path: Path) -> None:
    model = FakeModel(runs(BIG), "done", runs("mv big moved; echo q > small"), "done")
    async with scenario(tmp_path, model, settings=TINY) as world:
        await turn(world)
        answer = await world.ada.asks(f"/undo {await turn(world)}")
        assert "Restored 1 file." in answer
        assert "`big` was not restored. Its old content is too large to be stored" in answer
        assert "`moved` was not restored. It is too large to be stored, so the undo keeps it." in answer
        assert (workspace(world) / "moved").stat().st_size == 500


@pytest.mark.parametrize("by", ["turn", "person"])
async def test_a_file_too_large_to_store_is_never_overwritten(tmp_path: Path, by: str) -> None:
    model = FakeModel(runs("echo s > f"), "done", runs("printf '%500s' x > f"), "done")
    async with scenario(tmp_path, model, settings=TINY) as world:
        first, file = await turn(world), workspace(world) / "f"
        if by == "turn":
            first = await turn(world)
        else:
            file.write_text("x" * 500)
        with pytest.raises(InvalidInput, match=r"Nothing to restore\. f: It is too large to be stored"):
            await world.app[Undo].undo(world.ada.thread, first, OWNER, "overwrite")
        assert file.stat().st_size == 500


async def test_content_that_a_turn_did_not_store_is_reported(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(runs(f"{BIG}; echo s > small"), "done"), settings=TINY) as world:
        only = await turn(world)
        (workspace(world) / "big").unlink()
        shown = await world.app[Undo].show(world.ada.thread, only)
        assert "larger than 100 bytes" in shown.notes[0]


async def test_files_kept_because_of_later_changes_are_reported(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(runs("echo 1 > a; echo 1 > b"), "done")) as world:
        only, undo = await turn(world), world.app[Undo]
        (workspace(world) / "b").write_text("mine")
        with pytest.raises(
            FilesDiffer, match=r"1 file has other changes too: b\. Keep or overwrite the other changes\?"
        ):
            await undo.undo(world.ada.thread, only, OWNER)
        done = await undo.undo(world.ada.thread, only, OWNER, "keep")
        assert [(one.path, one.why) for one in done.left] == [("b", "It was changed since.")]


async def test_a_folder_that_replaced_a_file_keeps_later_content(tmp_path: Path) -> None:
    async with scenario(
        tmp_path, FakeModel(runs("echo 1 > d"), "ok", runs("rm d; mkdir d; echo 2 > d/a"), "ok")
    ) as world:
        await turn(world)
        last, undo, folder = await turn(world), world.app[Undo], workspace(world)
        (folder / "d" / "mine").write_text("mine")
        done = await undo.undo(world.ada.thread, last, OWNER, "keep")
        assert (done.files, [one.path for one in done.left]) == (("d/a",), ["d"])
        assert (folder / "d" / "mine").read_text() == "mine"


async def test_permissions_are_restored_with_their_special_bits(tmp_path: Path) -> None:
    model = FakeModel(runs("echo 1 > s; chmod 4755 s; mkdir d; chmod 3777 d"), "ok", runs("rm -r s d"), "ok")
    async with scenario(tmp_path, model) as world:
        await turn(world)
        await world.app[Undo].undo(world.ada.thread, await turn(world), OWNER)
        modes = [stat.S_IMODE((workspace(world) / name).stat().st_mode) for name in ("s", "d")]
        assert modes == [0o4755, 0o3777]


def shuffled(drawn: random.Random, root: Path) -> str:
    """Return commands that change files at random. Each command writes different content."""
    names, lines = ("a", "b", "big", "d", "d/a", "d/e", "d/e/b", "new/deep/x"), list[str]()
    for _ in range(drawn.randint(1, 6)):
        name, other = drawn.choice(names), drawn.choice(names)
        size = drawn.choice([1, 20, 39, 41, 90])
        match drawn.randrange(6):
            case 0 | 1:
                lines.append(f"mkdir -p $(dirname {name}); printf '%{size}s' {drawn.randrange(10**6)} > {name}")
            case 2:
                lines.append(f"rm -rf {name}")
            case 3:
                lines.append(f"mv -T {name} {other}")
            case 4:
                lines.append(f"mkdir -p {name}")
            case _:
                lines.append(f"chmod {drawn.choice(['600', '755', '4711'])} {name}")
    return f"cd {root}; {{ {'; '.join(lines)}; }} 2> /dev/null; true"


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
@hypothesis_settings(max_examples=25, deadline=None)
def test_no_content_is_ever_lost_to_an_undo(seed: int) -> None:
    drawn = random.Random(seed)

    async def drive(root: Path) -> None:
        bounds = {
            "file_bytes_max": 40,
            "bytes_max": drawn.choice([60, 150, 10_000]),
            "files_max": drawn.choice([5, 99]),
        }
        sees_all = bounds["files_max"] > 8  # there are eight names. Below that limit, Shoal reports skipped files
        model = FakeModel(script=lambda seen: "done" if seen.rounds else runs(commands))
        async with scenario(root, model, settings={"checkpoints": bounds}) as world:
            folder, undo, turns = workspace(world), world.app[Undo], list[str]()

            def contents(*below: Path) -> set[bytes]:
                return {path.read_bytes() for place in below for path in place.rglob("*") if path.is_file()}

            async def undone(id: str) -> UndoResult | None:
                there, before = contents(folder), tree_of(folder)
                try:
                    result = await undo.undo(world.ada.thread, id, OWNER, drawn.choice(["keep", "overwrite"]))
                except (InvalidInput, NotFound):
                    assert tree_of(folder) == before, "an undo that is refused changes nothing"
                    return None
                assert there <= contents(folder, world.app[Home].data / "checkpoints")
                return result

            for _ in range(drawn.randint(1, 4)):
                commands = shuffled(drawn, folder)
                start = tree_of(folder)
                turns.append(await turn(world))
                if drawn.random() < 0.3:
                    await asyncio.to_thread(subprocess.run, ["bash", "-c", shuffled(drawn, folder)], check=True)
                elif drawn.random() < 0.3:
                    result = await undone(turns.pop())
                    if result is not None and not result.not_restored and sees_all:
                        assert tree_of(folder) == start
            for id in drawn.sample(turns, len(turns)):
                former = tree_of(folder)
                first = await undone(id)
                second = await undone(first.id) if first is not None else None
                if second is not None and not second.not_restored and sees_all:
                    assert tree_of(folder) == former

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(drive(Path(folder)))
