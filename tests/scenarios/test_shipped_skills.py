"""The shipped skills, followed step by step with real tools."""

import json
import re
from pathlib import Path

from tests.scenarios.kit import in_time

from shoal.kernel.events import ToolFinished
from shoal.kernel.traits import Traits
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply, Seen, Step
from shoal.testing.model.script import Script
from shoal.testing.scenario import World, scenario
from shoal.tools.functions import tool
from shoal.tools.registry import Registry


def call(name: str, **arguments: object) -> Reply:
    return Reply(calls=(Call(name, json.dumps(arguments)),))


def following(skill: str, *steps: Step | str, later: Script) -> Script:
    """Return a script that reads the skill and takes the steps. `later` plays the turns that this starts."""

    def script(seen: Seen) -> Step | str:
        if "go" not in seen.user_text.split():
            return later(seen)
        if seen.rounds == 0:
            found = re.search(rf"/[^\s(]*{skill}/SKILL\.md", seen.system)
            assert found is not None, f"{skill} is not offered"
            return call("read", path=found[0])
        return steps[seen.rounds - 1]

    return script


async def results(world: World) -> list[ToolFinished]:
    """Return all results in ada's thread. Fails if one of them is an error."""
    found = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
    assert not [one.text for one in found if one.is_error]
    return found


async def test_the_reminder_skill_schedules_a_reminder(tmp_path: Path) -> None:
    clock = ManualClock()
    text = "Remind ada to renew the certificate"
    remind = call("remind", when="in 20 minutes", text=text, timezone="Europe/Berlin")

    def later(seen: Seen) -> str:
        return f"It is time: {seen.user_text.splitlines()[0]}"

    model = following("schedule-reminder", remind, "I will remind you in 20 minutes.", later=later)
    async with scenario(tmp_path, FakeModel(script=model), clock=clock) as world:
        await world.ada.says("go")
        await world.ada.sees("in 20 minutes")
        assert "Schedule a reminder" in (await results(world))[0].text
        await in_time(clock, world.ada.sees("It is time:"), 31)
        assert any(text in one for one in world.chat.texts(world.ada.thread))


async def test_the_summary_skill_summarizes_the_channel(tmp_path: Path) -> None:
    channel, history = call("search_channel", query="boats"), call("recall", query="boats")
    follow = following("summarise-channel", channel, history, later=lambda seen: "noted")

    def summary(seen: Seen) -> Step | str:
        return follow(seen) if seen.rounds < 3 else f"**In short**: {seen.results[-1].splitlines()[0]}"

    async with scenario(tmp_path, FakeModel(script=summary)) as world:
        bob = world.person("bob", "2")
        await bob.says("we decided to buy two boats")
        await bob.sees("noted")
        await world.ada.says("go")
        await world.ada.sees("bob in fake:harbour:2: we decided to buy two boats")
        assert [one.name for one in await results(world)] == ["read", "search_channel", "recall"]


async def test_the_watch_skill_watches_a_page(tmp_path: Path) -> None:
    clock, page = ManualClock(), ["Price: 10"]

    @tool(Traits(effect="read", origin="own"))
    async def read_url(url: str) -> str:
        """Read a page."""
        return page[0]

    def look(seen: Seen) -> Step | str:
        match seen.rounds:
            case 0:
                return call("read", path="watch/shop.md")
            case 1:
                return call("read_url", url="https://shop.example.org/")
            case 2 if page[0] not in "".join(message.text for message in seen.messages if "\t" in message.text):
                return call("write", path="watch/shop.md", content=page[0])
            case 2:
                return "[SILENT]"
            case _:
                return f"It changed: {page[0]}"

    model = following(
        "watch-web-page",
        call("read_url", url="https://shop.example.org/"),
        call("write", path="watch/shop.md", content=page[0]),
        call("remind", when="*/30 * * * *", text="Follow watch-web-page for watch/shop.md.", timezone="UTC"),
        "I watch it.",
        later=look,
    )
    async with scenario(tmp_path, FakeModel(script=model), clock=clock) as world:
        world.app[Registry].remove("read_url")
        world.app[Registry].add(read_url)
        await world.ada.says("go")
        await world.ada.sees("I watch it.")
        await in_time(clock, world.happens(world.ada.thread, "turn_finished", 2), 31)
        assert not any("changed" in text for text in world.chat.texts(world.ada.thread))
        page[0] = "Price: 12"
        await in_time(clock, world.ada.sees("It changed: Price: 12"), 31)
        assert "# Watch a web page" in (await results(world))[0].text
