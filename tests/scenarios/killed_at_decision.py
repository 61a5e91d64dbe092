"""A process that requests approval for three calls, stores a decision, and is killed before any of them runs.

`python -m tests.scenarios.killed_at_decision FOLDER NUMBER…` allows the calls with the given numbers.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.scenarios.test_card_of_calls import CAREFUL, asked, bash, line

from shoal.store.approvals import card_verdicts
from shoal.store.store import Store
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario


async def main(folder: Path, numbers: list[int]) -> None:
    async with scenario(folder, FakeModel(bash(line(1), line(2), line(3))), settings=CAREFUL) as world:
        await world.ada.says("go")
        calls = await asked(world, 3)
        verdicts = card_verdicts(calls, bool(numbers), numbers)
        await world.app[Store].approvals.record_decisions(
            verdicts, "once", "ada", "trusted", platform=world.chat.platform
        )
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]]))
