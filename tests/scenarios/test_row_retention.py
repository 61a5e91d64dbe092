"""One month later, old delivery rows are deleted, and the conversations continue."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.kernel.records import DeliveryStatus
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel
from shoal.testing.scenario import SECONDS_MAX, World, scenario

STARTING_SECONDS = 30.0
"""Work that starts shortly after startup has started by then."""

DAY_SECONDS = 86_400.0
PAUSES = 15


async def passes(world: World, clock: ManualClock, days: int) -> None:
    """Let days pass, and run the periodic work after each day."""
    await world.is_quiet()
    for _ in range(days):
        for seconds in (DAY_SECONDS, *(1.0,) * PAUSES):
            async with asyncio.timeout(SECONDS_MAX):
                await clock.jump_to(clock.now() + timedelta(seconds=seconds))
            await world.is_quiet()


@pytest.mark.parametrize("days", [30, 0])
async def test_old_rows_are_deleted_and_the_conversation_continues(tmp_path: Path, days: int) -> None:
    clock = ManualClock()
    settings = {"database": {"bookkeeping_days": days}}
    async with scenario(tmp_path, FakeModel("one", "two", "three"), clock=clock, settings=settings) as world:
        await world.is_quiet()
        await clock.advance(STARTING_SECONDS)
        for text, wait in (("one", 25), ("two", 7)):
            await world.ada.says(text, message_id=text)
            await world.happens(world.ada.thread, "turn_finished")
            await world.ada.sees(text)
            await passes(world, clock, wait)
        turns = [event.turn for event in await world.journal() if event.type == "turn_finished"]
        fates = [await world.app[Store].outbox.fate(f"{turn}:reply") for turn in turns]
        assert fates == [None if days else DeliveryStatus("sent"), DeliveryStatus("sent")]
        assert (await world.ada.says("two", message_id="two")).status == "duplicate"
        await world.ada.says("three", message_id="three")
        await world.ada.sees("three")
        numbers = [event.seq for event in await world.journal()]
        assert numbers == list(range(1, len(numbers) + 1))
