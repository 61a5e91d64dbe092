"""A process that stages three calls, accepts two of them, and is killed at a chosen write.

`python -m tests.scenarios.staging_life FOLDER SIDE AT` continues from the state that an earlier process left. It
ends when the accepted calls are finished. AT 0 means no kill.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from tests.scenarios.test_staging import STANDARD, Outside, sends

from shoal.kernel.errors import Conflict
from shoal.store.store import Store
from shoal.testing.faults import KillingDriver, Side
from shoal.testing.model import FakeModel, Reply, Seen
from shoal.testing.scenario import scenario
from shoal.threads.orchestrator import Orchestrator


def says(seen: Seen) -> Reply | str:
    return "prepared" if any("Staged" in message.text for message in seen.messages) else sends("one", "two", "three")


async def main(folder: Path, side: Side, at: int, *, idempotent: bool) -> None:
    model, outside = FakeModel(), Outside(folder / "sent", idempotent=idempotent)
    model.follow(says)
    async with scenario(
        folder,
        model,
        settings=STANDARD,
        tools=[outside.tool()],
        wrap_driver=lambda driver: KillingDriver(driver, side, at) if at else driver,
        replays=False,
    ) as world:
        await world.ada.says("write to three people", message_id="m1")
        await world.happens(world.ada.thread, "turn_finished")
        for asked in await world.app[Store].approvals.search(thread=world.ada.thread):
            with suppress(Conflict):
                await world.app[Orchestrator].decide_card(asked.item.card, True, world.ada.asker, (1, 3))
        await world.happens(world.ada.thread, "turn_finished", 2)


if __name__ == "__main__":
    side: Side = "before" if sys.argv[2] == "before" else "after"
    asyncio.run(main(Path(sys.argv[1]), side, int(sys.argv[3]), idempotent=sys.argv[4:] == ["idempotent"]))
