"""Automatic turns: reminders, event files and schedules."""

import itertools
import json
from datetime import timedelta
from pathlib import Path

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.errors import PlatformError
from shoal.kernel.home import Home
from shoal.kernel.messages import Author
from shoal.permissions.access import AccessRules
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario


async def test_a_reminder_runs_when_due(tmp_path: Path) -> None:
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


async def test_a_reminder_survives_a_restart(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("unused"), clock=ManualClock()) as world:
        spec = NewTrigger(
            "one-shot",
            "2026-01-05T10:00:00+00:00",
            "it is ten",
            thread=world.ada.thread,
            author=Author("owner", trusted=True),
            tainted_by="",
        )
        await world.app[TriggerService].add(spec)
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("ten o'clock"), clock=clock) as world:
        await clock.advance(3700)
        await world.ada.sees("ten o'clock")
        await clock.advance(7200)
        assert world.model.calls == 1


async def test_an_event_file_starts_a_turn_once(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("the file said so")) as world:
        event = {"type": "immediate", "threadId": world.ada.thread, "text": "something happened"}
        (world.app[Home].events / "signal.json").write_text(json.dumps(event))  # Shoal creates the folder at startup
        await world.ada.sees("the file said so")
        assert world.model.calls == 1


async def test_a_start_succeeds_without_the_event_directory(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "events").symlink_to(tmp_path / "away")
    async with scenario(tmp_path, FakeModel("here")) as world:
        await world.ada.says("hello")
        await world.ada.sees("here")


async def test_people_and_the_agent_see_and_cancel_the_same_schedules(tmp_path: Path) -> None:
    def schedule(**arguments: str) -> Reply:
        return Reply(calls=(Call("schedule", json.dumps(arguments)),))

    create = schedule(do="create", when="0 9 * * 1-5", text="stand up", timezone="Europe/Berlin")
    model = FakeModel(create, "Made.", schedule(do="list"), "Listed.")
    async with scenario(tmp_path, model, clock=ManualClock()) as world:
        await world.ada.says("every morning")
        await world.ada.sees("Made.")
        told = await world.ada.asks("/remind in 2 hours stretch")
        assert "is due at 2026-01-05 11:00 UTC" in told
        listed = await world.ada.asks("/remind list")
        assert "stand up" in listed
        assert "stretch" in listed
        assert await world.person("bob", "2").asks("/remind list") == "Nothing is scheduled here."
        await world.ada.says("what is there?")
        await world.ada.sees("Listed.")
        assert "stretch" in model.requests[-1].messages[-1].text
        (own,) = [one for one in await world.app[TriggerStore].all() if one.spec.text == "stand up"]
        assert "stand up" in await world.ada.asks(f"/remind cancel {own.id[-6:]}")
        assert [one.spec.text for one in await world.app[TriggerStore].all()] == ["stretch"]


async def test_a_paused_schedule_does_not_run_until_it_is_resumed(tmp_path: Path) -> None:
    def schedule(**arguments: str) -> Reply:
        return Reply(calls=(Call("schedule", json.dumps(arguments)),))

    clock = ManualClock()
    model = FakeModel(schedule(do="create", when="0 * * * *", text="look"), "Made.", "Looked.")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hourly")
        await world.ada.sees("Made.")
        (made,) = await world.app[TriggerStore].all()
        model.add(schedule(do="pause", id=made.id))
        model.add("Paused.")
        await clock.advance(3601)
        await world.ada.sees("Looked.")
        await world.ada.says("pause it")
        await world.ada.sees("Paused.")
        await clock.advance(3 * 3600)
        assert world.model.calls == 5
        model.add(schedule(do="resume", id=made.id))
        model.add("Resumed.")
        model.add("Looked again.")
        await world.ada.says("go on")
        await world.ada.sees("Resumed.")
        await clock.advance(3601)
        await world.ada.sees("Looked again.")


