"""The process in which Shoal runs a plan's turns. `python -m bench.turns TASK` prints the result of each block.

TASK is JSON with a `plan` and an optional file name in `record`. With `record`, nothing is measured: the model runs in
this process, and its requests are written to the file for the bare client.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.peer.shoal.driver import Driver, write_config
from bench.plan import Block, Measured


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Counter:
    """A counter of the turns per thread. Every message gets an id that its reply must repeat."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._turns: dict[str, int] = {}

    async def turn(self, thread: str, text: str) -> bool:
        """Run a turn. Returns False if the reply has a different id."""
        number = self._turns[thread] = self._turns.get(thread, 0) + 1
        name = f"{thread}.{number}"
        return name in await self._driver.turn(thread, f"{text} id={name}")

    async def block(self, block: Block) -> int:
        """Run a block of turns, and return the number of lost replies."""

        async def run(thread: str) -> int:
            return sum([not await self.turn(thread, block.text) for _ in range(block.turns)])

        names = [block.thread] if block.threads == 1 else [f"{block.thread}{n}" for n in range(block.threads)]
        return sum(await asyncio.gather(*map(run, names)))


async def measure(plan: Sequence[Block]) -> list[Measured]:
    """Run the plan with Shoal in this process."""
    driver = Driver()
    await driver.start()
    counter = Counter(driver)
    found: list[Measured] = []
    for block in plan:
        cpu, wall = cpu_seconds(), time.perf_counter()
        lost = await counter.block(block)
        count = block.turns * block.threads
        found.append(
            Measured(
                cpu_ms=(cpu_seconds() - cpu) * 1000 / count,
                wall_ms=(time.perf_counter() - wall) * 1000 / block.turns,
                lost=lost,
            )
        )
    await driver.stop()
    return found


async def record(plan: Sequence[Block], file: Path) -> None:
    """Run the plan with a model in this process, and store the requests that it receives as one list per block."""
    from shoal.testing.model.fake import FakeModel

    async with (model := FakeModel()).serve() as url:
        write_config(Path(os.environ["SHOAL_HOME"]), url)
        driver = Driver()
        await driver.start()
        counter = Counter(driver)
        kept: list[list[str]] = []
        for block in plan:
            model.log.clear()
            await counter.block(block)
            kept.append([seen.body.decode() for seen in model.log])
        await driver.stop()
    file.write_text(json.dumps(kept))


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    blocks = [Block(*block) for block in task["plan"]]
    if "record" in task:
        asyncio.run(record(blocks, Path(task["record"])))
        print("[]")
    else:
        print(msgspec.json.encode(asyncio.run(measure(blocks))).decode())
