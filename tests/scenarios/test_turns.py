"""Complete turns: order, limits, failures, and the model's view."""

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from tests.scenarios.kit import Door, calls, crash, echo, echoes, fail

from shoal.delivery.hub import Hub
from shoal.kernel.events import (
    AssistantSaid,
    Compacted,
    Failed,
    LimitReached,
    TextStreamed,
    ThinkingStreamed,
    ToolFinished,
    TurnFinished,
)
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import ToolMessage, UserMessage
from shoal.kernel.turnstate import BROKE_OFF, CUT_SHORT
from shoal.running import Runtime
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Gate, Refusal, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator

Data = TypeVar("Data")


async def data_of(world: World, kind: type[Data]) -> list[Data]:
    return [event.data for event in await world.journal() if isinstance(event.data, kind)]


async def test_a_message_is_answered(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("Good morning.")) as world:
        assert (await world.ada.says("hello")).status == "accepted"
        await world.ada.sees("Good morning.")
        assert await world.types() == ["turn_started", "user_message", "assistant_message", "turn_finished"]


async def test_a_repeated_message_is_answered_once(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("one", "two")) as world:
        await world.ada.says("hello", message_id="m1")
        assert (await world.ada.says("hello", message_id="m1")).status == "duplicate"
        await world.ada.sees("one")
        await world.ada.says("again", message_id="m2")
        await world.ada.sees("two")
        assert world.model.calls == 2


async def test_a_second_prompt_waits_for_the_first(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("first", gate=gate), "second")) as world:
        await world.ada.says("one")
        await gate.reached.wait()
        await world.ada.says("two")
        assert world.model.calls == 1
        gate.open()
        await world.ada.sees("second")
        assert world.chat.texts(world.ada.thread) == ["first", "second"]


async def test_threads_do_not_wait_for_each_other(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("slow", gate=gate), "quick")) as world:
        bob = world.person("bob", "2")
        await world.ada.says("one")
        await gate.reached.wait()
        await bob.says("two")
        await bob.sees("quick")
        gate.open()
        await world.ada.sees("slow")


async def test_the_sixth_waiting_turn_is_refused_as_busy(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("first", gate=gate), *["more"] * 5)) as world:
        await world.ada.says("one")
        await gate.reached.wait()
        got = [(await world.person(f"p{number}", "1").says("waiting")).status for number in range(6)]
        assert got == ["accepted"] * 5 + ["busy"]
        gate.open()
        await world.happens(world.ada.thread, "turn_finished", 6)
        assert world.model.calls == 6


async def test_several_calls_of_one_message_run_in_order(tmp_path: Path) -> None:
    model = FakeModel(echoes("a", "b", "c"), "done")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        results = await data_of(world, ToolFinished)
        assert [result.text for result in results] == ["a", "b", "c"]
        seen = model.requests[-1].messages
        assert [message.text for message in seen if isinstance(message, ToolMessage)] == ["a", "b", "c"]


async def test_duplicate_or_missing_call_ids_do_not_mix_up_results(tmp_path: Path) -> None:
    once, again = Call("echo", '{"text": "once"}', "c1"), Call("echo", '{"text": "again"}', "c1")
    model = FakeModel(Reply(calls=(once, again)), Reply(calls=(once,)), "done")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        results = await data_of(world, ToolFinished)
        assert [result.text for result in results] == ["once", "again", "once"]
        assert len({result.call_id for result in results}) == 3


async def test_malformed_arguments_and_unknown_tools_are_reported_to_the_model(tmp_path: Path) -> None:
    model = FakeModel(calls("echo", arguments='{"text": '), calls("dance"), "sorry")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("sorry")
        first, second = await data_of(world, ToolFinished)
        assert first.is_error
        assert second.is_error
        assert "No tool is named 'dance'" in second.text


async def test_a_tool_exception_becomes_a_result_and_the_turn_continues(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(calls("crash"), "I see"), tools=[crash]) as world:
        await world.ada.says("go")
        await world.ada.sees("I see")
        (result,) = await data_of(world, ToolFinished)
        assert result.is_error
        assert "ZeroDivisionError" in result.text


