"""Subagents: turns that other turns start, with limits, and across crashes, stops and approvals."""

from pathlib import Path

from tests.scenarios.delegation import cast, children_of, delegates, results
from tests.scenarios.kit import Door, calls

from shoal.agents.registry import AgentRegistry
from shoal.backend import Backend
from shoal.kernel.clock import Clock
from shoal.kernel.events import TurnFinished
from shoal.kernel.messages import Abort, Author, ToolMessage
from shoal.store.store import Store
from shoal.testing.model import Gate, Reply
from shoal.testing.scenario import scenario
from shoal.threads.orchestrator import Orchestrator

COMMAND = '{"command": "echo x >> log"}'


async def test_subagents_of_one_message_run_in_parallel_and_answer_in_order(tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    model = cast(
        plan=[delegates("subagent", "red one", "blue one"), "both"],
        red=[Reply("is red", gate=first)],
        blue=[Reply("is blue", gate=second)],
    )
    async with scenario(tmp_path, model) as world:
        await world.ada.says("plan it")
        await first.reached.wait()
        await second.reached.wait()
        second.open()
        _, blue = await children_of(world)
        await world.happens(blue, "turn_finished")
        first.open()
        await world.ada.sees("both")
        said = [message.text for message in world.model.requests[-1].messages if isinstance(message, ToolMessage)]
        assert [text.split("\n")[1] for text in said] == ["is red", "is blue"]


async def test_a_waiting_parent_occupies_no_worker(tmp_path: Path) -> None:
    gate = Gate()
    model = cast(plan=[delegates("subagent", "slow"), "done"], slow=[Reply("at last", gate=gate)])
    async with scenario(tmp_path, model) as world:
        await world.ada.says("plan it")
        await gate.reached.wait()
        (child,) = await children_of(world)
        while world.app[Backend].engine.running > 1:
            await world.app[Clock].sleep(0.01)
        assert [work.thread for work in await world.app[Store].registry.at_work()] == [world.ada.thread, child]
        gate.open()
        await world.ada.sees("done")


async def test_a_sixth_subagent_waits(tmp_path: Path) -> None:
    gate = Gate()
    tasks = [f"slow {number}" for number in range(6)]
    model = cast(plan=[delegates("spawn", *tasks), "some started"], slow=[Reply("done", gate=gate)])
    async with scenario(tmp_path, model) as world:
        await world.ada.says("plan it")
        await world.ada.sees("some started")
        found = await results(world)
        assert [result.is_error for result in found] == [False] * 5 + [True]
        assert "running subagents (5)" in found[-1].text
        assert len(await children_of(world)) == 5
        gate.open()


async def test_calls_nest_three_deep(tmp_path: Path) -> None:
    model = cast(
        level0=[delegates("subagent", "level1"), "top"],
        level1=[delegates("subagent", "level2"), "one"],
        level2=[delegates("subagent", "level3"), "two"],
        level3=[delegates("subagent", "level4"), "three"],
    )
    async with scenario(tmp_path, model) as world:
        await world.ada.says("level0")
        await world.ada.sees("top")
        (one,) = await children_of(world)
        (two,) = await children_of(world, one)
        (three,) = await children_of(world, two)
        assert await children_of(world, three) == []
        (refused,) = await results(world, three)
        assert refused.is_error
        assert "3 deep" in refused.text


async def test_a_message_to_the_waiting_turn_stops_the_subagent(tmp_path: Path) -> None:
    door = Door()
    model = cast(plan=[delegates("subagent", "leaf")], leaf=[calls("wait")], never=["As you wish."])
    async with scenario(tmp_path, model, tools=[door.tool()]) as world:
        await world.ada.says("plan it")
        await door.entered.wait()
        await world.ada.steers("never mind")
        await world.ada.sees("As you wish.")
        (leaf,) = await children_of(world)
        ended = (await world.happens(leaf, "turn_finished")).data
        assert isinstance(ended, TurnFinished)
        assert ended.outcome == "aborted"
        assert (await results(world))[0].text.startswith("Skipped")


async def test_a_childs_approval_reaches_the_person_and_survives_a_restart(tmp_path: Path) -> None:
    roles = {
        "plan": [delegates("subagent", "make it"), "made"],
        "make": [calls("bash", arguments=COMMAND), "written"],
    }
    async with scenario(tmp_path, cast(**roles), profile="standard") as world:
        await world.ada.says("plan it")
        await world.ada.sees("echo x >> log")
        (child,) = await children_of(world)
        (approval,) = await world.app[Store].approvals.search()
        assert approval.thread == child
    async with scenario(tmp_path, cast(**roles), profile="standard") as world:
        assert await world.ada.decides(approval.id, allow=True) == "allow"
        await world.ada.sees("made")
        assert (world.app[AgentRegistry].spec("main").workspace / "log").read_text() == "x\n"


async def test_a_stopped_subagent_is_reported_as_stopped(tmp_path: Path) -> None:
    door = Door()
    model = cast(plan=[delegates("subagent", "leaf"), "It was stopped."], leaf=[calls("wait")])
    async with scenario(tmp_path, model, tools=[door.tool()]) as world:
        await world.ada.says("plan it")
        await door.entered.wait()
        (leaf,) = await children_of(world)
        await world.app[Orchestrator].send(Abort(leaf, Author("owner", trusted=True)))
        await world.ada.sees("It was stopped.")
        (result,) = await results(world)
        assert result.is_error
        assert "was stopped" in result.text


async def test_a_subagents_costs_are_charged_to_its_callers_thread(tmp_path: Path) -> None:
    model = cast(plan=[delegates("subagent", "count the boats"), "seven"], count=["seven boats"])
    async with scenario(tmp_path, model, settings={"budget": {"tokens_per_thread_day": 10_000_000}}) as world:
        await world.ada.says("plan it")
        await world.ada.sees("seven")
        (child,) = await children_of(world)
        used: list[int] = []
        for thread in (world.ada.thread, child):
            ended = (await world.happens(thread, "turn_finished")).data
            assert isinstance(ended, TurnFinished)
            used.append(ended.usage.input_tokens + ended.usage.output_tokens)
        found = {one.scope: one.tokens for one in await world.app[Store].budget.standings()}
        assert found[f"thread:{child}"] == used[1]
        assert found[f"thread:{world.ada.thread}"] == sum(used)
