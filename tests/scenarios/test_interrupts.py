"""Messages during a running turn: steering, follow-ups and stops."""

from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from tests.scenarios.kit import Door, calls, echo, echoes, in_time

from shoal.agents.registry import AgentRegistry
from shoal.delivery.hub import Hub
from shoal.kernel.clock import Clock
from shoal.kernel.events import (
    ApprovalRequested,
    AssistantSaid,
    Event,
    LimitReached,
    Steered,
    ToolFinished,
    TurnFinished,
)
from shoal.kernel.messages import Abort, Author, ToolMessage, UserMessage
from shoal.kernel.traits import Traits
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Gate, Refusal, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool
from shoal.tools.registry import Registry

Data = TypeVar("Data")


async def data_of(world: World, kind: type[Data]) -> list[Data]:
    return [event.data for event in await world.journal() if isinstance(event.data, kind)]


async def test_a_steer_skips_the_rest_of_the_step(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(calls("wait", "wait", "echo"), "as you wish")
    async with scenario(tmp_path, model, tools=[door.tool(), echo]) as world:
        await world.ada.says("go")
        await door.entered.wait()
        assert (await world.ada.steers("no, the other way")).delivered
        door.open.set()
        await world.ada.sees("as you wish")
        assert [result.text for result in await data_of(world, ToolFinished)] == [
            "went through",
            "Skipped: a new message arrived.",
            "Skipped: a new message arrived.",
        ]
        assert door.left == 1
        last = model.requests[-1].messages
        assert isinstance(last[-1], UserMessage)
        assert "no, the other way" in last[-1].text
        assert [type(message) for message in last[-4:-1]] == [ToolMessage] * 3


async def test_a_steer_that_skips_many_calls_keeps_tools_available(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(calls("wait", *["echo"] * 7), echoes("this way"), "turned round")
    async with scenario(tmp_path, model, tools=[door.tool(), echo]) as world:
        await world.ada.says("go")
        await door.entered.wait()
        await world.ada.steers("the other way")
        door.open.set()
        await world.ada.sees("turned round")
        assert await data_of(world, LimitReached) == []
        assert (await data_of(world, ToolFinished))[-1].text == "this way"


async def test_denied_calls_are_not_model_errors(tmp_path: Path) -> None:
    ask = Reply(calls=(Call("bash", '{"command": "touch made"}'),))
    model = FakeModel(ask, ask, "as you like")
    settings = {"turns": {"tool_errors_in_a_row_max": 2}}
    async with scenario(tmp_path, model, profile="standard", settings=settings) as world:
        await world.ada.says("make it")
        for times in (1, 2):
            asked = await world.happens(world.ada.thread, "approval_requested", times)
            assert isinstance(asked.data, ApprovalRequested)
            await world.ada.decides(asked.data.approval_id, allow=False)
        await world.ada.sees("as you like")
        assert await data_of(world, LimitReached) == []
        assert not (world.app[AgentRegistry].spec("main").workspace / "made").exists()


async def test_a_steer_may_wait_for_the_whole_step(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(calls("wait", "wait"), "after both")
    settings = {"turns": {"steer": "finish"}}
    async with scenario(tmp_path, model, tools=[door.tool()], settings=settings) as world:
        await world.ada.says("go")
        await door.entered.wait()
        await world.ada.steers("also this")
        door.open.set()
        await world.ada.sees("after both")
        assert door.left == 2
        assert "also this" in model.requests[-1].messages[-1].text


async def test_a_steer_after_the_last_call_still_gets_a_model_call(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("almost done", gate=gate, gate_at=1), "with that too")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await gate.reached.wait()
        assert (await world.ada.steers("and that")).delivered
        gate.open()
        await world.ada.sees("with that too")
        assert world.chat.texts(world.ada.thread) == ["with that too"]
        kinds = await world.types()
        assert kinds[-4:] == ["assistant_message", "steered", "assistant_message", "turn_finished"]


async def test_a_steer_when_nothing_runs_is_dropped(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hello")) as world:
        assert (await world.ada.steers("anybody?")).status == "dropped"
        await world.ada.says("hi")
        await world.ada.sees("hello")
        assert (await world.ada.steers("late")).status == "dropped"
        assert not await data_of(world, Steered)


async def test_several_steers_arrive_in_order(tmp_path: Path) -> None:
    door = Door()
    async with scenario(tmp_path, FakeModel(calls("wait"), "ok"), tools=[door.tool()]) as world:
        await world.ada.says("go")
        await door.entered.wait()
        for text in ("one", "two", "three"):
            await world.ada.steers(text)
        door.open.set()
        await world.ada.sees("ok")
        assert [steered.text for steered in await data_of(world, Steered)] == ["one", "two", "three"]


async def test_a_follow_up_waits_for_the_end_of_the_turn(tmp_path: Path) -> None:
    door = Door()
    model = FakeModel(calls("wait", "wait"), "first part", "second part")
    async with scenario(tmp_path, model, tools=[door.tool()]) as world:
        await world.ada.says("go")
        await door.entered.wait()
        assert (await world.ada.follows_up("then sum up")).delivered
        door.open.set()
        await world.ada.sees("second part")
        assert door.left == 2
        assert model.requests[-1].messages[-1].text.endswith("then sum up")


async def test_stop_keeps_the_partial_answer_and_the_queue_continues(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("a long story begins here", gate=gate, gate_at=2), "something else")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("tell me a story")
        await gate.reached.wait()
        await world.ada.says("what else?")
        assert (await world.ada.stops()).delivered
        await world.ada.sees("something else")
        first, second = await data_of(world, TurnFinished)
        assert (first.outcome, second.outcome) == ("aborted", "done")
        said = (await data_of(world, AssistantSaid))[0]
        assert said.stop == "aborted"
        assert "a long story begins here".startswith(said.text)
        assert said.text


@pytest.mark.parametrize("where", ["another process", "this one"])
async def test_no_call_starts_after_a_stop_during_a_result_write(tmp_path: Path, where: str) -> None:
    model = FakeModel(calls("touch", "touch", "echo"), "never said")
    async with scenario(tmp_path, model, tools=[echo]) as world:
        thread = world.ada.thread

        @tool(Traits(origin="own"))
        async def touch() -> str:
            """Do some work."""
            if where == "another process":
                await world.app[Store].inbox.abort(Abort(thread, Author("ada", trusted=True)))
            return "touched"

        def stop(event: Event) -> None:
            if where == "this one" and event.type == "tool_result":
                world.app[Orchestrator].signal(thread, "abort", event.turn)

        world.app[Registry].add(touch)
        world.app[Hub].tap(stop)
        await world.ada.says("go")
        finished = await world.happens(thread, "turn_finished")
        assert isinstance(finished.data, TurnFinished)
        assert finished.data.outcome == "aborted"
        assert (await world.types()).count("tool_started") == 1
        assert [result.text for result in await data_of(world, ToolFinished)] == [
            "touched",
            "Aborted: a person stopped the turn.",
            "Aborted: a person stopped the turn.",
        ]
        assert model.calls == 1


async def test_no_parallel_call_starts_after_a_stop(tmp_path: Path) -> None:
    model = FakeModel(calls("peek", "peek"), "never said")
    async with scenario(tmp_path, model) as world:
        thread, peeked = world.ada.thread, list[str]()

        @tool(Traits(effect="read", origin="own"))
        async def peek() -> str:
            """Look."""
            peeked.append("looked")
            return "seen"

        def stop(event: Event) -> None:
            if event.type == "tool_started":
                world.app[Orchestrator].signal(thread, "abort", event.turn)

        world.app[Registry].add(peek)
        world.app[Hub].tap(stop)
        await world.ada.says("go")
        await world.happens(thread, "turn_finished")
        assert peeked == []


async def test_an_answer_finished_after_a_stop_is_kept_but_not_posted(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("the whole answer", gate=gate, gate_at=1), "the next")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("go")
        await gate.reached.wait()
        assert (await world.app[Store].inbox.abort(Abort(world.ada.thread, Author("ada", trusted=True)))).delivered
        gate.open()
        await world.happens(world.ada.thread, "turn_finished")
        (said,) = await data_of(world, AssistantSaid)
        (finished,) = await data_of(world, TurnFinished)
        assert (said.text, finished.outcome, finished.reply) == ("the whole answer", "aborted", "")
        await world.ada.says("again")
        await world.ada.sees("the next")
        assert world.chat.texts(world.ada.thread) == ["the next"]


async def test_stop_all_empties_the_queue(tmp_path: Path) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("never", gate=gate), "fresh start")) as world:
        await world.ada.says("one")
        await gate.reached.wait()
        await world.ada.says("two")
        await world.ada.stops(everything=True)
        await world.happens(world.ada.thread, "turn_finished")
        await world.ada.says("three")
        await world.ada.sees("fresh start")
        assert world.model.calls == 2


async def test_stop_during_the_line_pause_prevents_the_turn(tmp_path: Path) -> None:
    clock, settings = ManualClock(), {"mailbox": {"pause_seconds": 5.0}}
    async with scenario(tmp_path, FakeModel(script=lambda _: "Aye."), clock=clock, settings=settings) as world:
        await world.ada.says("ahoy")
        await world.ada.sees("Aye.")
        for text in ("wipe", "the disk"):
            await world.ada.says(text)
        await world.rests()
        assert (await world.ada.says("/stop")).answer == "Stopped the turn before it began."
        await clock.advance(60)
        await world.is_quiet()
        assert world.model.calls == 1
        await world.ada.says("what time is it?")
        await in_time(clock, world.happens(world.ada.thread, "turn_finished", 2), 1)
        assert "wipe" not in str(world.model.requests[-1].messages)


async def test_stop_all_drops_waiting_lines_and_says_so(tmp_path: Path) -> None:
    clock, settings = ManualClock(), {"mailbox": {"pause_seconds": 5.0}}
    async with scenario(tmp_path, FakeModel(script=lambda _: "Aye."), clock=clock, settings=settings) as world:
        await world.ada.says("ahoy")
        await world.ada.sees("Aye.")
        await world.ada.says("wipe")
        await world.rests()
        assert (await world.ada.says("/stop all")).answer == "Stopped the turn before it began."
        assert (await world.ada.says("/stop all")).answer == "Nothing is running here."
        await clock.advance(60)
        await world.is_quiet()
        assert world.model.calls == 1


async def test_stop_when_nothing_runs_does_nothing(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hi")) as world:
        assert (await world.ada.stops()).status == "dropped"


async def test_stop_kills_the_whole_process_tree(tmp_path: Path) -> None:
    marker = "431.7531"
    command = f"setsid sleep {marker} & (sleep {marker} & sleep {marker}); sleep {marker}"
    model = FakeModel(Reply(calls=(Call("bash", f'{{"command": "{command}"}}'),)), "next")

    def sleepers() -> list[psutil.Process]:
        found = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"]]
        return [process for process in found if process.info["cmdline"] == ["sleep", marker]]

    async with scenario(tmp_path, model) as world:
        await world.ada.says("run it")
        await world.happens(world.ada.thread, "tool_started")
        while len(sleepers()) < 3:
            await world.app[Clock].sleep(0.01)
        await world.ada.stops()
        await world.happens(world.ada.thread, "turn_finished")
        assert sleepers() == []
        (result,) = await data_of(world, ToolFinished)
        assert "Aborted while it ran" in result.text
        await world.ada.says("go on")
        await world.ada.sees("next")


async def test_stop_ends_a_wait_for_an_approval(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "touch made"}'),)), "fine")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("make it")
        approval = await world.ada.is_asked()
        await world.ada.stops()
        await world.happens(world.ada.thread, "turn_finished")
        kinds = await world.types()
        assert kinds[-3:] == ["approval_decided", "tool_result", "turn_finished"]
        found = await world.app[Store].approvals.get(approval.id)
        assert found is not None
        assert found.state == "cancelled"
        await world.ada.says("another thing")
        await world.ada.sees("fine")
        assert not (world.app[AgentRegistry].spec("main").workspace / "made").exists()


async def test_stop_ends_a_wait_for_the_rate_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    refusal = Refusal(429, headers=(("Retry-After", "30"),))
    async with scenario(tmp_path, FakeModel(refusal, "quick"), clock=clock) as world:
        await world.ada.says("hello")
        await world.model.wait_for_calls(1)
        await world.ada.stops()
        await world.happens(world.ada.thread, "turn_finished")
        await clock.advance(2)  # otherwise the next message would join the stopped prompt
        await world.ada.says("and now?")
        await world.ada.sees("quick")


async def test_a_steer_cancels_the_pending_approval(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "touch made"}'),)), "not then")
    async with scenario(tmp_path, model, profile="standard") as world:
        await world.ada.says("make it")
        approval = await world.ada.is_asked()
        await world.ada.steers("no, leave it")
        await world.ada.sees("not then")
        found = await world.app[Store].approvals.get(approval.id)
        assert found is not None
        assert found.state == "cancelled"


@pytest.mark.parametrize("lane", ["steer", "abort"])
async def test_signals_for_an_ended_turn_do_not_affect_the_next(tmp_path: Path, lane: str) -> None:
    gate = Gate()
    async with scenario(tmp_path, FakeModel("one", Reply("two", gate=gate))) as world:
        await world.ada.says("first")
        await world.ada.sees("one")
        first = (await world.journal())[0].turn
        await world.ada.says("second")
        await gate.reached.wait()
        world.app[Orchestrator].signal(world.ada.thread, "steer" if lane == "steer" else "abort", first)
        gate.open()
        await world.ada.sees("two")
