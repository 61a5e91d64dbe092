"""Crash tests: a child process answers messages until a chosen durable write kills it.

`python -m shoal.testing.crash` reads orders from standard input, one line of JSON each, and writes one outcome per
order. For each order, it forks a child that opens the app in the order's home directory and delivers the same
messages. The child exits when all messages are answered. If the order names a write, SIGKILL ends the child at that
write. The directory `world` records the effects of the child:

- `model.jsonl`: requests to the model.
- `tools.jsonl`: executed tool calls.
- `chat.jsonl`: messages on the platform, by idempotency key.
"""

import asyncio
import gc
import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.ids import ThreadId, make_thread_id
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.permissions import Action
from shoal.kernel.ports import Invocation, Tool, ToolContext, ToolOutput
from shoal.kernel.traits import Traits
from shoal.net.connections import default_tls
from shoal.sandbox.host import HostSandbox
from shoal.store.driver import Driver
from shoal.store.store import Store
from shoal.testing.chat import OPEN, FakeChat, Posted
from shoal.testing.faults import KillingDriver, Side
from shoal.testing.model import Call, FakeModel, Reply, Seen, follow_directive
from shoal.testing.scenario import FakeModels, replays_alike, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import Prepared, tool
from shoal.tools.registry import Registry

T = TypeVar("T")

ANSWER_SECONDS_MAX = 60.0


class Order(msgspec.Struct, frozen=True):
    """A child process to run.

    - `at`: the number of the write that kills the process, or 0 to let it finish.
    - `threads`: the number of people. Each writes in a separate thread.
    - `messages`: the number of messages from each person.
    - `seed`: selects the order in which people write.
    - `delegating`: the tool (subagent or spawn) that passes each message to a subagent, or empty.
    """

    home: str
    world: str
    side: Side = "before"
    at: int = 0
    seed: int = 0
    threads: int = 2
    messages: int = 2
    delegating: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a child process.

    - `status`: the exit code, or the negative number of the signal that killed it.
    - `writes`: the number of durable writes, or 0 if it was killed.
    """

    status: int
    writes: int = 0


class _End(msgspec.Struct, frozen=True):
    writes: int = 0
    imported: list[str] = []


class World:
    """Observations of a child process, stored in files that survive it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, kind: str, **fields: str | float) -> None:
        """Append an observation as one line of JSON. A single write prevents partial lines."""
        line = json.dumps(fields) + "\n"
        file = os.open(self._folder / f"{kind}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)

    def read(self, kind: str) -> list[Mapping[str, str | float]]:
        path = self._folder / f"{kind}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def note_tool(world: World, name: str = "note") -> Tool:
    """Return a tool that records its executions. It must never run twice for the same call."""

    @tool(Traits(origin="own"), name=name)
    def note(context: ToolContext, text: str = "") -> Invocation:
        """Record the text."""

        async def work() -> ToolOutput:
            call = f"{context.turn}/{context.call_id}"
            world.note("tools", call=call, tool=name, text=text, at=time.time())
            return ToolOutput("noted")

        return Prepared((Action(f"tool:{name}:{text}"),), f"leave the mark {text}", json.dumps(text), work)

    return note


def thread_of(number: int) -> ThreadId:
    return make_thread_id("fake", "harbour", f"person-{number}")


def sayings(order: Order) -> list[tuple[int, str, str]]:
    """Return the order's messages as rows of person, message id and text.

    The seed decides how the messages of different people interleave.
    """
    drawn = random.Random(order.seed)
    left = {person: 0 for person in range(order.threads)}
    rows: list[tuple[int, str, str]] = []
    while left:
        person = drawn.choice(sorted(left))
        number = left[person]
        rounds = drawn.choice((0, 1, 2))
        key = f"{person}.{number}"
        text = f"tools={rounds} tool=note words=3 id={key}"
        if order.delegating:
            task = json.dumps({"task": f"id=c{key} tools=1 tool=note words=3"})
            text = f"id={key} tools=1 tool={order.delegating} words=3 args={task}"
        rows.append((person, key, text))
        left[person] += 1
        if left[person] == order.messages:
            del left[person]
    return rows


async def live(order: Order) -> int:
    world = World(Path(order.world))
    drivers: list[KillingDriver] = []

    def wrap(driver: Driver) -> Driver:
        drivers.append(KillingDriver(driver, order.side, order.at))
        return drivers[0]

    def answer(seen: Seen) -> Reply:
        name = seen.user_text.split("id=")[1].split()[0]
        world.note("model", id=name, round=seen.rounds)
        reply = follow_directive(seen)
        assert isinstance(reply, Reply)
        return reply

    def show(posted: Posted) -> None:
        world.note("chat", key=posted.post.key, thread=posted.post.thread, text=posted.markdown)

    chat = FakeChat(on_post=show)
    parts = Overrides(
        models=FakeModels(FakeModel(script=answer)),
        sandbox=HostSandbox(),
        adapters=(chat,),
        access={chat.platform: OPEN},
        wrap_driver=wrap,
    )
    overrides = {"permissions": {"default_profile": "open"}, "engine": {"drain_seconds": 1.0}}
    config = load_config(Path(order.home), {}, overrides)
    async with open_app(config, parts) as app:
        app[Registry].add(note_tool(world))
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            for person, key, text in sayings(order):
                author, at = Author("someone", trusted=True), app[Clock].now()
                prompt = Prompt(thread_of(person), key, text, author, at, message_id=key)
                while (await app[Orchestrator].send(prompt)).status == "busy":
                    await app[Clock].sleep(0.01)
            wanted = {key for _, key, _ in sayings(order)}
            while not (
                wanted <= {str(line["text"]).split()[2] for line in world.read("chat")}
                and not await app[Store].inbox.waiting()
                and await app[Store].outbox.depth() == 0
            ):
                await app[Clock].sleep(0.02)
        await replays_alike(app)
    return drivers[0].writes


def serve_forked(kind: type[T], live: Callable[[T], Coroutine[object, object, int]]) -> None:
    """Execute each order from standard input in a forked child.

    Children inherit the caches of this process, such as the modules that earlier children imported.
    """
    default_tls()
    asyncio.run(_take_a_turn())
    for line in sys.stdin:
        gc.freeze()  # without this, garbage collection in each child copies every page of the imported modules
        order = msgspec.json.decode(line, type=kind)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            had = set(sys.modules)
            end = _End(asyncio.run(live(order)), [name for name in sys.modules if name not in had])
            os.write(send, msgspec.json.encode(end))
            os._exit(0)
        os.close(send)
        with os.fdopen(receive, "rb") as answers:
            text = answers.read()
        _, status = os.waitpid(child, 0)
        end = msgspec.json.decode(text, type=_End) if text else _End()
        for name in end.imported:
            importlib.import_module(name)
        outcome = Outcome(os.waitstatus_to_exitcode(status), end.writes)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


async def _take_a_turn() -> None:
    model = FakeModel(Reply(calls=(Call("time", "{}"),)), "It is late.")
    with tempfile.TemporaryDirectory(prefix="shoal-first-") as home:
        async with scenario(Path(home), model) as world:
            await world.ada.says("hello")
            await world.is_quiet()


if __name__ == "__main__":
    serve_forked(Order, live)