async def test_the_step_limit_ends_with_an_answer(tmp_path: Path) -> None:
    model = FakeModel(echoes("1"), echoes("2"), "that is all I got")
    async with scenario(tmp_path, model, tools=[echo], settings={"turns": {"steps_max": 2}}) as world:
        await world.ada.says("go")
        await world.ada.sees("that is all I got")
        assert [limit.limit for limit in await data_of(world, LimitReached)] == ["steps"]
        assert model.requests[-1].tool_choice == "none"
        assert model.requests[-1].tools == model.requests[0].tools
        (finished,) = await data_of(world, TurnFinished)
        assert finished.outcome == "limit"


async def test_five_consecutive_errors_end_tool_use(tmp_path: Path) -> None:
    model = FakeModel(*[calls("fail")] * 5, "it does not work")
    async with scenario(tmp_path, model, tools=[fail]) as world:
        await world.ada.says("go")
        await world.ada.sees("it does not work")
        assert [limit.limit for limit in await data_of(world, LimitReached)] == ["tool_errors"]


async def test_calls_beyond_the_limit_do_not_run(tmp_path: Path) -> None:
    model = FakeModel(echoes("1"), Reply("stubborn", calls=echoes("2").calls))
    async with scenario(tmp_path, model, tools=[echo], settings={"turns": {"steps_max": 1}}) as world:
        await world.ada.says("go")
        await world.ada.sees("stubborn")
        assert len(await data_of(world, ToolFinished)) == 1


async def test_a_turn_that_ends_at_its_limit_without_an_answer_says_so(tmp_path: Path) -> None:
    model = FakeModel(echoes("1"), echoes("2"), "done now")
    async with scenario(tmp_path, model, tools=[echo], settings={"turns": {"steps_max": 1}}) as world:
        await world.ada.says("go")
        await world.ada.sees('I reached the step limit of this turn before I had an answer. Write "go on" to continue.')
        await world.ada.says("go on")
        await world.ada.sees("done now")


async def test_an_answer_cut_off_at_the_token_limit_is_continued(tmp_path: Path) -> None:
    model = FakeModel(Reply("once upon ", stop="max_tokens"), "a time")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("tell")
        await world.ada.sees("once upon a time")
        asked = model.requests[-1].messages[-1]
        assert isinstance(asked, UserMessage)
        assert "cut off" in asked.text


async def test_an_endlessly_cut_off_answer_is_posted_once(tmp_path: Path) -> None:
    model = FakeModel(script=lambda seen: Reply("The tide comes in twice a day, and", stop="max_tokens"))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("tell")
        await world.ada.sees(f"The tide comes in twice a day, and\n\n{CUT_SHORT}")
        assert len(model.requests) == 2


async def test_partial_text_is_posted_with_a_notice_after_the_last_attempt(tmp_path: Path) -> None:
    model = FakeModel(script=lambda seen: Reply("one two three", drop_after=2))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("tell")
        await world.ada.sees(f"one two\n\n{BROKE_OFF}")


async def test_an_unambiguous_malformed_call_runs_as_intended(tmp_path: Path) -> None:
    call = Call("functions.Echo", "{'text': 'hello',}")
    model = FakeModel(Reply(calls=(call,)), "done")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        (result,) = await data_of(world, ToolFinished)
        assert (result.name, result.is_error) == ("echo", False)


async def test_calls_of_a_cut_off_message_fail_with_the_reason(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=echoes("half").calls, stop="max_tokens"), "shorter then")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("shorter then")
        (result,) = await data_of(world, ToolFinished)
        assert result.is_error
        assert "cut off" in result.text


async def test_a_cut_off_message_with_many_calls_does_not_end_tool_use(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=echoes(*"abcdefg").calls, stop="max_tokens"), echoes("one"), "that worked")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("that worked")
        assert await data_of(world, LimitReached) == []
        assert [finished.outcome for finished in await data_of(world, TurnFinished)] == ["done"]


