"""Shoal processes that die on a poisoned message.

`python -m tests.scenarios.poison_life` reads one `Life` per line of standard input, as JSON. It runs each in a
forked child and prints the `Outcome` (see `shoal.testing.crash`).
"""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.crash_log import SET_ASIDE, SetAside
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.traits import Traits
from shoal.sandbox.host import HostSandbox
from shoal.store.driver import Driver
from shoal.store.store import Store
from shoal.testing.chat import OPEN, FakeChat, Posted
from shoal.testing.crash import World, serve_forked
from shoal.testing.model import Call, FakeModel, Reply, Seen
from shoal.testing.scenario import FakeModels, WatchedDriver
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool

SECONDS_MAX = 30.0
DEATH = 9
THREAD: ThreadId = make_thread_id("fake", "harbour", "1")
OTHER: ThreadId = make_thread_id("fake", "harbour", "2")
Where = Literal["model", "tool", "opening", "post"]


class Life(msgspec.Struct, frozen=True):
    """One run.

    - `where`: the step at which the word `poison` ends the process.
    - `database`: the URL of a shared PostgreSQL database, or empty for SQLite.
    """

    home: str
    world: str
    where: Where
    database: str = ""


async def live(life: Life) -> int:
    world = World(Path(life.world))

    def die(where: Where, text: str) -> None:
        if life.where == where and "poison" in text:
            world.note("deaths", where=where)
            os._exit(DEATH)

    def answer(seen: Seen) -> Reply:
        last = seen.messages[-1]
        die("model", last.text)
        if last.role == "user" and life.where == "tool" and "poison" in last.text:
            return Reply(calls=(Call("fall", '{"what": "poison"}'),))
        return Reply(f"Answered {last.text.partition('(')[0].strip()}.")

    @tool(Traits(idempotent=True))
    async def fall(what: str) -> str:
        """Accept any text."""
        die("tool", what)
        return "stood"

    def show(posted: Posted) -> None:
        die("post", posted.markdown)
        world.note("chat", thread=posted.post.thread, text=posted.markdown)

    class Chat(FakeChat):
        async def history(self, thread: ThreadId, after: datetime | None, limit: int) -> AsyncIterator[Prompt]:
            die("opening", "poison" if thread == THREAD else "")
            for message in ():
                yield message

    drivers: list[WatchedDriver] = []

    def watch(driver: Driver) -> Driver:
        drivers.append(WatchedDriver(driver))
        return drivers[-1]

    chat = Chat(on_post=show)
    parts = Overrides(
        models=FakeModels(FakeModel(script=answer)),
        sandbox=HostSandbox(),
        adapters=(chat,),
        access={chat.platform: OPEN},
        tools=(fall,),
        wrap_driver=watch,
    )
    settings = {
        "permissions": {"default_profile": "open"},
        "engine": {"drain_seconds": 1.0, "heartbeat_seconds": 0.2, "stalled_seconds": 1.0},
        "database": {"url": life.database},
        "sandbox": {"kind": "host"},
        "mailbox": {"pause_seconds": 0},
    }
    async with open_app(load_config(Path(life.home), {}, settings), parts) as app, asyncio.timeout(SECONDS_MAX):
        for thread, text in ((OTHER, "hello"), (THREAD, "poison")):
            author = Author("ada", trusted=True)
            await app[Orchestrator].send(Prompt(thread, text, text, author, app[Clock].now(), message_id=text))
        while await app[Store].inbox.waiting() or await app[Store].outbox.depth():
            await drivers[0].moves()
        for _, stored in await app[Store].settings.page(SET_ASIDE):
            world.note("aside", lane=msgspec.json.decode(stored, type=SetAside).lane)
    return 0


if __name__ == "__main__":
    serve_forked(Life, live)
