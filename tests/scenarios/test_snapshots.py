"""Conversations that are saved, cleared and restored, by people or after a period of inactivity."""

from pathlib import Path

import pytest
from tests.scenarios.kit import Door, calls
from tests.scenarios.test_taint import time_page

from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.clock import Clock
from shoal.kernel.errors import Conflict, InvalidInput, NotFound
from shoal.kernel.events import UserSaid
from shoal.kernel.ids import HEARTBEAT_THREAD, ThreadId
from shoal.kernel.messages import Author, Prompt
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Refusal, Reply, Seen, Step
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator

ADA = Author("ada", trusted=True)


def describer(seen: Seen) -> Step | str:
    return "About boats." if "Describe it now." in seen.user_text else f"heard {len(seen.messages)}"


def mute(seen: Seen) -> Step | str:
    return Refusal(500, "no") if "Describe it now." in seen.user_text else "heard"


async def turn(world: World, text: str, number: int) -> None:
    await world.ada.says(text)
    await world.happens(world.ada.thread, "turn_finished", number)


async def test_a_saved_conversation_is_restored(tmp_path: Path) -> None:
    model = FakeModel(script=describer)
    async with scenario(tmp_path, model) as world:
        await turn(world, "we need two boats", 1)
        saved = await world.app[ConversationSnapshots].save(world.ada.thread)
        assert (saved.description, saved.messages) == ("About boats.", 2)
        assert (tmp_path / "agents" / "main" / "sessions" / f"{saved.id}.json").stat().st_mode & 0o777 == 0o600
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await turn(world, "what now", 2)
        assert not any("two boats" in message.text for message in model.requests[-1].messages)
        assert await world.app[ConversationSnapshots].history(world.ada.thread) == [saved]
        await world.app[ConversationSnapshots].restore(world.ada.thread, saved.id, "ada")
        await turn(world, "go on", 3)
        texts = [message.text for message in model.requests[-1].messages]
        assert "we need two boats" in texts[0]
        assert texts[1] == "heard 1"
        assert not any("what now" in text for text in texts)


async def test_a_failing_model_leaves_a_plain_description(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=mute)) as world:
        await turn(world, "we need two boats", 1)
        saved = await world.app[ConversationSnapshots].save(world.ada.thread)
        assert saved.description == "2 messages, beginning: we need two boats"


async def test_a_fresh_start_saves_and_clears_the_conversation(tmp_path: Path) -> None:
    model = FakeModel(script=describer)
    async with scenario(tmp_path, model) as world:
        await turn(world, "old matter", 1)
        saved = await world.app[ConversationSnapshots].start_over(world.ada.thread, "ada")
        assert saved is not None
        assert await world.app[ConversationSnapshots].start_over(world.ada.thread, "ada") is None
        with pytest.raises(InvalidInput, match="nothing to save"):
            await world.app[ConversationSnapshots].save(world.ada.thread)
        await turn(world, "new matter", 2)
        assert len(model.requests[-1].messages) == 1


async def test_saved_conversations_of_another_channel_are_hidden(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=describer)) as world:
        await turn(world, "hello", 1)
        saved = await world.app[ConversationSnapshots].save(world.ada.thread)
        await world.chat.says("lighthouse", "3", "hello", user="eve")
        other = ThreadId("fake:lighthouse:3")
        await world.happens(other, "turn_finished")
        assert await world.app[ConversationSnapshots].history(other) == []
        with pytest.raises(NotFound, match="no saved conversation that matches"):
            await world.app[ConversationSnapshots].restore(other, saved.id, "eve")


