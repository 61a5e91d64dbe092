"""The cost of going back in a long conversation: a fork of ten thousand events, and replay of past requests."""

import asyncio
import tempfile
import time
from pathlib import Path

from bench.rows import Row, middle
from shoal.agents.registry import AgentRegistry
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.kernel.clock import Clock
from shoal.kernel.events import AssistantSaid, Event, EventData, UserSaid
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.ports import Models
from shoal.services import Services
from shoal.store.store import Store
from shoal.testing.chat import OPEN, FakeChat
from shoal.testing.model import FakeModel, Seen
from shoal.testing.scenario import FakeModels
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.registry import Registry
from shoal.turn.context import ContextBuilder
from shoal.turn.replay import Today, replay_thread

EVENTS = 10_000
TURNS = 400
ROUNDS = 5
FORK_MS_MAX = 500.0
CALLS_A_SECOND_MIN = 2_000.0
LONG, TALK = ThreadId("web:lobby:long"), ThreadId("web:lobby:talk")
OWNER = Author("owner", trusted=True)


def measure(database: str = "") -> list[Row]:
    """Measure the milliseconds of a fork, and the number of replayed model calls per second."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        return asyncio.run(_measure(Path(folder), database))


async def _measure(home: Path, database: str) -> list[Row]:
    def answer(seen: Seen) -> str:
        return f"The tide is {len(seen.messages)}."

    chat = FakeChat()
    parts = Overrides(models=FakeModels(FakeModel(script=answer)), adapters=(chat,), access={chat.platform: OPEN})
    settings: dict[str, object] = {"database": {"url": database}, "mailbox": {"pause_seconds": 0}}
    async with open_app(load_config(home, {}, settings), parts) as app:
        said: list[EventData] = [UserSaid("how is the sea? " * 10, OWNER), AssistantSaid("calm " * 60)] * (EVENTS // 2)
        now = app[Clock].now()
        events = [Event(seq, LONG, TurnId(""), now, data) for seq, data in enumerate(said, 1)]
        assert await app[Store].journal.add_thread(LONG, "main", "long", events)
        forks = [await _fork_ms(app, number) for number in range(ROUNDS)]
        for number in range(TURNS):
            await _turn(app, number)
        rates = [await _calls_a_second(app) for _ in range(ROUNDS)]
    return [
        Row(f"fork of a thread of {EVENTS:,} events", "ms", middle(forks), bound=FORK_MS_MAX,
            note=f"at most {max(forks):.0f} ms"),
        Row("past model calls replayed", "1/s", middle(rates), bound=CALLS_A_SECOND_MIN, at_least=True,
            note=f"a conversation of {TURNS} turns; at least {min(rates):,.0f}"),
    ]  # fmt: skip


async def _fork_ms(app: Services, number: int) -> float:
    began = time.perf_counter()
    await app[Forks].fork(LONG, ThreadId(f"web:lobby:copy{number}"), "owner")
    return (time.perf_counter() - began) * 1000


async def _turn(app: Services, number: int) -> None:
    prompt = Prompt(TALK, str(number), f"{number}: how is the sea?", OWNER, app[Clock].now(), message_id=str(number))
    await app[Orchestrator].send(prompt)
    while True:
        info = await app[Store].journal.thread(TALK)
        if info is not None and info.last_seq >= 4 * (number + 1):
            return
        await asyncio.sleep(0.001)


async def _calls_a_second(app: Services) -> float:
    began = time.perf_counter()
    today = Today(app[ContextBuilder], app[Models], app[Registry].every(), app[AgentRegistry].known)
    report = await replay_thread(app[Store].journal, TALK, app[ContextBuilder].meter, today)
    assert (report.calls, report.identical) == (TURNS, TURNS), report
    return report.calls / (time.perf_counter() - began)