async def test_repeatedly_cut_off_calls_end_tool_use(tmp_path: Path) -> None:
    cut_off = Reply(calls=echoes("half").calls, stop="max_tokens")
    model = FakeModel(*[cut_off] * 5, "I cannot write it that long")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        await world.ada.says("go")
        await world.ada.sees("I cannot write it that long")
        assert [limit.limit for limit in await data_of(world, LimitReached)] == ["output_tokens"]
        assert model.requests[-1].tool_choice == "none"


async def test_an_answer_with_only_thinking_is_retried_once_and_then_reported(tmp_path: Path) -> None:
    thought = Reply("", thinking="on and on", stop="max_tokens")
    model = FakeModel(*[thought] * 9)
    async with scenario(tmp_path, model) as world:
        await world.ada.says("tell")
        await world.ada.sees(CUT_SHORT)
        assert model.calls == 2
        assert [(limit.limit, limit.detail) for limit in await data_of(world, LimitReached)] == [
            ("output_tokens", "2 answers in a row cut off at max_output_tokens")
        ]
        (finished,) = await data_of(world, TurnFinished)
        assert (finished.outcome, finished.reply) == ("limit", CUT_SHORT)
        assert "Think less" in model.requests[-1].messages[-1].text


async def test_an_empty_answer_becomes_the_default_response(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(Reply(""))) as world:
        await world.ada.says("hm")
        await world.ada.sees("I have nothing to add")


async def test_a_silent_answer_posts_nothing(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("[SILENT]", "now I speak")) as world:
        await world.ada.says("psst")
        await world.happens(world.ada.thread, "turn_finished")
        await world.ada.says("hey")
        await world.ada.sees("now I speak")
        assert world.chat.texts(world.ada.thread) == ["now I speak"]


async def test_a_rate_limit_is_waited_out_for_the_requested_time(tmp_path: Path) -> None:
    clock = ManualClock()
    refusal = Refusal(429, headers=(("Retry-After", "7"),))
    async with scenario(tmp_path, FakeModel(refusal, "here I am"), clock=clock) as world:
        await world.ada.says("hello")
        await world.model.wait_for_calls(1)
        await clock.advance(6)
        assert world.model.calls == 1
        await clock.advance(2)
        await world.ada.sees("here I am")


@pytest.mark.parametrize(("asked", "tries"), [("60", 2), ("60.5", 1), ("3600", 1), ("9" * 400, 1)])
async def test_a_wait_within_the_bound_is_honored_and_a_longer_one_fails(
    tmp_path: Path, asked: str, tries: int
) -> None:
    clock = ManualClock()
    model = FakeModel(Refusal(429, headers=(("Retry-After", asked),)), "here I am")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hello")
        await world.model.wait_for_calls(1)
        await clock.advance(62 if tries == 2 else 1)  # a waiting turn calls its model again after the wait
        await world.ada.sees("here I am" if tries == 2 else "I will retry")
        assert model.calls == tries


