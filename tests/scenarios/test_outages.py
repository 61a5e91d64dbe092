"""Provider outages: no message is lost, and the chat shows the reason for the wait."""

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.scenarios.delegation import children_of, delegates
from tests.scenarios.kit import in_time

from shoal.features.triggers.records import NewTrigger
from shoal.features.triggers.service import TriggerService
from shoal.features.triggers.store import TriggerStore
from shoal.kernel.errors import InvalidInput
from shoal.kernel.events import Compacted, Failed, RetryScheduled, TurnFinished
from shoal.kernel.messages import Author
from shoal.kernel.ports import Models, Route
from shoal.platforms.inbox import press
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Refusal, Reply
from shoal.testing.model.script import Seen
from shoal.testing.scenario import World, scenario
from shoal.threads.access_gate import OpenInbox
from shoal.threads.orchestrator import Orchestrator

DOWN = Refusal(529, "Overloaded")
ADA = Author("ada", trusted=True)
PEOPLE, TRIGGERS = 50, 20
OUTAGE_SECONDS = 600
RECOVERY_SECONDS_MAX = 60
PARAGRAPH = "The quick brown fox jumps over the lazy dog near the river bank. " * 60


async def finished(world: World, count: int = 1) -> list[TurnFinished]:
    await world.happens(world.ada.thread, "turn_finished", count)
    return [event.data for event in await world.journal() if isinstance(event.data, TurnFinished)]


async def test_an_outage_of_twenty_minutes_is_waited_out_and_reported_once(tmp_path: Path) -> None:
    clock, down = ManualClock(), True
    model = FakeModel(script=lambda seen: DOWN if down else "here I am")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hello")
        await in_time(clock, world.ada.sees("overloaded"), 1)
        await clock.advance(20 * 60)
        first, second, *others = await world.types()
        assert (first, second, set(others)) == ("turn_started", "user_message", {"retry_scheduled"})
        down = False
        await in_time(clock, world.ada.sees("here I am"), 5)
        assert [one.outcome for one in await finished(world)] == ["done"]
        told = [text for text in world.chat.texts(world.ada.thread) if "Your message is saved" in text]
        assert not told, "the notice was changed when the model came back"
        assert [text for text in world.chat.texts(world.ada.thread) if "available again" in text] == [
            "The model is available again."
        ]


@pytest.mark.parametrize("fallback", [[], ["second"]])
async def test_a_full_conversation_is_summarized_by_the_model_that_answers(tmp_path: Path, fallback: list[str]) -> None:
    clock, down, summarises = ManualClock(), False, False

    def script(seen: Seen) -> Refusal | str:
        if down and seen.model == "first":
            return DOWN
        if "Write the summary now." in seen.user_text:
            return "much was said" if summarises else DOWN
        return f"noted: {PARAGRAPH}"

    settings = {
        "model": {"name": "first", "fallback": fallback, "context_tokens_max": 16_000, "outage_seconds": 86_400}
    }
    async with scenario(tmp_path, FakeModel(script=script), clock=clock, settings=settings) as world:
        for number in range(1, 4):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await in_time(clock, finished(world, number), 1)
        await world.rests()  # wait for the background summary
        down, summarises = True, True
        await world.ada.says(f"part 4: {PARAGRAPH}")
        if not fallback:
            await in_time(clock, world.happens(world.ada.thread, "retry_scheduled", 2), 1)
            down = False
        await in_time(clock, finished(world, 4), 5)
        types = await world.types()
        answered = len(types) - types[::-1].index("assistant_message")
        assert types[:answered].count("compacted") == 1
        summary, *_ = (one.data.summary for one in await world.journal() if isinstance(one.data, Compacted))
        assert summary.startswith("much was said")
        notes = [one.data.kind for one in await world.journal() if isinstance(one.data, Failed)]
        assert "compaction" not in notes


