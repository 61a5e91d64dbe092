"""The number of transactions per turn on both databases. Each is a durable write, so the numbers may only decrease."""

import inspect
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from tests.postgres import database
from tests.scenarios.kit import echo, echoes

from shoal.store.driver import Driver, Script
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Reply
from shoal.testing.scenario import scenario

T = TypeVar("T")


class CountingDriver:
    """Passes calls to a driver and records each transaction by the name of its script."""

    def __init__(self) -> None:
        self.driver: Driver
        self.noted: list[str] = []

    def around(self, driver: Driver) -> Driver:
        self.driver = driver
        return self

    async def write(self, script: Script[T]) -> T:
        assert inspect.isgenerator(script)
        self.noted.append(script.gi_code.co_name)
        return await self.driver.write(script)

    async def read(self, script: Script[T]) -> T:
        return await self.driver.read(script)

    async def close(self) -> None:
        await self.driver.close()


@pytest.fixture(
    params=[
        pytest.param("sqlite"),
        pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.xdist_group("postgres")]),
    ]
)
def settings(request: pytest.FixtureRequest) -> Generator[Mapping[str, object]]:
    if request.param == "sqlite":
        yield {}
    else:
        with database() as url:
            yield {"database": {"url": "postgresql:///?" + "&".join(url.split())}}


async def transactions(home: Path, settings: Mapping[str, object], *steps: Reply | str) -> list[str]:
    counting = CountingDriver()
    model, clock = FakeModel("hello", *steps), ManualClock()
    async with scenario(
        home, model, tools=[echo], clock=clock, settings=settings, wrap_driver=counting.around
    ) as world:
        await world.ada.says("hi")
        await world.ada.sees("hello")
        await world.rests()
        await clock.advance(2)  # Shoal waits for more lines from a person who has just written
        counting.noted.clear()
        await world.ada.says("go on")
        await world.ada.sees("done")
        await world.rests()
        return counting.noted


async def test_a_plain_turn_takes_four_transactions(tmp_path: Path, settings: Mapping[str, object]) -> None:
    found = await transactions(tmp_path, settings, "done")
    assert found == ["accept_prompt", "open_turn", "finish_turn", "posted"]


async def test_a_call_takes_two_more_transactions(tmp_path: Path, settings: Mapping[str, object]) -> None:
    """One transaction stores the message and the start of the call. The other stores the result."""
    found = await transactions(tmp_path, settings, *(echoes(str(number)) for number in range(10)), "done")
    assert found == ["accept_prompt", "open_turn", *["commit"] * 20, "finish_turn", "posted"]
