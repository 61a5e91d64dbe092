"""Budgets: a friendly stop before a ceiling is broken, a note before that, and an owner who can lift it."""

from pathlib import Path

import pytest
from tests.scenarios.kit import calls, echo

from shoal.domain.events import LimitReached, TurnFinished, TurnStarted
from shoal.domain.messages import Usage
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Reply
from shoal.testing.scenario import World, scenario


def budget(**ceilings: float | str) -> dict[str, object]:
    """Settings with these ceilings and short answers."""
    return {"budget": ceilings, "model": {"max_output_tokens": 100}}


def used(text: str, tokens: int) -> Reply:
    """An answer that took so many tokens."""
    return Reply(text, usage=Usage(tokens, 0))


async def limits(world: World) -> list[LimitReached]:
    return [event.data for event in await world.journal() if isinstance(event.data, LimitReached)]


@pytest.mark.parametrize(
    "ceiling", ["tokens_per_turn", "tokens_per_thread_day", "tokens_per_user_day", "tokens_per_agent_day",
                "tokens_per_day", "tokens_total"]
)  # fmt: skip
async def test_a_call_that_could_break_a_ceiling_is_not_made(tmp_path: Path, ceiling: str) -> None:
    async with scenario(tmp_path, FakeModel("never said"), settings=budget(**{ceiling: 50})) as world:
        await world.ada.says("hi")
        stop = await world.ada.sees("I stopped: the budget")
        assert "shoal usage lift" in stop.markdown
        assert not world.model.requests
        assert [limit.limit for limit in await limits(world)] == ["budget"]
        (finished,) = [event.data for event in await world.journal() if isinstance(event.data, TurnFinished)]
        assert finished.outcome == "limit"


async def test_a_turn_stops_between_its_steps(tmp_path: Path) -> None:
    first = Reply(calls=calls("echo", arguments='{"text": "x"}').calls, usage=Usage(1_000_000, 0))
    model = FakeModel(first, "never said")
    async with scenario(tmp_path, model, tools=(echo,), settings=budget(tokens_per_turn=500_000)) as world:
        await world.ada.says("hi")
        await world.ada.sees("I stopped: the budget")
        assert len(model.requests) == 1


async def test_what_was_used_counts_and_what_was_set_aside_does_not(tmp_path: Path) -> None:
    model = FakeModel(used("one", 7), used("two", 8))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        for text in ("one", "two"):
            await world.ada.says("hi")
            await world.ada.sees(text)
        (day,) = await world.app.store.budget.standings()
        assert (day.scope, day.tokens) == ("day", 15)


async def test_at_four_fifths_a_person_is_told_once_and_the_model_knows(tmp_path: Path) -> None:
    model = FakeModel(used("one", 850_000), used("two", 1), used("three", 1))
    async with scenario(tmp_path, model, settings=budget(tokens_per_day=1_000_000)) as world:
        for text in ("one", "two", "three"):
            await world.ada.says("hi")
            await world.ada.sees(text)
        notes = [text for text in world.chat.texts(world.ada.thread) if "A note on the budget" in text]
        assert len(notes) == 1
        told = [event.data.context for event in await world.journal() if isinstance(event.data, TurnStarted)]
        assert ["Left to spend:" in text for text in told] == [False, True, True]


async def test_the_owner_lifts_it_for_the_day(tmp_path: Path) -> None:
    clock = ManualClock()
    model = FakeModel("welcome back")
    async with scenario(tmp_path, model, clock=clock, settings=budget(tokens_per_day=50)) as world:
        await world.ada.says("hi")
        await world.ada.sees("I stopped: the budget")
        await world.app.store.budget.lift()
        await world.ada.says("again")
        await world.ada.sees("welcome back")


async def test_a_model_without_a_price_is_refused_or_let_pass(tmp_path: Path) -> None:
    async with scenario(tmp_path / "a", FakeModel("never said"), settings=budget(usd_per_day=5.0)) as world:
        await world.ada.says("hi")
        await world.ada.sees("price of")
        assert not world.model.requests
    settings = budget(usd_per_day=5.0, unpriced="allow")
    async with scenario(tmp_path / "b", FakeModel("hello"), settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")


async def test_without_a_ceiling_nothing_is_kept(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("hello")) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        assert await world.app.store.budget.standings() == []
