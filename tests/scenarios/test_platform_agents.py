"""Agents and threads on several platforms: agents are created, bound, configured and deleted, and replies reach
their threads.
"""

import re
from pathlib import Path

import pytest
from tests.scenarios.kit import Door, calls
from tests.scenarios.scene import Scene, Someone, playing
from tests.scenarios.stands import Stand

from shoal.agents.registry import info_lines
from shoal.app import open_app
from shoal.backend import Backend
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.commands import CommandRequest
from shoal.kernel.events import Steered, UserSaid
from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import Author
from shoal.notices import Notices
from shoal.running import Status
from shoal.store.driver import query
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Seen
from shoal.threads.commands import CommandRouter

FOUR = pytest.mark.parametrize("stand", ["fake", "telegram", "discord", "slack"], indirect=True)
WITH_CHANNELS = pytest.mark.parametrize("stand", ["fake", "discord", "slack"], indirect=True)


def named(seen: Seen) -> str:
    return f"{seen.system.split('You are ')[1].split(',')[0]} by {seen.model}"


async def deletes(person: Someone, what: str) -> str:
    asked = await person.asks(f"/agent delete {what}")
    code = re.search(rf"/agent (delete {what.split(maxsplit=1)[0]}\b.*? [0-9a-f]{{6}})\b", asked)
    assert code, asked
    return await person.asks(f"/agent {code[1]}")


async def answer(scene: Scene, channel: str) -> str:
    before = len(scene.texts(channel))
    await scene.bob.says("who?", where=channel)
    answered = await scene.until(lambda: next((one for one in scene.texts(channel)[before:] if " by " in one), None))
    return answered or ""


async def makes(scene: Scene, name: str) -> str:
    """Create an agent from the harbour as ada and return its channel.

    If the platform cannot create channels, bind the agent to the harbour.
    """
    told = await scene.ada.asks(f"/agent create {name} Keeps the deck clean.", where=scene.stand.harbour)
    if scene.stand.makes_channels:
        return told.rpartition(":")[2].rstrip(".")
    assert "I cannot create channels on " in told
    assert "starting with the next message" in await scene.ada.asks(f"/agent bind {name}", where=scene.stand.harbour)
    return scene.stand.harbour


@FOUR
async def test_an_agent_is_created_configured_and_destroyed(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel(script=named)) as scene:
        channel = await makes(scene, "deck")
        assert await answer(scene, channel) == "deck by demo"
        folder = tmp_path / "agents" / "deck"
        assert 'system_prompt = "Keeps the deck clean."' in (folder / "agent.toml").read_text()
        assert (folder / "workspace" / ".git").is_dir()
        assert [(row.name, row.state) for row in await scene.app[Store].registry.all()] == [("deck", "active")]
        assert "takes effect on the next turn" in await scene.ada.asks("/agent config deck model other/one")
        assert await answer(scene, channel) == "deck by other/one"
        listed = await scene.ada.asks("/agent list")
        assert f"deck other/one, open (in {stand.platform}:{channel}: all, idle)" in listed
        assert "removed/deck-" in await deletes(scene.ada, "deck keep")
        assert await answer(scene, channel) == "main by demo"
        assert [path.name for path in tmp_path.glob("removed/deck-*/agent.toml")] == ["agent.toml"]


async def test_bindings_survive_a_restart_and_end_with_unbind(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel(script=named)) as scene:
        await scene.ada.asks("/agent create deck")
        await scene.ada.asks("/agent bind deck", where=stand.harbour)
    async with playing(stand, tmp_path, FakeModel(script=named)) as scene:
        assert await answer(scene, stand.harbour) == "deck by demo"
        assert "no longer bound to an agent" in await scene.ada.asks("/agent unbind", where=stand.harbour)
        assert await answer(scene, stand.harbour) == "main by demo"
        assert "is not bound to an agent" in await scene.ada.asks("/agent unbind", where=stand.harbour)


@WITH_CHANNELS
async def test_a_deleted_channel_is_reported_and_its_binding_kept(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel("hello")) as scene:
        channel = await makes(scene, "deck")
        await scene.ada.says("hi")
        await scene.ada.sees("hello")
    stand.loses(channel)
    async with playing(stand, tmp_path, FakeModel()) as scene:
        await scene.ada.sees(f"deck's channel {stand.platform}:{channel} no longer exists")
        assert any(f"{stand.platform}:{channel}" in note for note in scene.app[Notices].notes)
        assert [one.agent for one in await scene.app[Store].registry.bindings()] == ["deck"], "it is told, not dropped"


@FOUR
async def test_only_the_owner_changes_agents_and_settings(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel(script=named)) as scene:
        for line in ("/agent create deck", "/agent bind main", "/settings model wide/one"):
            assert "Only my owner" in await scene.bob.asks(line)
        await scene.ada.asks("/settings model wide/one", where=stand.harbour)
        assert await answer(scene, stand.harbour) == "main by wide/one"
        scope = "in this server" if stand.platform == "discord" else f"everywhere on {stand.platform}"
        assert f"{scope}: model wide/one" in await scene.bob.asks("/settings show")