async def test_an_answer_after_a_failed_summary_reports_the_failure_once(tmp_path: Path) -> None:
    clock = ManualClock()

    def script(seen: Seen) -> Refusal | str:
        return DOWN if "Write the summary now." in seen.user_text else f"noted: {PARAGRAPH}"

    settings = {"model": {"context_tokens_max": 16_000}}
    async with scenario(tmp_path, FakeModel(script=script), clock=clock, settings=settings) as world:
        for number in range(1, 5):
            await world.ada.says(f"part {number}: {PARAGRAPH}")
            await in_time(clock, finished(world, number), 1)
        types = await world.types()
        assert types[-5:] == ["turn_started", "user_message", "error", "assistant_message", "turn_finished"]


async def test_messages_during_an_outage_are_queued_and_answered_in_order(tmp_path: Path) -> None:
    clock, down = ManualClock(), True
    answers = iter(["one", "two", "three"])
    model = FakeModel(script=lambda seen: DOWN if down else next(answers))
    async with scenario(tmp_path, model, clock=clock) as world:
        for text in ("first", "second", "third"):
            assert (await world.ada.says(text)).status == "accepted"
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        down = False
        await in_time(clock, world.ada.sees("three"), 5)
        assert [one.reply for one in await finished(world, 3)] == ["one", "two", "three"]


async def test_the_wait_survives_a_restart_without_becoming_shorter(tmp_path: Path) -> None:
    clock = ManualClock()
    wanted = Refusal(429, headers=(("Retry-After", "200"),))
    async with scenario(tmp_path, FakeModel(script=lambda seen: wanted), clock=clock) as world:
        await world.ada.says("hello")
        event = await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        assert isinstance(event.data, RetryScheduled)
        due = event.data.next_at
        assert (due - event.at).total_seconds() >= 200
    clock = ManualClock(start=clock.now())
    async with scenario(tmp_path, FakeModel("back"), clock=clock) as world:
        await clock.advance((due - clock.now()).total_seconds() - 1)
        assert world.model.calls == 0
        await clock.advance((due - clock.now()).total_seconds())
        await in_time(clock, world.ada.sees("back"), 1)
        assert world.model.calls == 1


async def test_setting_the_clock_back_does_not_extend_the_wait(tmp_path: Path) -> None:
    clock, down = ManualClock(), True
    model = FakeModel(script=lambda seen: DOWN if down else "back")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hello")
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        down = False
        clock.jump(-3600)
        await world.app[Orchestrator].retry_due()
        assert [one.reply for one in await finished(world)] == ["back"]


async def test_a_turn_fails_with_one_sentence_when_the_outage_limit_has_passed(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"model": {"outage_seconds": 300}}
    async with scenario(tmp_path, FakeModel(script=lambda seen: DOWN), clock=clock, settings=settings) as world:
        await world.ada.says("hello")
        await in_time(clock, world.ada.sees("overloaded"), 1)
        await in_time(clock, world.happens(world.ada.thread, "turn_finished"), 5)
        assert [one.outcome for one in await finished(world)] == ["failed"]
        events = await world.journal()
        assert (events[-1].at - events[0].at).total_seconds() >= 300
        await world.is_quiet()
        assert "did not become available" in world.chat.texts(world.ada.thread)[0]


@pytest.mark.parametrize("wait", ["9" * 400 + "s", "99999999999h"])
async def test_any_requested_wait_is_accepted(tmp_path: Path, wait: str) -> None:
    clock, down = ManualClock(), True
    refusal = Refusal(429, f"Please try again in {wait}.")
    async with scenario(tmp_path, FakeModel(script=lambda seen: refusal if down else "back"), clock=clock) as world:
        await world.ada.says("hello")
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        (retry,) = [event.data for event in await world.journal() if isinstance(event.data, RetryScheduled)]
        assert clock.now() < retry.next_at <= clock.now() + timedelta(hours=1)
        down = False
        await in_time(clock, world.ada.sees("back"), 120)


async def test_the_fallback_answers_first_and_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel(script=lambda seen: DOWN if seen.model == "first" else "the other one")
    settings = {"model": {"name": "first", "fallback": ["second"]}}
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        await world.ada.says("hello")
        posted = await in_time(clock, world.ada.sees("the other one"), 1)
        assert "second answered, because first is overloaded." in posted.markdown
        assert [one.reply for one in await finished(world)] == ["the other one"]
        assert [one.data.fatal for one in await world.journal() if isinstance(one.data, Failed)] == [False]


