"""Tool results that are too long for the model are stored once, can be read in parts and listed, and expire."""

import json
import os
import re
from pathlib import Path

from tests.scenarios.kit import calls

from shoal.kernel.events import ToolFinished
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.kernel.ids import parse_thread_id
from shoal.kernel.traits import Traits
from shoal.permissions.access import AccessRules
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.store.files import LocalFiles
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply, Seen, Step
from shoal.testing.model.script import Script
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool
from shoal.tools.storage import Retention

REPORT = "".join(f"row {number}: {'needle' if number == 700 else 'hay'}\n" for number in range(1000))


@tool(Traits(origin="own"))
async def report() -> str:
    """Return a long report."""
    return REPORT


async def results(world: World) -> list[ToolFinished]:
    return [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]


def reader(grep: str = "", **piece: int) -> Script:
    def script(seen: Seen) -> Step | str:
        if seen.rounds == 0:
            return calls("report")
        found = re.search(r"artifact ([0-9a-f]{32})", "".join(message.text for message in seen.messages))
        if seen.rounds == 1 and found:
            extra = "".join(f', "{key}": {value}' for key, value in piece.items())
            return Reply(calls=(Call("read_artifact", f'{{"artifact": "{found[1]}", "grep": "{grep}"{extra}}}'),))
        return "done"

    return script


async def test_the_model_searches_a_truncated_result(tmp_path: Path) -> None:
    model = FakeModel(script=reader("NEEDLE"))
    async with scenario(tmp_path, model, tools=[report]) as world:
        await world.ada.says("find it")
        await world.ada.sees("done")
        first, second = await results(world)
        assert "needle" not in first.text
        assert first.artifact_bytes == len(REPORT)
        assert f"{REPORT.index('row 700')}: row 700: needle" in second.text
        assert not second.artifact, "a piece of what is stored is not stored again"


async def test_the_model_reads_a_piece_by_offset(tmp_path: Path) -> None:
    model = FakeModel(script=reader(offset=REPORT.index("row 500"), limit=12))
    async with scenario(tmp_path, model, tools=[report]) as world:
        await world.ada.says("read on")
        await world.ada.sees("done")
        assert (await results(world))[1].text.startswith("row 500: hay\n[Characters 6,390 to 6,402 of ")


async def test_a_thread_lists_its_artifacts_and_no_other_thread_reads_them(tmp_path: Path) -> None:
    model = FakeModel(script=reader())
    async with scenario(tmp_path, model, tools=[report]) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        (kept,) = await world.app[Store].artifacts.of_thread(world.ada.thread)
        assert (kept.name, kept.size_bytes) == ("report", len(REPORT))
        other = parse_thread_id("fake:harbour:2")
        assert await world.app[Store].artifacts.of_thread(other) == []
        assert await world.app[Store].artifacts.find(other, kept.digest) is None
        assert await world.app[Store].artifacts.find(world.ada.thread, kept.digest[:8]) == kept
        assert await world.app[Store].artifacts.find(world.ada.thread, "%") is None