async def test_a_single_message_can_be_answered_by_another_model(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel(script=named)) as scene:
        await scene.ada.says("/model other/one who?")
        await scene.ada.sees("main by other/one")
        await scene.ada.says("and now?")
        await scene.ada.sees("main by demo")
        assert "main uses demo" in await scene.ada.asks("/model")
        assert "To ask this model once, write" in await scene.ada.asks("/model other/one")


async def test_model_names_are_completed_in_every_command(tmp_path: Path) -> None:
    tall = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "models": ["one", "two"]}
    async with open_app(load_config(tmp_path, {}, {"providers": {"tall": tall}})) as app:
        at, thread = app[Clock].now(), make_thread_id("terminal", "local", "1")

        async def offered(name: str, typed: str) -> list[str]:
            asked = CommandRequest(thread, Author("ada", trusted=True), name, typed, "k", at)
            return [one for one in await app[CommandRouter].suggestions(asked) if "tall/" in one]

        assert await offered("model", "") == await offered("retry", "TALL") == ["tall/one", "tall/two"]
        assert await offered("settings", "model tw") == ["model tall/two"]
        assert await offered("settings", "here model") == ["here model tall/one", "here model tall/two"]
        assert await offered("agent", "config deck model one") == ["config deck model tall/one"]
        for name, typed in (("settings", "permissions "), ("model", "tall/one what is"), ("stop", "model ")):
            assert await offered(name, typed) == []


@FOUR
async def test_a_plain_message_opens_a_thread_and_a_reply_continues_its_own(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel("one", "two", "three")) as scene:
        await scene.bob.says("first")
        one = await scene.bob.sees("one")
        await scene.bob.says("second")
        two = await scene.bob.sees("two")
        threads = [await scene.thread_of(seen) for seen in (one, two)]
        assert threads[0] != threads[1]
        await scene.bob.says("more", to=one)
        assert await scene.thread_of(await scene.bob.sees("three")) == threads[0]


async def test_a_reply_to_a_busy_thread_reaches_its_turn(tmp_path: Path, stand: Stand) -> None:
    door = Door()
    model = FakeModel("Ready.", calls("wait"), "With flags too.")
    async with playing(stand, tmp_path, model, tools=[door.tool()]) as scene:
        await scene.bob.says("get ready")
        ready = await scene.bob.sees("Ready.")
        thread = await scene.thread_of(ready)
        await scene.bob.says("sail", to=ready)
        await scene.until(door.entered.is_set)
        await scene.bob.says("and hoist the flags", to=ready)

        async def is_taken_in() -> bool:
            return bool(await scene.app[Backend].driver.read(query("inbox_steers", thread=thread)))

        await scene.comes(is_taken_in)
        door.open.set()
        await scene.bob.sees("With flags too.")
        events = await scene.journal(thread)
    assert [event.data.text for event in events if isinstance(event.data, UserSaid)] == ["get ready", "sail"]
    assert [event.data.text for event in events if isinstance(event.data, Steered)] == ["and hoist the flags"]


@FOUR
async def test_threads_are_listed_inspected_and_killed(tmp_path: Path, stand: Stand) -> None:
    door = Door()
    model = FakeModel("hi", calls("wait"), "seen")
    async with playing(stand, tmp_path, model, tools=[door.tool()]) as scene:
        await scene.bob.says("hello there")
        await scene.bob.sees("hi")
        await scene.bob.says("wait for me")
        await scene.until(door.entered.is_set)
        assert "wait for me (for " in await scene.bob.asks("/tasks")
        listed = await scene.bob.asks("/thread list")
        assert re.search(r"\S+ hello there \(idle", listed)
        (name,) = re.findall(r"(\S+) wait for me \(at work", listed)
        thread = f"{stand.platform}:{stand.harbour}:{name}"
        await scene.ada.says("what now?")
        await scene.ada.sees("seen")
        assert f"You are also working in:\n- {thread}: wait for me (for " in model.requests[-1].messages[-1].text
        assert f"Stopping {thread}." in await scene.bob.asks(f"/thread kill {thread}")
        await scene.until(lambda: scene.app[Backend].engine.running == 0)
        assert "step 1: model demo, " in await scene.bob.asks(f"/thread history {thread}")
        assert (await scene.bob.asks(f"/thread kill {thread}")).startswith("Nothing is running")
        assert "Thread nosuch does not exist" in await scene.bob.asks("/thread kill nosuch")
        assert door.left == 0


async def test_the_status_command_lists_one_line_per_service(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel()) as scene:
        await scene.ada.asks("/agent create deck")
        lines = info_lines(scene.app[Status].info())
    assert "agents    2: deck, main" in lines
    assert any(line.startswith("platforms ") and stand.platform in line for line in lines)
    assert {line.split()[0] for line in lines} >= {"agents", "tools", "skills", "model", "platforms", "sandbox"}
