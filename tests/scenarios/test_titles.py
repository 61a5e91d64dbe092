"""Titles of new threads: their first words, or a suggestion of a model if that is enabled."""

import asyncio
from pathlib import Path

from shoal.store.store import Store
from shoal.testing.model import FakeModel, Refusal, Seen
from shoal.testing.scenario import SECONDS_MAX, World, scenario

ASKED = "Write the title now."


def script(seen: Seen) -> str:
    return '"The **pier** at noon."\n' if ASKED in seen.user_text else "noted"


async def titled(world: World) -> str:
    async with asyncio.timeout(SECONDS_MAX):
        while await world.app[Store].threads.is_untitled(world.ada.thread):
            await world.rests()
    return await title(world)


async def title(world: World) -> str:
    info = await world.app[Store].journal.thread(world.ada.thread)
    assert info is not None
    return info.title


def asked(model: FakeModel) -> int:
    return sum(ASKED in message.text for request in model.requests for message in request.messages)


async def test_a_thread_without_a_title_model_is_titled_by_its_first_words(tmp_path: Path) -> None:
    model = FakeModel(script=script)
    async with scenario(tmp_path, model) as world:
        await world.ada.says("meet me at the pier")
        await world.ada.sees("noted")
        await world.is_quiet()
        assert await title(world) == "meet me at the pier"
    assert asked(model) == 0


async def test_a_model_writes_the_title_once_and_its_cost_is_recorded(tmp_path: Path) -> None:
    model = FakeModel(script=script)
    async with scenario(tmp_path, model, settings={"threads": {"titles": "model"}}) as world:
        await world.ada.says("meet me at the pier")
        assert await titled(world) == "The pier at noon"
        (used,) = await world.app[Store].ledger.usage()
        assert used.calls == 2
        await world.app[Store].threads.change(world.ada.thread, title="Mine")
        await world.ada.says("again")
        await world.happens(world.ada.thread, "turn_finished", times=2)
        await world.is_quiet()
        assert await title(world) == "Mine"
    assert asked(model) == 1


async def test_an_exhausted_budget_leaves_the_first_words(tmp_path: Path) -> None:
    model = FakeModel(script=script)
    settings = {"threads": {"titles": "model"}, "budget": {"tokens_total": 1}}
    async with scenario(tmp_path, model, settings=settings) as world:
        await world.ada.says("meet me at the pier")
        await world.happens(world.ada.thread, "turn_finished")
        await world.is_quiet()
        assert await title(world) == "meet me at the pier"
    assert asked(model) == 0


async def test_a_failed_title_is_retried_after_the_next_turn(tmp_path: Path) -> None:
    away = [True]

    def finds(seen: Seen) -> str | Refusal:
        if ASKED not in seen.user_text:
            return "noted"
        return Refusal(status=529) if away.pop() else "The pier at noon"

    model = FakeModel(script=finds)
    async with scenario(tmp_path, model, settings={"threads": {"titles": "model"}}) as world:
        await world.ada.says("meet me at the pier")
        await world.happens(world.ada.thread, "turn_finished")
        await world.is_quiet()
        assert await title(world) == "meet me at the pier"
        away.append(False)
        await world.ada.says("again")
        assert await titled(world) == "The pier at noon"
