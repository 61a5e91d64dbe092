"""Turns that start by themselves: reminders, event files, schedules."""

import json
from pathlib import Path

from shoal.domain.records import NewTrigger
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario


async def test_a_reminder_comes_when_it_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    remind = Reply(calls=(Call("remind", '{"when": "in 10 minutes", "text": "stretch"}'),))
    model = FakeModel(remind, "I will.", "Time to stretch!")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("remind me in 10 minutes to stretch")
        await world.ada.sees("I will.")
        await clock.advance(9 * 60)
        assert world.model.calls == 2
        await clock.advance(2 * 60)
        await world.ada.sees("Time to stretch!")
        assert "stretch" in model.requests[-1].messages[-1].text


async def test_a_reminder_outlives_a_restart(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("unused"), clock=ManualClock()) as world:
        spec = NewTrigger("one-shot", "2026-01-05T10:00:00+00:00", "it is ten", thread=world.ada.thread)
        await world.app.add_trigger(spec)
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("ten o'clock"), clock=clock) as world:
        await clock.advance(3700)
        await world.ada.sees("ten o'clock")
        await clock.advance(7200)
        assert world.model.calls == 1


async def test_an_event_file_starts_a_turn_once(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("the file said so")) as world:
        event = {"type": "immediate", "threadId": world.ada.thread, "text": "something happened"}
        world.app.home.events.mkdir(parents=True, exist_ok=True)
        (world.app.home.events / "signal.json").write_text(json.dumps(event))
        await world.ada.sees("the file said so")
        assert world.model.calls == 1