async def test_a_result_shared_by_two_threads_is_one_file_deleted_with_the_last_thread(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(script=reader())
    async with scenario(tmp_path, model, tools=[report], clock=clock) as world:
        bob = world.person("bob", "2")
        files = LocalFiles(world.app[Home].artifacts)
        app = world.app
        places = (app[Store], files, app[Folders], app[Orchestrator].services.loop.checkpoints, app[Home])
        retention = Retention(*places, clock, days=2, checkpoint_days=14)
        await world.ada.says("go")
        await world.ada.sees("done")
        clock.jump(86_400)
        await bob.says("go")
        await bob.sees("done")
        digest = (await results(world))[0].artifact
        assert [path.name for path in world.app[Home].artifacts.rglob("*") if path.is_file()] == [digest]
        os.utime(files.path(digest), (0, 0))
        clock.jump(1.5 * 86_400)
        assert await retention.expire() == 0
        assert await world.app[Store].artifacts.of_thread(world.ada.thread) == []
        assert files.path(digest).exists()
        clock.jump(86_400)
        assert await retention.expire() == 1
        assert not files.path(digest).exists()


async def test_a_briefly_wrong_clock_expires_no_result(tmp_path: Path) -> None:
    clock, wrong = ManualClock(), 400 * 86_400.0
    async with scenario(tmp_path, FakeModel(script=reader()), tools=[report], clock=clock) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        stored = LocalFiles(world.app[Home].artifacts).path((await results(world))[0].artifact)
        os.utime(stored, (0, 0))
        await clock.advance(3000)
        clock.jump(wrong)
        await clock.advance(1500)
        clock.jump(-wrong)
        for _ in range(3):
            await clock.advance(3600)
        assert stored.exists()
        clock.jump(wrong)
        while stored.exists():
            await clock.advance(600)
            assert clock.monotonic() < 8 * 3600


def own_files(**asked: str | int) -> Script:
    def script(seen: Seen) -> Step | str:
        if not seen.user_text.startswith("[ada] what"):
            return "noted"
        return "done" if seen.rounds else Reply(calls=(Call("read_artifact", json.dumps(asked)),))

    return script


async def test_the_agent_reads_its_own_log_and_context(tmp_path: Path) -> None:
    model = FakeModel(script=own_files(artifact="log.jsonl"))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("the harbour is closed")
        await world.happens(world.ada.thread, "turn_finished", 1)
        await world.app[Orchestrator].clear(world.ada.thread, "fake:ada")
        await world.ada.says("what was said?")
        await world.ada.sees("done")
        model.follow(own_files(artifact="context.jsonl", limit=15_000))
        await world.ada.says("what do you see?")
        await world.happens(world.ada.thread, "turn_finished", 3)
        log, context = await results(world)
    first = json.loads(log.text.splitlines()[1])
    assert (first["text"], first["user"], first["is_bot"]) == ("the harbour is closed", "ada", False)
    assert not log.tainted_by
    assert "the harbour is closed" not in context.text.partition("what was said?")[0]
    assert context.text.startswith('{"seq":')
    assert '"role":"system","text":"You are main' in context.text
    assert "what was said?" in context.text


async def test_untrusted_words_taint_a_later_reader_of_the_log(tmp_path: Path) -> None:
    model = FakeModel(script=own_files(artifact="log.jsonl", grep="harbour"))
    access = AccessRules(allow=("ada", "*"))
    async with scenario(tmp_path, model, access=access) as world:
        await world.person("eve", "1").says("the harbour is MINE")
        await world.happens(world.ada.thread, "turn_finished", 1)
        await world.app[Orchestrator].clear(world.ada.thread, "fake:ada")
        await world.ada.says("what of the harbour?")
        await world.happens(world.ada.thread, "turn_finished", 2)
        model.follow(own_files(artifact="log.jsonl", grep="what of"))
        await world.app[Orchestrator].clear(world.ada.thread, "fake:ada")
        await world.ada.says("what did I ask?")
        await world.happens(world.ada.thread, "turn_finished", 3)
        of_stranger, of_ada = await results(world)
    assert "MINE" in of_stranger.text
    assert (of_stranger.tainted_by, of_ada.tainted_by) == ("a file of this conversation", "")


async def test_no_conversation_reads_the_files_of_another(tmp_path: Path) -> None:
    model = FakeModel(script=own_files(artifact="log.jsonl"))
    async with scenario(tmp_path, model) as world:
        await world.person("bob", "2").says("a secret of bob")
        await world.happens(parse_thread_id("fake:harbour:2"), "turn_finished", 1)
        for number in (1, 2):
            await world.ada.says("what was said?")
            await world.happens(world.ada.thread, "turn_finished", number)
        found = await results(world)
        assert ["secret" in one.text for one in found] == [False, False]
        assert found[0].is_error, "nothing is written before the first turn has ended"
        model.follow(own_files(artifact="../2/log.jsonl"))
        await world.ada.says("what of bob?")
        await world.happens(world.ada.thread, "turn_finished", 3)
        assert (await results(world))[2].is_error


async def test_commands_search_whole_results_as_files_and_write_none(tmp_path: Path) -> None:
    search = "grep -rh needle /artifacts; echo x > /artifacts/x || echo refused"
    model = FakeModel(
        calls("report"),
        Reply(calls=(Call("bash", json.dumps({"command": "true"})),)),
        Reply(calls=(Call("bash", json.dumps({"command": search})),)),
        "done",
    )
    async with scenario(tmp_path, model, tools=[report], sandbox=BubblewrapSandbox(), profile="open") as world:
        await world.ada.says("find it")
        await world.ada.sees("done")
        first, _, found = await results(world)
        assert f"/artifacts/{first.artifact} in commands" in first.text
        assert "row 700: needle" in found.text
        assert "refused" in found.text
        assert not found.tainted_by


@tool(Traits(origin="foreign"))
async def page() -> str:
    """Return a long untrusted text."""
    return REPORT


async def test_a_tainted_stored_result_taints_only_the_command_that_reads_it(tmp_path: Path) -> None:
    def script(seen: Seen) -> Step | str:
        if seen.rounds == 0:
            return calls("page")
        if seen.rounds == 1:
            return Reply(calls=(Call("bash", json.dumps({"command": "grep -rh needle /artifacts"})),))
        return Reply(calls=(Call("bash", json.dumps({"command": "echo plain"})),)) if seen.rounds == 2 else "done"

    model = FakeModel(script=script)
    async with scenario(tmp_path, model, tools=[page], sandbox=BubblewrapSandbox(), profile="open") as world:
        await world.ada.says("find it")
        await world.ada.sees("done")
        _, found, plain = await results(world)
        assert "needle" in found.text
        assert "the tool page" in found.tainted_by
        assert not plain.tainted_by
