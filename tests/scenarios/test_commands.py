"""Chat commands about conversations: context, threads, tasks, and a single question to another model."""

import asyncio
from pathlib import Path

from tests.scenarios.kit import Door, calls

from shoal.permissions.access import AccessRules
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Reply, Seen
from shoal.testing.scenario import World, scenario


def echo(seen: Seen) -> Reply | str:
    return "About boats." if "Describe it now." in seen.user_text else f"{seen.model} heard {len(seen.messages)}"


async def turn(world: World, text: str, number: int) -> None:
    await world.ada.says(text)
    await world.happens(world.ada.thread, "turn_finished", number)


async def test_a_context_is_saved_cleared_and_restored(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=echo)) as world:
        assert await world.ada.asks("/context") == "This conversation is empty."
        await turn(world, "two boats", 1)
        saved = await world.ada.asks("/context save")
        assert saved.endswith(": About boats.")
        name = saved.split("`")[1]
        assert (await world.ada.asks("/context clear")).startswith("I cleared the context.")
        await turn(world, "now?", 2)
        await world.ada.sees("demo heard 1")
        assert f"`{name}`" in await world.ada.asks("/context history")
        assert "About boats." in await world.ada.asks(f"/context restore {name}")
        await turn(world, "and now?", 3)
        await world.ada.sees("demo heard 3")
        assert "About boats." in await world.ada.asks("/context restore 1")
        for nosuch in ("nosuch", "0", "2"):
            assert "saved conversation that matches" in await world.ada.asks(f"/context restore {nosuch}")
        assert "Usage:" in await world.ada.asks("/context restore")


async def test_new_saves_the_conversation_and_restore_reloads_it(tmp_path: Path) -> None:
    model = FakeModel(script=echo)
    async with scenario(tmp_path, model) as world:
        assert await world.ada.asks("/new") == "Starting fresh."
        await turn(world, "two boats", 1)
        told = await world.ada.asks("/new")
        name = told.split("restore ")[1].split("`")[0]
        assert len(model.requests) == 1, "no model is asked to describe it"
        assert f"`{name}`" in await world.ada.asks("/context history")
        assert "2 messages, beginning: two boats" in await world.ada.asks("/context history")
        assert await world.ada.asks("/new") == "Starting fresh."
        assert await world.ada.asks("/retry") == (
            "I have not answered a message since the conversation was cleared. Write a new message."
        )
        assert (await world.types())[-1] == "cleared", "it is not undone"
        await turn(world, "now?", 2)
        assert len(model.requests[-1].messages) == 1
        assert "two boats" in await world.ada.asks(f"/context restore {name}")
        await turn(world, "and now?", 3)
        assert "two boats" in model.requests[-1].messages[0].text


async def test_new_during_a_turn_saves_the_earlier_messages(tmp_path: Path) -> None:
    door = Door()
    async with scenario(tmp_path, FakeModel("one", calls("wait"), "two"), tools=[door.tool()]) as world:
        await turn(world, "two boats", 1)
        await world.ada.says("wait")
        await door.entered.wait()
        told = await world.ada.asks("/new")
        door.open.set()
        await world.happens(world.ada.thread, "turn_finished", 2)
        name = told.split("restore ")[1].split("`")[0]
        assert "two boats" in await world.ada.asks(f"/context restore {name}")


async def test_status_shows_the_message_count_and_last_activity(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel(script=echo), clock=clock) as world:
        await turn(world, "two boats", 1)
        await turn(world, "three boats", 2)
        at = f"last active {clock.now():%Y-%m-%d %H:%M} UTC."
        await clock.advance(2 * 3600)
        assert f"4 messages in this conversation, {at}" in await world.ada.asks("/status")
        await world.ada.asks("/new")
        assert "0 messages in this conversation" in await world.ada.asks("/status")


async def test_other_channels_are_visible_only_to_the_owner_in_private(tmp_path: Path) -> None:
    door = Door()
    access = AccessRules(("captain",), ("*",))
    async with scenario(tmp_path, FakeModel(calls("wait"), "ok"), tools=[door.tool()], access=access) as world:
        await world.chat.says("cabin", "9", "the secret course", user="captain")
        await door.entered.wait()
        captain = world.person("captain", "1")
        for person in (world.ada, captain):
            assert await person.asks("/tasks") == "main is idle."
            assert "no threads here" in await person.asks("/thread list")
            assert "another channel" in await person.asks("/thread kill fake:cabin:9")
            assert "another channel" in await person.asks("/thread kill fake:cabin:not-there")
        captain.direct = True
        assert "`fake:cabin:9` the secret course (for " in await captain.asks("/tasks")
        assert "fake:cabin:9" in await captain.asks("/thread list")
        assert "Stopping" in await captain.asks("/thread kill fake:cabin:9")


async def test_tasks_lists_pending_work_by_person(tmp_path: Path) -> None:
    model = FakeModel(calls("bash", arguments='{"command": "touch made"}'), "done", "done")
    async with scenario(tmp_path, model, profile="standard") as world:
        assert await world.ada.asks("/tasks") == "main is idle."
        await world.ada.says("try it")
        await world.ada.is_asked()
        await world.ada.says("and more")
        told = await world.ada.asks("/tasks")
        assert "try it (for " in told
        assert "waiting for approval, 1 more waiting)" in told


async def test_command_output_is_bounded(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(script=echo)) as world:
        people = [world.person(f"sailor{number}", f"t{number}") for number in range(25)]
        await asyncio.gather(*(person.says("x" * 500) for person in people))
        for person in people:
            await world.happens(person.thread, "turn_finished")
        listed = (await world.ada.asks("/thread list")).splitlines()
        assert (len(listed), listed[-1]) == (21, "- and 5 more")
        assert max(map(len, listed)) < 200


async def test_help_names_every_command(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel()) as world:
        told = await world.ada.asks("/help")
        for name in ("context", "thread", "tasks", "model", "agent", "settings", "stop"):
            assert f"`/{name}" in told
