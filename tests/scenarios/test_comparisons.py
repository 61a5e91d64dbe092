"""Comparisons of recorded model calls with another model: no tool runs, limits apply, and finished calls are kept."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from tests.scenarios.kit import in_time

from shoal.features.evals.answers import Wanted
from shoal.features.evals.comparisons import ComparedStep, ComparisonProgress, Comparisons
from shoal.kernel.clock import Clock
from shoal.kernel.errors import InvalidInput, NotFound
from shoal.kernel.messages import ModelRequest, Usage
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import Route
from shoal.kernel.records import Ceiling
from shoal.kernel.traits import Traits
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Gate, Refusal, Reply
from shoal.testing.scenario import FakeModels, World, scenario
from shoal.threads.forks import Forks
from shoal.tools.functions import tool
from shoal.tools.registry import Registry
from shoal.turn.spending import Spending

OWNER = Asker(trust="owner", user="owner", platform="web")
LIST = Reply(calls=(Call("list", '{"path": "."}'),))


class PricedModels(FakeModels):
    def usd(self, route: Route, usage: Usage) -> float | None:
        return (usage.input_tokens + usage.output_tokens) / 1000


def comparisons(world: World, *, priced: bool = False) -> Comparisons:
    app, spending = world.app, world.app[Spending]
    if priced:
        spending = msgspec.structs.replace(spending, models=PricedModels(world.model))
    return msgspec.structs.replace(app[Comparisons], spending=spending)


def told(request: ModelRequest) -> list[tuple[str, str, str]]:
    return [(one.name, one.description, one.parameters) for one in request.tools]


async def run(service: Comparisons, wanted: Wanted, usd_max: float = 0.0) -> list[ComparisonProgress]:
    state = await service.begin(wanted, usd_max)
    return [one async for one in service.run(await service.get(state.id), OWNER)]


async def detail(service: Comparisons, wanted: Wanted) -> list[ComparedStep]:
    state = await service.begin(wanted, 0.0)
    return await service.detail(await service.get(state.id))


async def test_each_recorded_request_is_repeated_and_no_tool_runs(tmp_path: Path) -> None:
    model = FakeModel(LIST, "Nothing there.", LIST, "Nothing there!")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("look around")
        await world.ada.sees("Nothing there.")
        wanted = Wanted("other", thread=world.ada.thread)
        done = await run(comparisons(world), wanted)
        assert sorted(one.difference for one in done) == ["same", "words"]
        sent = [(request.system, request.messages[0].text, told(request)) for request in model.requests]
        assert sent[0] == sent[2]
        assert sent[1] == sent[3]
        assert [event.type for event in await world.journal()].count("tool_started") == 1
        first, second = await detail(comparisons(world), wanted)
        assert (first.number, first.recorded.calls[0].name, first.asked) == (1, "list", "look around")
        assert second.answers[0].answer.text == "Nothing there!"


async def test_an_answer_says_how_long_it_took(tmp_path: Path) -> None:
    clock, gate = ManualClock(), Gate()
    model = FakeModel("Nothing there.", Reply("Nothing!", gate=gate))
    async with scenario(tmp_path, model, clock=clock) as world:
        await world.ada.says("look around")
        await in_time(clock, world.ada.sees("Nothing there."))
        wanted = Wanted("other", thread=world.ada.thread)
        running = asyncio.ensure_future(run(comparisons(world), wanted))
        await gate.reached.wait()
        await clock.advance(7)
        gate.open()
        await running
        (step,) = await detail(comparisons(world), wanted)
        assert step.answers[0].answer.seconds == 7.0


async def test_repeating_a_comparison_continues_with_missing_answers(tmp_path: Path) -> None:
    model = FakeModel(*["one", "two", "three", "four", "five", "six"], "1", "2", "3", "4", "5", "6")
    async with scenario(tmp_path, model) as world:
        for word in ("one", "two", "three", "four", "five", "six"):
            await world.ada.says(word)
            await world.ada.sees(word)
        service, wanted = comparisons(world), Wanted("other", last=6)
        state = await service.begin(wanted, 0.0)
        async with aclosing(service.run(await service.get(state.id), OWNER)) as running:
            first = await anext(running)
        asked = len(model.requests)
        assert first.done == 1
        assert asked < 12
        again = await service.begin(wanted, 0.0)
        assert (again.id, again.done) == (state.id, asked - 6)
        left = [one async for one in service.run(await service.get(state.id), OWNER)]
        assert left[-1].done == 6
        assert len(model.requests) == 12
        more = await service.begin(Wanted("other", last=6, runs=2), 0.0)
        assert (more.id, more.done, more.calls) == (state.id, 6, 12)


async def test_a_failed_call_is_repeated(tmp_path: Path) -> None:
    model = FakeModel("hello", Refusal(400, "no"), "hello")
    async with scenario(tmp_path, model) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        service, wanted = comparisons(world), Wanted("other", thread=world.ada.thread)
        assert [one.difference for one in await run(service, wanted)] == ["failed"]
        assert (await service.begin(wanted, 0.0)).done == 0
        assert [one.difference for one in await run(service, wanted)] == ["same"]


async def test_only_missing_answers_are_estimated(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hello", "hello")) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        service, wanted = comparisons(world, priced=True), Wanted("other", last=1)
        assert (await service.begin(wanted, 100.0)).estimated_usd
        await run(service, wanted, 100.0)
        assert not (await service.begin(wanted, 100.0)).estimated_usd


async def test_a_comparison_stays_within_its_limit(tmp_path: Path) -> None:
    model = FakeModel("one", "two", *["again"] * 9)
    async with scenario(tmp_path, model) as world:
        for word in ("one", "two"):
            await world.ada.says(word)
            await world.ada.sees(word)
        service, wanted = comparisons(world, priced=True), Wanted("other", last=2)
        estimate = (await service.begin(wanted, 0.0)).estimated_usd or 0.0
        done = await run(service, wanted, estimate / 100)
        assert [bool(one.stopped) for one in done] == [True]
        assert "Raise the limit" in done[0].stopped
        await world.app[Store].budget.lift()
        assert (await run(service, wanted, estimate / 100))[0].stopped
        assert len(model.requests) == 2
        assert len(await run(service, wanted, estimate * 100)) == 2
        spent = [row for row in await world.app[Store].ledger.usage() if row.model == "other"]
        assert spent[0].calls == 2


async def test_a_comparison_respects_the_owners_limits(tmp_path: Path) -> None:
    model = FakeModel("one")
    async with scenario(tmp_path, model, settings={"budget": {"tokens_per_day": 20_000}}) as world:
        await world.ada.says("one")
        await world.ada.sees("one")
        spent = Ceiling("day", world.app[Clock].now().date().isoformat(), 0.0, 20_000)
        charge = (await world.app[Store].budget.standings([("day", spent.day)]))[0]
        assert charge.tokens < 20_000
        done = await run(comparisons(world), Wanted("other", thread=world.ada.thread, runs=20))
        assert "budget" in done[-1].stopped
        assert len(model.requests) < 8


async def test_a_comparison_filters_by_tag_and_accepts_other_instructions(tmp_path: Path) -> None:
    model = FakeModel("one", "two", "1", "1")
    async with scenario(tmp_path, model) as world:
        other = world.person("ben", "2")
        await world.ada.says("first")
        await world.ada.sees("one")
        await other.says("second")
        await other.sees("two")
        await world.app[Store].threads.change(other.thread, title="A question #boats")
        service = comparisons(world)
        (step,) = await detail(service, Wanted("other", tag="Boats"))
        assert step.thread == other.thread
        await run(service, Wanted("other", tag="boats", system="You are brief.", profile="locked"))
        request = model.requests[-1]
        assert "You are brief." in request.system
        assert "bash" not in [name for name, *_ in told(request)]
        with pytest.raises(NotFound, match="#tides"):
            await service.begin(Wanted("other", tag="tides"), 0.0)


async def test_calls_copied_by_a_fork_are_compared_once(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("one", "two", "three", "four")) as world:
        for word in ("one", "two"):
            await world.ada.says(word)
            await world.ada.sees(word)
        copy = world.person("ada", "2")
        await world.app[Forks].fork(world.ada.thread, copy.thread, "ada")
        await copy.says("three")
        await copy.sees("three")
        await world.ada.says("four")
        await world.ada.sees("four")
        for thread in (world.ada.thread, copy.thread):
            await world.app[Store].threads.change(thread, title="Sea #tide")
        for wanted in (Wanted("other", last=9), Wanted("other", tag="tide")):
            steps = await detail(comparisons(world), wanted)
            assert [(one.thread, one.asked.split()[0]) for one in steps] == [
                (world.ada.thread, "one"), (world.ada.thread, "two"), (copy.thread, "three"),
                (world.ada.thread, "four"),
            ]  # fmt: skip
        assert len(await detail(comparisons(world), Wanted("other", thread=copy.thread))) == 3


async def test_deleting_a_thread_deletes_its_comparison_answers(tmp_path: Path) -> None:
    model = FakeModel("one", "1")
    async with scenario(tmp_path, model, replays=False) as world:
        await world.ada.says("first")
        await world.ada.sees("one")
        service, wanted = comparisons(world), Wanted("other", last=1)
        await run(service, wanted)
        state = await service.begin(wanted, 0.0)
        await world.is_quiet()
        await world.app[Store].threads.delete(world.ada.thread, "owner", "")
        assert await world.app[Comparisons].rows.answers(state.id) == {}
        assert await service.detail(await service.get(state.id)) == []


async def test_a_limit_in_dollars_needs_a_price(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("one")) as world:
        await world.ada.says("hi")
        await world.ada.sees("one")
        with pytest.raises(InvalidInput, match="--usd-max 0"):
            await comparisons(world).begin(Wanted("other", last=1), 1.0)
        for wrong in (
            Wanted("other", thread="fake:harbour:9"), Wanted("other", tag="x"), Wanted("other", last=1, profile="x"),
        ):  # fmt: skip
            with pytest.raises((InvalidInput, NotFound), match=r"No thread|does not exist|No permission profile"):
                await comparisons(world).begin(wrong, 1.0)
        with pytest.raises(InvalidInput, match="Specify exactly one of these"):
            await comparisons(world).begin(Wanted("other"), 0.0)


async def test_a_comparison_uses_the_recorded_tools(tmp_path: Path) -> None:
    @tool(Traits(origin="own"))
    def ring(bell: str) -> str:
        return bell

    model = FakeModel("one", "1")
    async with scenario(tmp_path, model, tools=(ring,), changes=("tools",)) as world:
        await world.ada.says("first")
        await world.ada.sees("one")
        world.app[Registry].remove("ring")
        await run(comparisons(world), Wanted("other", last=1))
        assert "ring" in [name for name, *_ in told(model.requests[1])]
