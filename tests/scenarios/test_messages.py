"""The tool `message` sends additional messages to people. No message is sent twice."""

import json
from pathlib import Path

from tests.scenarios.delegation import cast, children_of, delegates, results

from shoal.kernel.clock import Clock
from shoal.kernel.events import UserSaid
from shoal.kernel.ids import make_thread_id
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario


def message(text: str, **more: str) -> Reply:
    return Reply(calls=(Call("message", json.dumps({"text": text, **more})),))


async def test_a_message_to_another_thread_is_posted_and_journaled_there(tmp_path: Path) -> None:
    bob = make_thread_id("fake", "harbour", "2")
    async with scenario(tmp_path, FakeModel("hello bob", message("Ada says hi.", to=bob), "Told him.")) as world:
        await world.person("bob", "2").says("hi")
        await world.person("bob", "2").sees("hello bob")
        await world.ada.says("greet bob")
        await world.ada.sees("Told him.")
        await world.person("bob", "2").sees("Ada says hi.")
        note = (await world.happens(bob, "user_message", 2)).data
        assert isinstance(note, UserSaid)
        assert note.text.endswith("Ada says hi.")


async def test_a_message_to_a_channel_opens_a_thread_there(tmp_path: Path) -> None:
    long = "\n\n".join(f"line {number} " + "word " * 60 for number in range(12))
    async with scenario(tmp_path, FakeModel(message(long, to="fake:news"), "Announced.")) as world:
        await world.ada.says("tell all")
        await world.ada.sees("Announced.")
        while len(found := [made for made in world.chat.posted if made.post.thread.startswith("fake:news:")]) < 2:
            await world.app[Clock].sleep(0.01)
        assert len({made.post.thread for made in found}) == 1
        assert "line 0 " in found[0].markdown
        assert "line 11 " in found[-1].markdown


async def test_the_standard_profile_asks_only_for_messages_to_other_threads(tmp_path: Path) -> None:
    model = FakeModel(message("mine"), message("theirs", to="fake:news"), "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("go")
        await world.ada.sees("mine")
        approval = await world.ada.is_asked()
        assert approval.actions == ("tool:message:fake:news",)
        await world.ada.decides(approval.id, allow=False)
        await world.happens(world.ada.thread, "turn_finished")


async def test_an_unknown_platform_is_refused_with_the_existing_ones(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(message("x", to="pigeon:post"), "No pigeons.")) as world:
        await world.ada.says("go")
        await world.ada.sees("No pigeons.")
        (result,) = await results(world)
        assert "Connected: fake" in result.text


async def test_a_subagent_posts_in_its_callers_conversation(tmp_path: Path) -> None:
    model = cast(plan=[delegates("spawn", "dive"), "started"], dive=[message("I found pearls."), "pearls"])
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("plan it")
        await world.ada.sees("I found pearls.")
        (child,) = await children_of(world)
        await world.happens(child, "turn_finished")
        await world.ada.sees("started")
        await world.is_quiet()
        assert sorted(world.chat.texts(world.ada.thread)) == ["I found pearls.", "started"]


async def test_a_file_is_sent_with_a_message_once_file_and_channel_are_allowed(tmp_path: Path) -> None:
    bob = make_thread_id("fake", "harbour", "2")
    model = FakeModel(
        message("x", to=bob, file="/etc/hostname"), message("The chart.", to=bob, file="chart.txt"), "sent"
    )
    async with scenario(tmp_path, model, profile="standard") as world:
        workspace = tmp_path / "agents" / "main" / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        (workspace / "chart.txt").write_text("depth 12 m")
        await world.ada.says("send bob the chart")
        approval = await world.ada.is_asked()
        assert approval.actions == (f"tool:message:{bob}", "tool:upload:/workspace/chart.txt")
        assert approval.shown.endswith("The chart.\n[file /workspace/chart.txt]")
        await world.ada.decides(approval.id, allow=True)
        await world.ada.sees("sent")
        posted = await world.person("bob", "2").sees("The chart.")
        assert posted.post.file is not None
        assert (posted.post.file.name, posted.post.file.read_text()) == ("chart.txt", "depth 12 m")
        refused, *_ = await results(world)
        assert "outside the directories you may use" in refused.text