async def test_a_person_can_retry_switch_models_or_stop(tmp_path: Path) -> None:
    clock, broken = ManualClock(), {"demo"}
    wanted = Refusal(429, headers=(("Retry-After", "3000"),))
    model = FakeModel(script=lambda seen: wanted if seen.model in broken else f"{seen.model} says hello")
    async with scenario(tmp_path, model, clock=clock, settings={"model": {"name": "demo"}}) as world:
        await world.ada.says("one")
        posted = await in_time(clock, world.ada.sees("Your message is saved"), 1)
        assert [button.label for button in posted.buttons] == ["Try now", "Stop"]
        calls = model.calls
        assert await world.ada.asks("/retry") == "Trying again."
        await in_time(clock, model.wait_for_calls(calls + 1), 1)
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled", 2), 1)
        assert await world.ada.asks("/retry demo/other") == "Trying again."
        await world.ada.sees("demo/other says hello")

        await world.ada.says("two")
        stop = (await in_time(clock, world.ada.sees("Your message is saved"), 1)).buttons[-1]
        assert await press(stop.value, world.ada.thread, ADA, world.app[OpenInbox]) == "Stopping."
        assert [one.outcome for one in await finished(world, 2)] == ["done", "aborted"]
        assert await press(stop.value, world.ada.thread, ADA, world.app[OpenInbox]) == "That turn has ended."


async def test_an_unknown_model_is_refused_and_the_turn_keeps_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, down = ManualClock(), True
    model = FakeModel(script=lambda seen: DOWN if down else "here I am")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hello")
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        known = world.app[Models].route

        def route(name: str) -> Route:
            if name == "nope/gone":
                raise InvalidInput("No provider has the model 'nope/gone'.")
            return known(name)

        monkeypatch.setattr(world.app[Models], "route", route)
        (started,) = [event for event in await world.journal() if event.type == "turn_started"]
        told = await press(f"retry:{started.turn}:nope/gone", world.ada.thread, ADA, world.app[OpenInbox])
        assert told.startswith("No provider has the model 'nope/gone'")
        down = False
        await in_time(clock, world.ada.sees("here I am"), 60)


@pytest.mark.parametrize("tool", ["subagent", "spawn"])
async def test_a_subagents_outage_is_reported_to_its_caller_and_waited_out(tmp_path: Path, tool: str) -> None:
    clock, down = ManualClock(), True

    def answer(seen: Seen) -> Refusal | Reply | str:
        if "the leaf" in seen.user_text.partition("<context>")[0]:
            return DOWN if down else "the leaf is done"
        return "the plan is done" if seen.rounds else delegates(tool, "the leaf")

    async with scenario(tmp_path, FakeModel(script=answer), clock=clock) as world:
        await world.ada.says("plan it")
        await in_time(clock, world.ada.sees("overloaded"), 1)
        await clock.advance(20 * 60)
        await world.rests()
        (child,) = await children_of(world)
        assert "retry_scheduled" in await world.types(child)
        assert sum("overloaded" in text for text in world.chat.texts(world.ada.thread)) == 1
        down = False
        await in_time(clock, world.ada.sees("available again"), 5)
        await in_time(clock, world.ada.sees("the plan is done"), 1)
        assert [one.outcome for one in await finished(world)] == ["done"]
        await in_time(clock, world.happens(child, "turn_finished"), 1)
        ended = [event.data for event in await world.journal(child) if isinstance(event.data, TurnFinished)]
        assert [one.reply for one in ended] == ["the leaf is done"]