async def test_a_model_that_is_down_is_replaced_by_the_fallback(tmp_path: Path) -> None:
    model = FakeModel(Refusal(401), "the other one answers")
    settings = {"model": {"name": "first", "fallback": ["second"]}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("hello")
        await world.ada.sees("the other one answers")
        assert [request.model for request in model.requests] == ["first", "second"]


async def test_an_unavailable_model_gives_one_friendly_sentence(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"model": {"outage_seconds": 0}}
    model = FakeModel(*[Refusal(500)] * 4, "back again")
    async with scenario(tmp_path, model, clock=clock, settings=settings) as world:
        await world.ada.says("hello")
        for tries in range(1, 4):
            await world.model.wait_for_calls(tries)
            await clock.advance(60)
        await world.ada.sees("reported an error")
        (failed,) = await data_of(world, Failed)
        assert failed.kind == "server_error"
        await world.ada.says("still there?")
        await world.ada.sees("back again")


async def test_a_watcher_sees_streamed_pieces_in_order(tmp_path: Path) -> None:
    text = "The tide is low, and the harbour is quiet this morning."
    async with scenario(tmp_path, FakeModel(text)) as world:
        with world.app[Hub].subscribe(world.ada.thread) as coming:
            await world.ada.says("go")
            await world.happens(world.ada.thread, "turn_finished")
            coming.close()
            shown = [item.data async for item in coming if isinstance(item.data, TextStreamed)]
        assert "".join(piece.text for piece in shown) == text
        assert all(text.startswith(piece.text, piece.offset) for piece in shown)


async def test_thinking_is_shown_before_the_text_and_counted_separately(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(Reply("six", thinking="two times three"))) as world:
        with world.app[Hub].subscribe(world.ada.thread) as coming:
            await world.ada.says("go")
            await world.happens(world.ada.thread, "turn_finished")
            coming.close()
            shown = [item.data async for item in coming if isinstance(item.data, TextStreamed | ThinkingStreamed)]
        thinking = [piece for piece in shown if isinstance(piece, ThinkingStreamed)]
        assert "".join(piece.text for piece in thinking) == "two times three"
        assert shown[: len(thinking)] == thinking
        assert shown[len(thinking)].offset == 0


async def test_a_turn_is_not_listed_among_other_running_turns(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel("hello", Reply("slow", gate=gate), "quick")) as world:
        bob = world.person("bob", "2")
        await world.ada.says("zero")
        await world.ada.sees("hello")
        await world.ada.says("one")
        await gate.reached.wait()
        await bob.says("two")
        await bob.sees("quick")
        told = [request.messages[-1].text for request in world.model.requests]
        assert [world.ada.thread in text for text in told] == [False, False, True]
        assert not any("a conversation on" in text for text in told), "its own message that waits"
        gate.open()
        await world.ada.sees("slow")


async def test_calls_with_repeated_ids_all_run(tmp_path: Path) -> None:
    def echo_of(text: str) -> Call:
        return Call("echo", f'{{"text": "{text}"}}', "c1")

    model = FakeModel(Reply(calls=(echo_of("one"), echo_of("two"))), Reply(calls=(echo_of("three"),)), "done")
    async with scenario(tmp_path, model, tools=(echo,)) as world:
        await world.ada.says("go")
        await world.ada.sees("done")
        results = await data_of(world, ToolFinished)
        assert [result.text for result in results] == ["one", "two", "three"]
        assert len({result.call_id for result in results}) == 3


async def test_a_context_overflow_drops_the_oldest_turns_once(tmp_path: Path) -> None:
    overflow = Refusal(400, "This model's maximum context length is 10 tokens.", code="context_length_exceeded")
    model = FakeModel("one", "two", overflow, "three", overflow, overflow)
    async with scenario(tmp_path, model) as world:
        for number, text in enumerate(("first", "second", "third"), 1):
            await world.ada.says(text)
            await world.happens(world.ada.thread, "turn_finished", number)
        await world.ada.sees("three")
        texts = [message.text for message in model.requests[3].messages]
        assert not any(text.startswith("[ada] first") for text in texts)
        assert any(text.startswith("[ada] third") for text in texts)
        await world.ada.says("fourth")
        await world.ada.sees("too long for the model")
        assert len(await data_of(world, Compacted)) == 0
        # the next request contains the complete conversation again
        assert model.requests[4].messages[0].text.startswith("[ada] first")


async def test_read_only_calls_run_together_and_keep_their_order(tmp_path: Path) -> None:
    model = FakeModel(calls("time", "time", arguments='{"timezone": "UTC"}'), "noon")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("what time is it?")
        await world.ada.sees("noon")
        types = await world.types()
        assert types[3:7] == ["tool_started", "tool_started", "tool_result", "tool_result"]


async def test_history_survives_a_restart(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("nice to meet you")) as world:
        await world.ada.says("I am Ada")
        await world.ada.sees("nice to meet you")
    model = FakeModel("you are Ada")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("who am I?")
        await world.ada.sees("you are Ada")
        texts = [message.text for message in model.requests[0].messages]
        assert texts[0].startswith("[ada] I am Ada")
        assert texts[1] == "nice to meet you"


async def test_an_idle_thread_leaves_memory_and_is_reloaded(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel("hello", "welcome back")
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        assert world.app[Orchestrator].active == 1
        await world.is_quiet()
        while world.app[Orchestrator].active:
            await clock.advance(400)
        await world.ada.says("me again")
        await world.ada.sees("welcome back")
        assert len(model.requests[-1].messages) == 3


async def test_a_broken_agent_file_is_reported_and_the_next_message_is_answered(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("fine again")) as world:
        file = world.app[Home].agent("main") / "agent.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("modell = 'x'\n")
        await world.ada.says("hello")
        await world.ada.sees("agent.toml")
        file.write_text("")
        await world.ada.says("and now?")
        await world.ada.sees("fine again")


async def test_the_window_restarts_after_a_clear(tmp_path: Path) -> None:
    model = FakeModel("one", "two")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("first")
        await world.ada.sees("one")
        await world.app[Orchestrator].clear(world.ada.thread, "ada")
        await world.ada.says("second")
        await world.ada.sees("two")
        assert len(model.requests[-1].messages) == 1


async def test_a_drain_finishes_the_turn_and_keeps_waiting_messages(tmp_path: Path) -> None:
    door = Door()
    async with scenario(tmp_path, FakeModel(calls("wait"), "through"), tools=[door.tool()]) as world:
        await world.ada.says("go")
        await door.entered.wait()
        await world.ada.says("and then?")
        draining = asyncio.create_task(world.app[Runtime].drain())
        await asyncio.sleep(0)
        door.open.set()
        await draining
    model = FakeModel("then this")
    async with scenario(tmp_path, model, changes=("tools",)) as world:
        await world.ada.sees("then this")
        said = [event.data.text for event in await world.journal() if isinstance(event.data, AssistantSaid)]
        assert said == ["", "through", "then this"]


async def test_an_embedding_program_is_notified_when_a_turn_finishes(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    async def handle_finished(thread: ThreadId, turn: TurnId, reply: str) -> None:
        told.append((thread, reply))

    async with scenario(tmp_path, FakeModel("for the record"), on_complete=handle_finished) as world:
        await world.ada.says("hello")
        await world.ada.sees("for the record")
    assert told == [(world.ada.thread, "for the record")]


async def test_a_completion_callback_that_fails_is_logged_and_called_for_the_next_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def register(thread: ThreadId, turn: TurnId, reply: str) -> Awaitable[None]:
        """Fail at the call the first time, fail in the awaitable the second time, then succeed."""
        called.append(reply)
        if len(called) == 1:
            raise ValueError("the register is closed")

        async def count() -> None:
            if len(called) == 2:
                raise asyncio.CancelledError

        return count()

    async with scenario(tmp_path, FakeModel("one", "two", "three"), on_complete=register) as world:
        for words in ("one", "two", "three"):
            await world.ada.says(words)
            await world.ada.sees(words)
        assert world.app[Runtime].state == "running"
    assert called == ["one", "two", "three"]
    failed = [record for record in caplog.records if record.getMessage().startswith("completion callback failed")]
    assert [record.levelname for record in failed] == ["ERROR"] * 2
    assert "the register is closed" in caplog.text


async def test_a_damaged_thread_does_not_stop_the_others(tmp_path: Path) -> None:
    model = FakeModel("one", "two")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("hello")
        await world.ada.sees("one")
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as database:
        database.execute("update events set data = '{\"text\": 5}' where type = 'user_message'")
        database.commit()
    async with scenario(tmp_path, model, replays=False) as world:
        bob = world.person("bob", "2")
        await world.ada.says("still there?")
        await bob.says("hello")
        await bob.sees("two")


async def test_conversation_memory_is_bounded_without_losing_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.threads.orchestrator.HELD_BYTES_MAX", 3000)
    answers = [f"noted {number}" for number in range(12)]
    async with scenario(tmp_path, FakeModel(*answers)) as world:
        people = [world.person(f"p{number}", f"t{number}") for number in range(3)]
        for number, answer in enumerate(answers):
            person = people[number % 3]
            await person.says(f"{number} from {person.name}")
            await person.sees(answer)
        assert world.app[Orchestrator].active < len(people)
        asked = [message.text for message in world.model.requests[-1].messages if isinstance(message, UserMessage)]
        assert [text for number in (2, 5, 8, 11) for text in asked if f"{number} from p2" in text] == asked
