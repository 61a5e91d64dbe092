"""Actions in a chat other than messages to the agent, through the complete app on every platform."""

import asyncio
from pathlib import Path

import pytest
from tests.scenarios.kit import calls
from tests.scenarios.scene import SECONDS_MAX, Scene, playing
from tests.scenarios.stands import Stand

from shoal.agents.lifecycle import AgentLifecycle
from shoal.agents.registry import AgentRegistry
from shoal.connections import Connections
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply

PLATFORMS = ["fake", "telegram", "discord", "slack", "matrix", "teams", "google_chat"]
MAKES = calls("bash", arguments='{"command": "echo x > made"}')
AGAIN = calls("bash", arguments='{"command": "echo y > made"}')
PROMISED = "👍 on this message allows the call once, and 👎 denies the call."


def told(stand: Stand) -> list[str]:
    return [seen.text for seen in stand.said()]


@pytest.mark.parametrize("stand", PLATFORMS, indirect=True)
async def test_a_permitted_persons_reaction_decides_a_card_once(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(MAKES, AGAIN, "It stays as it is.")
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        await scene.ada.says("go")
        card = await scene.ada.sees("echo x > made")
        promises = scene.app[Connections].adapters[stand.platform].limits.reactions in ("all", "direct")
        assert (PROMISED in card.text) is promises
        await scene.thread_of(card)
        await stand.reacts(card, "👍", stand.bob)  # bob may write but not decide this approval
        await scene.until(lambda: next((text for text in told(stand) if "Only the person who asked" in text), None))
        assert not (scene.app[AgentRegistry].spec("main").workspace / "made").exists()
        await stand.reacts(card, "👍", stand.ada)
        assert PROMISED not in (await scene.ada.sees("it ran")).text
        assert (scene.app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
        second = await scene.ada.sees("echo y > made")
        await scene.thread_of(second)
        await stand.reacts(card, "👍", stand.ada)  # without effect, because this approval is already decided
        await stand.reacts(second, "👎", stand.ada)
        await scene.ada.sees("It stays as it is.")
        assert (scene.app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
        await stand.reacts(second, "👍", stand.ada)
        await scene.until(
            lambda: next((text for text in told(stand) if "already decided: it was denied" in text), None)
        )
    assert len([text for text in told(stand) if "already decided" in text]) == 1


@pytest.mark.parametrize("stand", PLATFORMS, indirect=True)
async def test_a_permitted_persons_word_decides_the_pending_approval(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(MAKES, AGAIN, "It stays as it is.", "and now that")
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        await scene.ada.says("go")
        card = await scene.ada.sees("echo x > made")
        await scene.thread_of(card)
        await stand.says("ok", card.channel, stand.bob, card)  # bob may write but not decide this approval
        await scene.until(lambda: next((text for text in told(stand) if "Only the person who asked" in text), None))
        assert not (scene.app[AgentRegistry].spec("main").workspace / "made").exists()
        await scene.ada.says("Yes!", to=card)
        await scene.ada.sees("it ran")
        await scene.ada.sees("echo y > made")
        await scene.ada.says("but first tell me the time")
        await scene.ada.sees("I am waiting for a decision on the request above.")
        await scene.ada.says("and the weather")
        await scene.comes(lambda: _waiting(scene, 2))
        await scene.ada.says("no")
        await scene.ada.sees("It stays as it is.")
        await scene.ada.sees("and now that")
        assert sum("waiting for a decision" in text for text in told(stand)) == 1
    assert (scene.app[AgentRegistry].spec("main").workspace / "made").read_text() == "x\n"
    assert "but first tell me the time\nand the weather" in model.requests[-1].messages[-1].text


@pytest.mark.parametrize("stand", ["telegram", "discord"], indirect=True)
async def test_a_command_without_an_id_decides_the_only_approval(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(MAKES, AGAIN, "It stays as it is.")
    async with playing(stand, tmp_path, model, profile="standard") as scene:
        assert "No approval is pending here." in await scene.ada.asks("/approve")
        await scene.ada.says("go")
        await scene.ada.sees("echo x > made")
        assert "No approval nope is pending here." in await scene.ada.asks("/deny nope")
        assert await scene.ada.asks("/approve") == "Allowed."
        await scene.ada.sees("echo y > made")
        assert await scene.ada.asks("/deny") == "Denied."
        await scene.ada.sees("It stays as it is.")


@pytest.mark.parametrize("stand", PLATFORMS[1:], indirect=True)
async def test_a_bound_channel_keeps_its_response_mode_after_a_restart(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel("heard plain-one", "heard plain-two", "heard named-one")
    place = stand.thread(stand.harbour)
    async with playing(stand, tmp_path, model) as scene:
        bob = scene.person(stand.bob, stand.harbour)
        await scene.app[AgentLifecycle].bind("main", place, f"{stand.platform}:{stand.ada}")
        await stand.says("plain-one", stand.harbour, stand.bob, named=False)
        await bob.sees("heard plain-one")
    async with playing(stand, tmp_path, model) as scene:
        bob = scene.person(stand.bob, stand.harbour)
        await stand.says("plain-two", stand.harbour, stand.bob, named=False)
        await bob.sees("heard plain-two")
        await scene.app[AgentLifecycle].bind("main", place, f"{stand.platform}:{stand.ada}", "named")
        await stand.says("plain-three", stand.harbour, stand.bob, named=False)
        await stand.says("named-one", stand.harbour, stand.bob)
        await bob.sees("heard named-one")
        assert not any("plain-three" in text for text in told(stand))
    assert len(model.requests) == 3


@pytest.mark.parametrize("stand", PLATFORMS, indirect=True)
async def test_eight_lines_are_all_answered_by_two_turns(tmp_path: Path, stand: Stand) -> None:
    gate = Gate()
    model = FakeModel(Reply("first answer", gate=gate), "answer to all")
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.says("line 0")
        await scene.comes(lambda: _reached(gate))
        for number in range(1, 8):
            await scene.ada.says(f"line {number}")
        await scene.comes(lambda: _waiting(scene, 7))
        gate.open()
        await scene.ada.sees("answer to all")
        assert not any("busy" in text for text in told(stand))
    lines = "\n".join(f"line {number}" for number in range(1, 8))
    assert lines in model.requests[-1].messages[-1].text
    assert len(model.requests) == 2


@pytest.mark.parametrize("stand", ["discord", "matrix", "teams", "google_chat"], indirect=True)
async def test_lines_in_an_always_listening_channel_are_one_conversation(tmp_path: Path, stand: Stand) -> None:
    gate = Gate()
    model = FakeModel(Reply("first answer", gate=gate), "answer to all", "to ada", "another matter")
    async with playing(stand, tmp_path, model) as scene:
        bob, ada = scene.person(stand.bob, stand.harbour), scene.person(stand.ada, stand.harbour)
        await scene.app[AgentLifecycle].bind("main", stand.thread(stand.harbour), f"{stand.platform}:{stand.ada}")
        await stand.says("line 0", stand.harbour, stand.bob, named=False)
        # without advancing the clock, because the next line must continue this one
        await asyncio.wait_for(gate.reached.wait(), SECONDS_MAX)
        for number in range(1, 8):
            await stand.says(f"line {number}", stand.harbour, stand.bob, named=False)
        await scene.comes(lambda: _waiting(scene, 7))
        gate.open()
        await bob.sees("answer to all")
        await stand.says("and I", stand.harbour, stand.ada, named=False)
        await ada.sees("to ada")
        await stand.clock.advance(60)
        await stand.says("something else", stand.harbour, stand.bob, named=False)
        await bob.sees("another matter")
        threads = [info.thread for info in await scene.app[Store].journal.threads(100)]
    assert "\n".join(f"line {number}" for number in range(1, 8)) in model.requests[1].messages[-1].text
    assert len(threads) == 3


async def _reached(gate: Gate) -> bool:
    return gate.reached.is_set()


async def _waiting(scene: Scene, count: int) -> bool:
    return (await scene.app[Store].inbox.backlog()).prompts == count