async def test_a_schedule_of_another_conversation_is_not_found(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("unused"), clock=ManualClock()) as world:
        await world.ada.asks("/remind in 2 hours stretch")
        (made,) = await world.app[TriggerStore].all()
        bob = world.person("bob", "2")
        assert "does not match exactly one reminder" in await bob.asks(f"/remind cancel {made.id[-6:]}")
        assert len(await world.app[TriggerStore].all()) == 1
        assert "Write the time first" in await bob.asks("/remind soon stretch")
        assert "has passed" in await bob.asks("/remind 2020-01-01T09:00 stretch")


async def test_a_failing_trigger_backs_off_is_disabled_and_reported(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(script=lambda seen: "here" if "are you there" in seen.user_text else "looked")
    async with scenario(tmp_path, model, clock=clock, access=AccessRules(owners=("ada",))) as world:
        ada = world.person("ada", "1", "dm-ada", direct=True)
        await ada.says("are you there?")
        await ada.sees("here")
        await clock.advance(30)  # after the checks that run once after startup
        spec = NewTrigger(
            "periodic",
            "* * * * *",
            "look",
            platform="gone",
            channel="5",
            name="lookout",
            author=Author("owner", trusted=True),
            tainted_by="",
        )
        await world.app[TriggerService].add(spec)
        await world.is_quiet()
        failed_at: list[float] = []
        while (found := (await world.app[TriggerStore].all())[0]).state == "active":
            await clock.jump_to(max(clock.now(), found.next_at or clock.now()))
            await world.is_quiet()
            failed_at.append(clock.monotonic() / 60)
        pauses = [after - before for before, after in itertools.pairwise(failed_at)]
        assert pauses == [1, 3, 5, 9], "the next minute, and then not before 2, 4 and 8 more have passed"
        told = await ada.sees("switched off")
        assert told.markdown.startswith("I switched off the trigger lookout because it failed: ")


async def test_a_channel_trigger_waits_for_its_platform_and_answers_in_its_thread(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("I take in sail."), clock=clock) as world:
        away = PlatformError("The platform is away.")
        world.chat.troubles.extend([away] * 5)
        at = (clock.now() + timedelta(minutes=5)).isoformat()
        await world.app[TriggerService].add(
            NewTrigger(
                "one-shot",
                at,
                "A storm.",
                platform="fake",
                channel="harbour",
                author=Author("owner", trusted=True),
                tainted_by="",
            )
        )
        await world.is_quiet()
        await clock.advance(300)
        while not world.chat.posted:
            await clock.advance(0.5)
            await world.app[Store].outbox.depth()
        await world.is_quiet()
        posted, answer = world.chat.posted
        assert (posted.markdown, answer.markdown) == ("A storm.", "I take in sail.")
        assert posted.post.thread == answer.post.thread
        assert not world.chat.troubles
        ((state, error),) = [(one.state, one.error) for one in await world.app[TriggerStore].all()]
        assert (state, error) == ("done", "")


async def test_a_refused_one_time_trigger_is_disabled_and_the_owner_informed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel("here"), clock=clock, access=AccessRules(owners=("ada",))) as world:
        ada = world.person("ada", "1", "dm-ada", direct=True)
        await ada.says("are you there?")
        await ada.sees("here")
        world.chat.troubles.append(PlatformError("No such channel.", permanent=True))
        at = (clock.now() + timedelta(minutes=5)).isoformat()
        spec = NewTrigger(
            "one-shot",
            at,
            "A storm.",
            platform="fake",
            channel="harbour",
            name="storm",
            author=Author("owner", trusted=True),
            tainted_by="",
        )
        await world.app[TriggerService].add(spec)
        await clock.advance(360)
        await ada.sees("I switched off the trigger storm because it failed: No such channel.")
        (trigger,) = await world.app[TriggerStore].all()
        assert (trigger.state, trigger.failures, trigger.error) == ("failed", 1, "No such channel.")
        assert world.model.calls == 1
