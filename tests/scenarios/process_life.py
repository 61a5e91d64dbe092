"""A Shoal whose agent starts a process. Shoal is killed at a chosen durable write.

`python -m tests.scenarios.process_life` reads one `Life` per line of standard input, as JSON. It runs each in a
forked child and prints the `Outcome` (see `shoal.testing.crash`).
"""

import asyncio
import json
from pathlib import Path

import msgspec

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.features.processes.service import ProcessService
from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.sandbox.host import HostSandbox
from shoal.services import Services
from shoal.store.driver import Driver
from shoal.store.store import Store
from shoal.testing.chat import OPEN, FakeChat, Posted
from shoal.testing.crash import World, serve_forked
from shoal.testing.faults import KillingDriver, Side
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import FakeModels
from shoal.threads.orchestrator import Orchestrator

THREAD: ThreadId = make_thread_id("fake", "harbour", "1")
SECONDS_MAX = 60.0
DEATH = "the end"


class Life(msgspec.Struct, frozen=True):
    """One run.

    - `command`, `hooks`: the process that the agent starts.
    - `at`: the durable write at which Shoal is killed, or 0 for no kill.
    """

    home: str
    world: str
    command: str
    hooks: list[dict[str, object]]
    side: Side = "before"
    at: int = 0
    asks: bool = True


async def live(life: Life) -> int:
    """Send one message and wait for all work to finish. Later runs repeat the message with the same id."""
    world, drivers = World(Path(life.world)), list[KillingDriver]()

    def wrap(driver: Driver) -> Driver:
        drivers.append(KillingDriver(driver, life.side, life.at))
        return drivers[0]

    def answer(seen: Seen) -> Reply:
        last = seen.messages[-1]
        if last.role == "user" and "[The process" in last.text:
            world.note("told", what=last.text.partition("[The process")[2].partition("]")[0])
            return Reply("I was told.")
        if last.role == "user":
            arguments = {"command": life.command, "hooks": life.hooks}
            return Reply(calls=(Call("process_start", json.dumps(arguments)),))
        return Reply("Started, or not.")

    def show(posted: Posted) -> None:
        world.note("chat", key=posted.post.key, text=posted.markdown)

    chat = FakeChat(on_post=show)
    parts = Overrides(
        models=FakeModels(FakeModel(script=answer)),
        sandbox=HostSandbox(),
        adapters=(chat,),
        access={chat.platform: OPEN},
        wrap_driver=wrap,
    )
    overrides = {
        "permissions": {"default_profile": "open"},
        "engine": {"drain_seconds": 1.0},
        "sandbox": {"kind": "host"},
    }
    async with open_app(load_config(Path(life.home), {}, overrides), parts) as app:
        async with asyncio.timeout(SECONDS_MAX):
            await app[Orchestrator].send(
                Prompt(THREAD, "asked", "start it", Author("ada", trusted=True), app[Clock].now(), message_id="asked")
            )
            await _all_quiet(app)
    return drivers[0].writes


async def _all_quiet(app: Services) -> None:
    while True:
        await app[Clock].sleep(0.05)
        processes = await app[ProcessService].rows.search()
        if any(one.state == "running" or not one.told for one in processes):
            continue
        if not await app[Store].inbox.waiting() and await app[Store].outbox.depth() == 0:
            return


if __name__ == "__main__":
    serve_forked(Life, live)
