"""Agents on several platforms that change themselves, delegate, or write unprompted messages."""

import json
from pathlib import Path

import pytest
from tests.scenarios.delegation import cast, children_of, delegates, results
from tests.scenarios.kit import Door, calls
from tests.scenarios.scene import Scene, playing
from tests.scenarios.stands import Stand

from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import TurnFinished, UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply

FOUR = pytest.mark.parametrize("stand", ["fake", "telegram", "discord", "slack"], indirect=True)
COMMAND = '{"command": "echo x >> log"}'


def does(tool: str, **arguments: str) -> Reply:
    return calls(tool, arguments=json.dumps(arguments))


async def outcome(scene: Scene, thread: ThreadId) -> str:
    ended = (await scene.happens(thread, "turn_finished")).data
    assert isinstance(ended, TurnFinished)
    return ended.outcome


async def all_is_sent(scene: Scene) -> bool:
    return await scene.app[Store].outbox.depth() == 0


# ---- changes to the agent itself ----


async def test_a_self_edit_is_allowed_by_button_and_reverted(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(does("write_doc", path="tides.md", text="Low tide at six.\n"), "written")
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        document = scene.app[Home].agent("main") / "docs" / "tides.md"
        await scene.ada.says("remember the tides")
        assert not document.exists()
        await scene.ada.clicks("+Low tide at six.", "Allow once")
        await scene.ada.sees("written")
        assert document.read_text() == "Low tide at six.\n"
        assert "Only my owner" in await scene.bob.asks("/agent undo main")
        assert "write_doc" in await scene.ada.asks("/agent undo main")
        assert not document.exists()
        assert "Nothing is left" in await scene.ada.asks("/agent undo")


# ---- subagents ----


async def test_a_subagent_works_in_its_own_thread_and_its_answer_is_the_result(tmp_path: Path, stand: Stand) -> None:
    model = cast(plan=[delegates("subagent", "count the boats"), "There are seven."], count=["seven boats"])
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("plan it")
        await scene.ada.sees("There are seven.")
        (child,) = await children_of(scene)
        (result,) = await results(scene)
        assert result.text == f"[The subagent {child} has finished.]\nseven boats"
        assert len(model.requests[1].messages) == 1, "it knows nothing of the conversation"
        await scene.comes(lambda: all_is_sent(scene))
        assert [seen.text for seen in stand.said()] == ["There are seven."], "the child says nothing itself"


async def test_a_spawned_result_is_noted_without_a_model_call(tmp_path: Path, stand: Stand) -> None:
    gate = Gate()
    model = cast(
        plan=[delegates("spawn", "dive"), "started"],
        dive=[Reply("found pearls", gate=gate)],
        what=["pearls it is"],
    )
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("plan it")
        await scene.ada.sees("started")
        gate.open()
        (child,) = await children_of(scene)
        note = (await scene.happens(scene.ada.thread, "user_message", 2)).data
        assert isinstance(note, UserSaid)
        assert (note.origin, note.text) == ("system", f"[The subagent {child} has finished.]\nfound pearls")
        assert model.calls == 3
        await scene.ada.says("what did it find?")
        await scene.ada.sees("pearls it is")
        assert any("found pearls" in message.text for message in model.requests[-1].messages)
        assert scene.texts() == ["started", "pearls it is"]


async def test_a_spawn_can_request_a_wake_up(tmp_path: Path, stand: Stand) -> None:
    model = cast(
        plan=[delegates("spawn", "dive", wake=True), "started"],
        found=["Ada, it found pearls."],
        dive=["pearls, found"],
    )
    async with playing(stand, tmp_path, model) as scene:
        await scene.bob.says("plan it")
        started = await scene.bob.sees("started")
        told = await scene.bob.sees("Ada, it found pearls.")
        assert await scene.thread_of(told) == await scene.thread_of(started)


async def test_another_agents_approval_is_shown_to_the_person(tmp_path: Path, stand: Stand) -> None:
    model = cast(
        plan=[delegates("ask_agent", "make it", agent="deck"), "made"],
        make=[calls("bash", arguments=COMMAND), "written"],
    )
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        await scene.ada.asks("/agent create deck")
        await scene.ada.says("plan it")
        await scene.ada.clicks("ask_agent", "Allow once")
        await scene.ada.clicks("echo x >> log", "Allow once")
        await scene.ada.sees("made")
        assert (scene.app[AgentRegistry].spec("deck").workspace / "log").read_text() == "x\n"
        cards = [seen for seen in stand.said() if "echo x >> log" in seen.text]
        assert ["it ran" in card.text for card in cards] == [True]


@pytest.mark.parametrize("tool", ["subagent", "spawn"])
async def test_stop_ends_the_whole_tree(tmp_path: Path, stand: Stand, tool: str) -> None:
    door = Door()
    model = cast(plan=[delegates(tool, "middle"), "off"], middle=[delegates("subagent", "leaf")], leaf=[calls("wait")])
    async with playing(stand, tmp_path, model, tools=[door.tool()]) as scene:
        await scene.ada.says("plan it")
        await scene.until(door.entered.is_set)
        if tool == "spawn":
            await scene.ada.sees("off")
        await scene.ada.asks("/stop")
        (middle,) = await children_of(scene)
        (leaf,) = await children_of(scene, middle)
        ended = [await outcome(scene, thread) for thread in (scene.ada.thread, middle, leaf)]
    assert ended == ["done" if tool == "spawn" else "aborted", "aborted", "aborted"]
    assert door.left == 0


# ---- unprompted messages ----


async def test_a_turn_that_posted_to_its_own_thread_does_not_answer_twice(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(does("message", text="Here it is."), "I told her.", "second")
    async with playing(stand, tmp_path, model) as scene:
        await scene.bob.says("go")
        here = await scene.bob.sees("Here it is.")
        await scene.happens(await scene.thread_of(here), "turn_finished")
        await scene.bob.says("again", to=here)
        await scene.bob.sees("second")
        assert scene.texts(stand.harbour) == ["Here it is.", "second"]


@FOUR
async def test_a_reply_to_an_agents_channel_message_goes_to_its_conversation(tmp_path: Path, stand: Stand) -> None:
    to = f"{stand.platform}:{stand.harbour}"
    model = FakeModel(does("message", text="Low tide at six.", to=to), "Announced.", "At six.")
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("tell all")
        await scene.ada.sees("Announced.")
        await scene.bob.says("when?", to=await scene.bob.sees("Low tide at six."))
        await scene.bob.sees("At six.")
        assert (
            "[You wrote this here from another conversation:]\nLow tide at six." in model.requests[-1].messages[0].text
        )


async def test_a_message_carries_a_file(tmp_path: Path, stand: Stand) -> None:
    writes = does("write", path="tides.txt", content="low at six\n")
    to = f"{stand.platform}:{stand.harbour}"
    model = FakeModel(writes, does("message", text="The tides.", file="tides.txt", to=to), "Sent.")
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("tell all")
        await scene.ada.sees("Sent.")
        await scene.bob.sees("The tides.")
        file = await scene.until(lambda: next((seen for seen in stand.said() if seen.file), None))
        assert file is not None
        assert (file.channel, file.file) == (stand.harbour, ("tides.txt", b"low at six\n"))


@FOUR
async def test_a_message_to_a_person_asks_and_reaches_only_them(tmp_path: Path, stand: Stand) -> None:
    to = f"{stand.platform}:{stand.ada}"
    model = FakeModel(does("message", text="Psst.", to=to), "Told her.")
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        await scene.bob.says("greet ada")
        card = await scene.bob.sees("Psst.")
        assert not scene.texts(stand.direct)
        await scene.stand.clicks(card, "Do it", stand.ada)
        await scene.bob.sees("Told her.")
        await scene.ada.sees("Psst.")
        assert scene.texts(stand.direct) == ["Psst."]
