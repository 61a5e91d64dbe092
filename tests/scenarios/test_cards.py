"""Approvals: the people who may decide them, and the text that is shown afterwards."""

from pathlib import Path

import pytest
from tests.scenarios.kit import calls, fail, in_time

from shoal.kernel.errors import Forbidden
from shoal.kernel.messages import Attachment
from shoal.kernel.permissions import Asker
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator


def bash(command: str) -> Reply:
    return Reply(calls=(Call("bash", f'{{"command": "{command}"}}'),))


async def card(world: World, truth: str) -> str:
    seen = await world.ada.sees(truth)
    assert seen.buttons == ()
    assert seen.post.kind == "card"
    return seen.markdown


async def test_the_card_shows_that_the_call_was_allowed_and_ran(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        assert "touch made" in await card(world, "Allowed, and it ran.")
        assert len([made for made in world.chat.posted if made.post.kind == "card"]) == 1


async def test_the_card_shows_that_the_call_failed(tmp_path: Path) -> None:
    settings = {"permissions": {"default_profile": "careful", "profiles": {"careful": {"ask": ["tool:.*"]}}}}
    async with scenario(tmp_path, FakeModel(calls("fail"), "done"), tools=(fail,), settings=settings) as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        await card(world, "Allowed, but it failed.")


async def test_the_card_shows_who_denied_the_call(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=False)
        await card(world, "Denied by ada. It did not run.")


async def test_the_card_shows_that_no_one_answered(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard", clock=clock) as world:
        await world.ada.says("go")
        await world.ada.is_asked()
        await world.ada.sees("touch made")
        await clock.advance(3700)
        await in_time(clock, card(world, "Expired: nobody answered in time."))


async def test_the_card_shows_that_stop_cancelled_the_call(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        await world.ada.is_asked()
        await world.ada.stops()
        await card(world, "Cancelled")


async def test_the_card_shows_that_the_call_was_stopped_while_running(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("/bin/sleep 600"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        await world.ada.decides(approval.id, allow=True)
        await world.happens(world.ada.thread, "tool_started")
        await world.ada.stops()
        await card(world, "it was stopped while it ran")


async def test_an_untrusted_person_decides_nothing(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        for stranger in (
            Asker(trust="trusted", user="bob", platform="fake"),
            Asker(trust="trusted", user="ada", platform="slack"),
            Asker(trust="trusted", platform="fake"),
        ):
            with pytest.raises(Forbidden):
                await world.app[Orchestrator].decide(approval.id, True, stranger)
        found = await world.app[Store].approvals.get(approval.id)
        assert found is not None
        assert found.state == "pending"


async def test_a_decision_sent_with_a_file_is_ignored(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("hi")
    async with scenario(tmp_path / "home", FakeModel(bash("touch made"), "done"), profile="standard") as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        files = (Attachment("letter.txt", "text/plain", path=str(letter)),)
        await world.chat.says("harbour", "1", f"allow {approval.id}", user="ada", attachments=files)
        found = await world.app[Store].approvals.get(approval.id)
        assert found is not None
        assert found.state == "pending"


@pytest.mark.parametrize(
    "by",
    [
        Asker(trust="trusted", user="owner", platform="web"),
        Asker(trust="trusted", user="owner", platform="terminal"),
        Asker(trust="trusted", user="bob", platform="fake"),
        Asker(trust="trusted", user="eve", platform="fake", roles=("ops",)),
    ],
)
async def test_the_owner_and_approvers_decide(tmp_path: Path, by: Asker) -> None:
    permissions = {"default_profile": "standard", "approvers": ["fake:bob", "role:ops"]}
    model = FakeModel(bash("touch made"), "done")
    async with scenario(tmp_path, model, settings={"permissions": permissions}) as world:
        await world.ada.says("go")
        approval = await world.ada.is_asked()
        assert await world.app[Orchestrator].decide(approval.id, True, by) == "allow"
        await world.ada.sees("done")