async def test_a_trigger_during_an_outage_waits_it_out(tmp_path: Path) -> None:
    clock, down = ManualClock(), True
    model = FakeModel(script=lambda seen: DOWN if down else "good morning")
    async with scenario(tmp_path, model, clock=clock, settings={"model": {"outage_seconds": 60}}) as world:
        await world.app[TriggerService].add(
            NewTrigger("one-shot", "2026-01-05T10:00:00+00:00", "ten", ADA, "", thread=world.ada.thread)
        )
        await clock.advance(3700)
        await in_time(clock, world.happens(world.ada.thread, "retry_scheduled"), 1)
        await clock.advance(3600)
        down = False
        await in_time(clock, world.ada.sees("good morning"), 5)
        (trigger,) = await world.app[TriggerStore].all()
        assert (trigger.state, trigger.error) == ("done", "")


async def test_a_trigger_with_a_failed_turn_is_retried_and_its_end_reported(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scenario(tmp_path, FakeModel(script=lambda seen: Refusal(401)), clock=clock) as world:
        spec = NewTrigger(
            "one-shot", "2026-01-05T10:00:00+00:00", "ten", ADA, "", thread=world.ada.thread, name="morning"
        )
        await world.app[TriggerService].add(spec)
        for count, (pause, state) in enumerate([(3540, "active"), (30, "active"), (120, "active"), (600, "failed")], 1):
            await clock.advance(pause + 61)
            await world.happens(world.ada.thread, "turn_finished", count)
            await world.is_quiet()
            (trigger,) = await world.app[TriggerStore].all()
            assert (trigger.state, trigger.failures) == (state, count)
            assert "rejected the API key" in trigger.error
        await world.ada.sees("I switched off the trigger morning")
        await clock.advance(3600)
        await world.is_quiet()
        assert len(await finished(world, 4)) == 4


async def test_a_repeatedly_failing_trigger_counts_its_failures(tmp_path: Path) -> None:
    clock, broken = ManualClock(), True
    model = FakeModel(script=lambda seen: Refusal(401) if broken else "fine")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.app[TriggerService].add(
            NewTrigger("periodic", "0 * * * *", "hourly", ADA, "", thread=world.ada.thread)
        )
        await clock.advance(3610)
        await in_time(clock, world.happens(world.ada.thread, "turn_finished", 1), 1)
        (trigger,) = await world.app[TriggerStore].all()
        assert (trigger.state, trigger.failures) == ("active", 1)
        broken = False
        await clock.advance(3600)
        await in_time(clock, world.ada.sees("fine"), 1)
        (trigger,) = await world.app[TriggerStore].all()
        assert (trigger.state, trigger.failures, trigger.error) == ("active", 0, "")


async def test_an_outage_of_ten_minutes_loses_no_message_of_a_person_or_trigger(tmp_path: Path) -> None:
    clock, down = ManualClock(), True

    def answer(seen: Seen) -> Refusal | str:
        asked = re.findall(r"\bsay (\w+)", seen.user_text.partition("<context>")[0])
        return DOWN if down else f"This is {asked[-1]}."

    async with scenario(tmp_path, FakeModel(script=answer), clock=clock) as world:
        people = {f"p{number}": world.person(f"person{number}", f"p{number}") for number in range(PEOPLE)}
        triggers = {f"t{number}": world.person("ada", f"t{number}") for number in range(TRIGGERS)}
        for number, (name, person) in enumerate(triggers.items()):
            at = clock.now() + timedelta(seconds=5 + number * OUTAGE_SECONDS / TRIGGERS)
            await world.app[TriggerService].add(
                NewTrigger("one-shot", at.isoformat(), f"say {name}", ADA, "", thread=person.thread)
            )
        for name, person in people.items():
            assert (await person.says(f"say {name}")).status == "accepted"
            await clock.advance(OUTAGE_SECONDS / PEOPLE)
            await world.rests()
        assert not [posted.markdown for posted in world.chat.posted if "This is" in posted.markdown]
        down = False
        for _ in range(RECOVERY_SECONDS_MAX):
            await clock.advance(1)
            await world.rests()
        for name, person in (people | triggers).items():
            assert (await world.types(person.thread)).count("turn_finished") == 1, name
        said = Counter(posted.markdown for posted in world.chat.posted if posted.markdown.startswith("This is"))
        assert said == Counter(f"This is {name}." for name in people | triggers)
