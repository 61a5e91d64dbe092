"""Time zones of the person, the agent and the configuration, in prompts, reminders, budgets and notes."""

from datetime import UTC, datetime
from pathlib import Path

from shoal.kernel.events import TurnStarted
from shoal.kernel.home import Home
from shoal.kernel.messages import Usage
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Reply
from shoal.testing.scenario import World, scenario


async def told(world: World) -> list[str]:
    started = [event.data for event in await world.journal() if isinstance(event.data, TurnStarted)]
    return [next(line for line in one.context.splitlines() if line.startswith("Time:")) for one in started]


async def test_the_prompt_gives_the_askers_time_after_its_stable_part(tmp_path: Path) -> None:
    model = FakeModel("one", "two", "three")
    async with scenario(tmp_path, model, clock=ManualClock(), settings={"timezone": "America/New_York"}) as world:
        await world.ada.says("hi")
        await world.ada.sees("one")
        assert "Asia/Tokyo" in await world.ada.asks("/timezone tokyo")
        await world.ada.says("hi")
        await world.ada.sees("two")
        assert "America/New_York" in await world.ada.asks("/timezone default")
        agent = world.app[Home].agent("main") / "agent.toml"
        agent.write_text('timezone = "Europe/Berlin"\n', "utf-8")
        await world.ada.says("hi")
        await world.ada.sees("three")
        assert await told(world) == [
            "Time: 2026-01-05 04:00 America/New_York (UTC-05:00), Monday",
            "Time: 2026-01-05 18:00 Asia/Tokyo (UTC+09:00), Monday",
            "Time: 2026-01-05 10:00 Europe/Berlin (UTC+01:00), Monday",
        ]
        assert len({request.system for request in model.requests}) == 1


async def test_a_reminder_uses_the_askers_time_zone(tmp_path: Path) -> None:
    async with scenario(
        tmp_path, FakeModel("hello"), clock=ManualClock(), settings={"timezone": "Europe/Berlin"}
    ) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        assert "2026-01-06 09:00 Europe/Berlin" in await world.ada.asks("/remind tomorrow at 9 call Bob")
        await world.ada.asks("/timezone America/New_York")
        assert "every weekday at 8:30" in await world.ada.asks("/remind every weekday at 8:30 stand up")
        listed = await world.ada.asks("/remind list")
        assert "2026-01-06 09:00 Europe/Berlin" in listed
        assert "2026-01-05 08:30 America/New_York" in listed
        assert "Add a time to 'tomorrow'" in await world.ada.asks("/remind tomorrow call")
        assert "Did you mean America/Los_Angeles" in await world.ada.asks("/timezone PST")
        assert "America/New_York" in await world.ada.asks("/status")


async def test_a_budget_restarts_at_local_midnight(tmp_path: Path) -> None:
    """Summer time starts on this day, which therefore has 23 hours."""
    clock = ManualClock(datetime(2026, 3, 29, 21, 30, tzinfo=UTC), timezone="Europe/Berlin")
    model = FakeModel(script=lambda seen: Reply("fine", usage=Usage(9_000, 10)))
    settings = {"timezone": "Europe/Berlin", "budget": {"tokens_per_day": 15_000}, "model": {"max_output_tokens": 100}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("fine")
        await clock.advance(1800)
        await world.ada.says("hi again")
        await world.happens(world.ada.thread, "turn_finished", 2)
        days = {row.day: row.usage.input_tokens for row in await world.app[Store].ledger.usage()}
        assert days == {"2026-03-30": 9_000, "2026-03-29": 9_000}