async def test_nothing_is_restored_into_a_running_turn(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel("one", calls("wait"), "two")
    async with scenario(tmp_path, model, tools=[door.tool()]) as world:
        await turn(world, "hello", 1)
        saved = await world.app[ConversationSnapshots].save(world.ada.thread, "mine")
        await world.ada.says("wait")
        await door.entered.wait()
        with pytest.raises(Conflict):
            await world.app[ConversationSnapshots].restore(world.ada.thread, saved.id, "ada")
        with pytest.raises(Conflict):
            await world.app[ConversationSnapshots].start_over(world.ada.thread, "ada")
        door.open.set()
        await world.ada.sees("two")


async def test_an_idle_agent_saves_and_clears_its_conversation_and_sends_a_notice(tmp_path: Path) -> None:
    (tmp_path / "agents" / "main").mkdir(parents=True)
    (tmp_path / "agents" / "main" / "agent.toml").write_text("idle_minutes = 30\n")
    clock, model = ManualClock(), FakeModel(script=describer)
    async with scenario(tmp_path, model, clock=clock) as world:
        bob = world.person("bob", "2")
        await turn(world, "about boats", 1)
        await clock.advance(29 * 60)
        await bob.says("still here")
        await world.happens(bob.thread, "turn_finished")
        await clock.advance(29 * 60)
        assert "cleared" not in await world.types(), "any thread of the agent keeps it awake"
        await clock.advance(120)
        told = await bob.sees("I saved and cleared 2 conversations: About boats.")
        for person in (world.ada, bob):
            await world.happens(person.thread, "cleared")
            (saved,) = [
                one
                for one in await world.app[ConversationSnapshots].history(person.thread)
                if one.thread == person.thread
            ]
            assert (saved.id[-6:] in told.markdown) is (person is bob), "the channel is told once"
            assert (await world.types(person.thread))[-1] == "cleared"
        await clock.advance(3600)
        told_at = [one.thread for one in (world.ada, bob) if "saved" in "".join(world.chat.texts(one.thread))]
        assert told_at == [bob.thread]
        texts = [event.data.text for event in await world.journal() if isinstance(event.data, UserSaid)]
        assert texts == ["about boats"], "nothing leaves the journal"


async def test_a_heartbeat_does_not_delay_idleness_and_is_never_saved(tmp_path: Path) -> None:
    (tmp_path / "agents" / "main").mkdir(parents=True)
    (tmp_path / "agents" / "main" / "agent.toml").write_text("idle_minutes = 30\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "HEARTBEAT.md").write_text("- look at the tide\n")
    clock, model = ManualClock(), FakeModel(script=describer)
    settings = {"triggers": {"heartbeat_minutes": 10}}
    lobby = ThreadId("web:lobby:boats")  # in addition to the thread of the heartbeat
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        asked = Prompt(lobby, "k", "about boats", ADA, clock.now(), message_id="k", direct=True)
        await world.app[Orchestrator].send(asked)
        await world.happens(lobby, "turn_finished")
        for beat in (1, 2, 3):
            await clock.advance(10 * 60)
            await world.happens(HEARTBEAT_THREAD, "turn_finished", beat)
        await clock.advance(120)
        await world.happens(lobby, "cleared")
        assert [one.thread for one in await world.app[ConversationSnapshots].history(lobby)] == [lobby]
        await clock.advance(2 * 3600)
        assert "cleared" not in await world.types(HEARTBEAT_THREAD)
        assert [one.thread for one in await world.app[ConversationSnapshots].history(lobby)] == [lobby]


@pytest.mark.parametrize(
    ("author", "tainted_by", "tool", "marked"),
    [
        (Author("eve", trusted=False), "", "time", (True, True)),
        (ADA, "", "time_page", (False, True)),
        (ADA, "", "time", (False, False)),
        (ADA, "a page", "time", (True, False)),
    ],
)
async def test_the_describing_model_sees_which_text_is_untrusted(
    tmp_path: Path, author: Author, tainted_by: str, tool: str, marked: tuple[bool, bool]
) -> None:
    """`marked` states whether the message and the tool result are shown as untrusted."""
    model = FakeModel(Reply(calls=(Call(tool, "{}"),)), "heard", "About it.")
    async with scenario(tmp_path, model, tools=[time_page]) as world:
        asked = Prompt(
            world.ada.thread, "k", "hello", author, world.app[Clock].now(), message_id="k", tainted_by=tainted_by
        )
        await world.app[Orchestrator].send(asked)
        await world.happens(world.ada.thread, "turn_finished")
        await world.app[ConversationSnapshots].save(world.ada.thread)
    said, _, result = model.requests[-1].messages[-1].text.partition("hello")
    assert ("<untrusted" in said, "<untrusted" in result) == marked
