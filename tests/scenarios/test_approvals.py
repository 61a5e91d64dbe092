"""Approvals: only the approved action runs, and it runs once, even after a restart."""

import json
from itertools import product
from pathlib import Path

import pytest
from tests.scenarios.kit import calls, in_time

from shoal.agents.registry import AgentRegistry
from shoal.kernel.errors import Conflict, Gone, NotFound
from shoal.kernel.events import ApprovalRequested, ApprovalSettled, ToolFinished
from shoal.kernel.ids import ApprovalId
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.tools.executor import VERDICTS


def bash(command: str) -> Reply:
    return Reply(calls=(Call("bash", f'{{"command": "{command}"}}'),))


def made(world: World, name: str) -> Path:
    return world.app[AgentRegistry].spec("main").workspace / name


async def results(world: World) -> list[ToolFinished]:
    return [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]


async def test_an_allowed_call_runs_once_and_the_turn_continues(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("echo x >> log"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        assert approval.shown == "echo x >> log"
        assert not made(world, "log").exists()
        card = await world.ada.sees("echo x >> log")
        assert [button.value.split(":")[0] for button in card.buttons] == ["allow", "thread", "deny"]
        assert await world.ada.decides(approval.id, allow=True) == "allow"
        await world.ada.sees("done")
        assert made(world, "log").read_text() == "x\n"
        found = await world.app[Store].approvals.get(approval.id)
        assert found is not None
        assert found.state == "used"


async def test_a_denied_call_never_reaches_the_sandbox(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "understood"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=False)
        await world.ada.sees("understood")
        assert not made(world, "made").exists()
        (result,) = await results(world)
        assert "denied" in result.text


async def test_denied_actions_never_ask(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "locked out"), profile="locked") as world:
        await world.ada.says("go")
        await world.ada.sees("locked out")
        assert not made(world, "made").exists()
        assert "approval_requested" not in await world.types()
        assert "bash" not in {spec.name for spec in world.model.requests[0].tools}


async def test_an_approval_survives_a_restart(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("echo x >> log")), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
    async with scenario(tmp_path, FakeModel("after the restart"), profile="standard") as world:
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("after the restart")
        assert made(world, "log").read_text() == "x\n"


async def test_the_first_click_wins(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=False)
        with pytest.raises(Conflict, match="it was denied"):
            await world.ada.decides(approval.id, allow=True)
        with pytest.raises(NotFound):
            await world.ada.decides(ApprovalId("none"), allow=True)


async def test_an_approval_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(bash("touch made"), "nobody was there")
    async with scenario(tmp_path, model, profile="standard", clock=clock) as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await clock.advance(3700)
        await in_time(clock, world.ada.sees("nobody was there"))
        with pytest.raises(Gone):
            await world.ada.decides(approval.id, allow=True)
        assert not made(world, "made").exists()
        assert [result.text for result in await results(world)] == [VERDICTS["expired"]]
        assert (await world.types()).count("approval_requested") == 1


async def test_a_thread_approval_covers_only_the_same_call(tmp_path: Path) -> None:
    model = FakeModel(bash("echo x >> log"), bash("echo x >> log"), bash("echo y >> log"), "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True, whole_thread=True)
        await world.happens(world.ada.thread, "approval_requested", 2)
        assert made(world, "log").read_text() == "x\nx\n"
        asked = [event.data for event in await world.journal() if isinstance(event.data, ApprovalRequested)]
        assert [request.shown for request in asked] == ["echo x >> log", "echo y >> log"]


async def test_content_changed_since_the_approval_does_not_run(tmp_path: Path) -> None:
    edit = '{"path": "note.txt", "old_string": "one", "new_string": "two"}'
    model = FakeModel(calls("edit", arguments=edit), "it had changed")
    settings = {
        "permissions": {
            "default_profile": "careful",
            "profiles": {"careful": {"ask": ["tool:.*"]}},
        }
    }
    async with scenario(tmp_path, model, settings=settings) as world:
        made(world, "note.txt").write_text("one")
        await world.ada.says("edit it")
        approval = await world.ada.is_asked()
        assert "-one" in approval.shown
        made(world, "note.txt").write_text("one and more")
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("it had changed")
        assert made(world, "note.txt").read_text() == "one and more"


async def test_a_message_during_an_approval_is_explained_once(tmp_path: Path) -> None:
    model = FakeModel(bash("touch made"), "done", "noon")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        for text in ("and the time", "quickly"):
            await world.ada.says(text)
            await world.ada.sees("I am waiting for a decision on the request above.")
            await world.rests()
        await world.ada.decides(approval.id, allow=False)
        await world.ada.sees("noon")
        assert sum(text.startswith("I am waiting") for text in world.chat.texts(world.ada.thread)) == 1


async def test_other_threads_continue_while_one_waits(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "quick"), profile="standard") as world:
        bob = world.person("bob", "2")
        await world.ada.says("go")
        await world.ada.is_asked()
        await bob.says("hello")
        await bob.sees("quick")


async def test_decisions_are_journaled_and_audited(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("done")
        settled = [event.data for event in await world.journal() if isinstance(event.data, ApprovalSettled)]
        assert [(one.decision, one.by) for one in settled] == [("allow", "ada")]
        rows = await world.app[Store].audit.tail()
        assert {row.entry.kind for row in rows} >= {"check", "approval"}


MIXED: dict[str, dict[str, object]] = {
    "permissions": {
        "default_profile": "mixed",
        "profiles": {
            "mixed": {"allow": ["tool:time:.*"], "ask": ["tool:read_url:.*ask.*"], "deny": ["tool:read_url:.*deny.*"]}
        },
    }
}


@pytest.mark.parametrize("kinds", list(product(("allow", "ask", "deny"), repeat=3)), ids="-".join)
async def test_parallel_calls_are_decided_in_their_order(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    wanted = tuple(
        Call("time", "{}") if kind == "allow" else Call("read_url", json.dumps({"url": f"https://{kind}.invalid/{n}"}))
        for n, kind in enumerate(kinds)
    )
    model = FakeModel(Reply(calls=wanted), "done")
    async with scenario(tmp_path, model, settings=MIXED) as world:
        await world.ada.says("go")
        asking = [number for number, kind in enumerate(kinds) if kind == "ask"]
        for left, number in enumerate(asking):
            await world.happens(world.ada.thread, "approval_requested", len(asking))
            if number:
                await world.happens(world.ada.thread, "tool_result", number)
            await world.rests()
            found = await world.app[Store].approvals.search(thread=world.ada.thread)
            waiting = sorted(found, key=lambda one: one.item.number)
            assert len(waiting) == len(asking) - left, "those that need a person are asked for together"
            assert len(await results(world)) == number, "nothing behind a call that waits has run, all before it has"
            await world.ada.decides(waiting[0].id, allow=False)
        await world.ada.sees("done")
        assert sorted(one.name for one in await results(world)) == sorted(call.name for call in wanted)
