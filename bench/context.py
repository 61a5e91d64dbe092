"""The cost of long conversations: building a request after new events, and the delay of other threads during a
compaction."""

import asyncio
import gc
import tempfile
import time
from pathlib import Path

from bench.rows import Row, middle
from shoal.kernel.clock import Clock
from shoal.kernel.events import AssistantSaid, Compacted, TurnFinished, TurnStarted, UserSaid
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.ports import Models, Route
from shoal.kernel.records import Commit
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.orchestrator import Orchestrator
from shoal.turn.context import ContextBuilder
from shoal.turn.run import TurnRun

EVENTS = 5_000
REQUESTS = 200
REQUEST_MS_MAX = 5.0
TOKENS = 200_000
CHARS_PER_TOKEN = 4
PAUSE_MS_MAX = 20.0
TICK_SECONDS = 0.001
WINDOW = {"context": {"window_hours": 0}}
WORDS = "The quick brown fox jumps over the lazy dog, again and again. "


def measure() -> list[Row]:
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    request_ms, messages = await _request()
    pause_ms, kept = await _pause()
    return [
        Row("request in a 5,000-event thread, after new events", "ms CPU", request_ms, bound=REQUEST_MS_MAX,
            note=f"{messages} messages sent"),
        Row("longest pause of other threads, compacting 200,000 tokens", "ms", pause_ms, bound=PAUSE_MS_MAX,
            note=f"{kept} entries left"),
    ]  # fmt: skip


async def _fill(world: World, turns: int, text: str) -> None:
    """Append turns of four events each, as the app would write them."""
    store, thread, ada = world.app[Store], world.ada.thread, Author("ada", "ada", trusted=True)
    for number in range(turns):
        prompt = Prompt(thread, f"filled {number}", f"{number}: {text}", ada, world.app[Clock].now())
        await store.inbox.accept(prompt, 5)
        lease = await store.journal.lease(thread)
        assert lease is not None
        turn = TurnId(f"T{number}")
        opening = (TurnStarted("main", "demo"), UserSaid(prompt.text, ada, prompt.key))
        await store.journal.open_turn(lease, prompt, Commit(turn, opening))
        ending = (AssistantSaid(f"noted {number}: {text}"), TurnFinished("done"))
        await store.journal.finish_turn(lease, Commit(turn, ending))


async def _request() -> tuple[float, int]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        gate = Gate()
        async with scenario(
            Path(folder), FakeModel("ok", Reply("ok", gate=gate)), settings=WINDOW, replays=False
        ) as world:
            run, route, context = await _prepared(world, EVENTS // 4, WORDS)
            spent: list[float] = []
            request, _ = context.request(run, route, context.shares(run, route), tools=True)
            for number in range(REQUESTS):
                await run.view.note(UserSaid(f"more {number}", Author("ada", "ada", trusted=True)))
                began = time.process_time()
                request, _ = context.request(run, route, context.shares(run, route), tools=True)
                spent.append((time.process_time() - began) * 1000)
            gate.open()
            return middle(spent), len(request.messages)


async def _prepared(world: World, turns: int, text: str) -> tuple[TurnRun, Route, ContextBuilder]:
    """Return an open turn in a thread of this length, with the route and the builder for its requests."""
    await world.ada.says("hi")
    await world.ada.sees("ok")
    app, thread = world.app, world.ada.thread
    await _fill(world, turns, text)
    await world.ada.says("go on")
    await world.model.wait_for_calls(2)
    run = _run(app, thread)
    return run, app[Models].route(run.scope.agent.model), app[ContextBuilder]


def _run(app: Services, thread: ThreadId) -> TurnRun:
    run = vars(app[Orchestrator])["_actors"][thread]._run
    assert isinstance(run, TurnRun)
    return run


async def _pause() -> tuple[float, int]:
    """Measure the event loop's longest pause in milliseconds, from the message that triggers a compaction until the
    conversation is summarized.
    """
    turns = 400
    text = WORDS * (TOKENS * CHARS_PER_TOKEN // (2 * turns * len(WORDS)))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        async with scenario(Path(folder), FakeModel(*["ok"] * 6), settings=WINDOW, replays=False) as world:
            await world.ada.says("hi")
            await world.ada.sees("ok")
            await _fill(world, turns, text)
            gc.collect()
            info = await world.app[Store].journal.thread(world.ada.thread)
            last_seq = info.last_seq if info is not None else 0
            await world.ada.says("go on")
            longest = await _longest_pause(world, last_seq)
            return longest * 1000, len(_run(world.app, world.ada.thread).view.transcript.entries)


async def _longest_pause(world: World, after: int) -> float:
    """Return the event loop's longest pause in seconds before the conversation is summarized."""
    longest, until = 0.0, time.monotonic() + 20
    while not await _compacted(world, after) and time.monotonic() < until:
        for _ in range(20):
            began = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            longest = max(longest, time.perf_counter() - began - TICK_SECONDS)
    assert await _compacted(world, after), "the conversation was not summarized within 20 seconds"
    return longest


async def _compacted(world: World, after: int) -> bool:
    events = await world.app[Store].journal.events(world.ada.thread, after)
    return any(isinstance(event.data, Compacted) for event in events)
