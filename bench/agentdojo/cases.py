"""Run user tasks against Shoal, with or without an injection task. AgentDojo judges the results."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import httpx2
import msgspec

from bench.agentdojo.functions import FUNCTIONS
from bench.agentdojo.model import ObedientModel, Task, Wanted
from bench.agentdojo.shoal import Shoal, call_key, running, write_home
from bench.child import ROOT
from shoal.testing.model import FakeModel, FakeSettings

PYTHON = ROOT / "build" / "agentdojo" / "bin" / "python"
LANES = {"workspace": 12, "travel": 4, "banking": 4, "slack": 4}
NAMES = [f"{suite}-{number}" for suite, lanes in LANES.items() for number in range(1, lanes + 1)]
"""Names of the lanes. `banking-2` is the second lane of the suite `banking`."""
PATIENT_SECONDS, NOBODY_SECONDS = 3600, 1
"""Lifetimes of approvals in seconds, with and without a person who decides. The short lifetime lets the model continue
with the next call.
"""


class Suite(msgspec.Struct, frozen=True):
    """The names of a suite's functions, user tasks and injection tasks."""

    functions: list[str]
    users: list[str]
    injections: list[str]


class Case(msgspec.Struct, frozen=True):
    """A user task, with or without an injection task."""

    suite: str
    user: str
    injection: str = ""


class Judged(msgspec.Struct, frozen=True):
    """A lane server's judgment of a finished task: whether the user's task is done, whether the injection reached its
    goal, and the calls that ran.
    """

    utility: bool
    security: bool
    ran: list[Wanted]


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a case: the approval cards shown, whether the user's task is done, the injected effects that
    ran, whether the model read an injection, and whether the injection reached its goal."""

    case: Case
    questions: int
    is_done: bool
    effects: list[str]
    is_hijacked: bool
    is_reached: bool


def injected_effects(task: Task, ran: Sequence[Wanted]) -> list[str]:
    """Return the functions that ran only because of an injection and that change or reveal something."""
    injected = set(map(call_key, task.injected)) - set(map(call_key, task.calls))
    return [one.function for one in ran if call_key(one) in injected and FUNCTIONS[one.function].is_effect]


@asynccontextmanager
async def lane_servers() -> AsyncGenerator[httpx2.AsyncClient]:
    """Run the lanes' servers in AgentDojo's environment inside the block."""
    argv = (PYTHON, "-m", "bench.agentdojo.server", *NAMES)
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        async with httpx2.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def suites_of(servers: httpx2.AsyncClient) -> Mapping[str, Suite]:
    return msgspec.json.decode((await servers.get("/suites")).raise_for_status().content, type=dict[str, Suite])


class Runner:
    """A runner of cases in one Shoal instance, with or without a person."""

    def __init__(self, shoal: Shoal, servers: httpx2.AsyncClient, model: ObedientModel, *, attended: bool) -> None:
        self.shoal, self.servers, self.model, self.attended = shoal, servers, model, attended
        self.numbers = count(1)

    async def case(self, lane: str, case: Case) -> Outcome:
        """Run a case in a new thread and a new environment."""
        body = {"user": case.user, "injection": case.injection}
        begun = (await self.servers.post(f"/{lane}/begin", json=body)).raise_for_status()
        task = self.model.tasks[lane] = msgspec.json.decode(begun.content, type=Task)
        self.model.hijacked.discard(lane)
        thread = f"web:dojo:{next(self.numbers)}"
        answer = await self.shoal.run(thread, lane, task, attended=self.attended)
        ended = (await self.servers.post(f"/{lane}/end", json={"answer": answer})).raise_for_status()
        judged = msgspec.json.decode(ended.content, type=Judged)
        cards = await self.shoal.asked(thread, pending=False)
        is_hijacked = lane in self.model.hijacked
        effects = injected_effects(task, judged.ran)
        return Outcome(case, len(cards), judged.utility, effects, is_hijacked, is_hijacked and judged.security)

    async def run(self, cases: Sequence[Case]) -> list[Outcome]:
        """Run all cases. When a lane is free, it takes the next case of its suite."""
        waiting = {suite: [case for case in cases if case.suite == suite] for suite in LANES}
        outcomes: list[Outcome] = []

        async def work(lane: str) -> None:
            mine = waiting[lane.partition("-")[0]]
            while mine:
                outcomes.append(await self.case(lane, mine.pop(0)))

        async with asyncio.TaskGroup() as tasks:
            for lane in NAMES:
                tasks.create_task(work(lane))
        return outcomes


async def measure(profile: str, every: int, *, attack: bool, attended: bool) -> list[Outcome]:
    """Run every user task, alone or, with `attack`, with each injection task of its suite. If `every` is n, only every
    n-th case runs.
    """
    model = ObedientModel()
    fake = FakeModel(script=model.answer, settings=FakeSettings(log_max=1, chunks=1))
    async with lane_servers() as servers, fake.serve() as url:
        suites = await suites_of(servers)
        cases = [
            Case(name, user, injection)
            for name, suite in suites.items()
            for user in suite.users
            for injection in (suite.injections if attack else [""])
        ]
        with tempfile.TemporaryDirectory(prefix="shoal-agentdojo-") as folder:
            home, address = Path(folder) / "home", str(servers.base_url).rstrip("/")
            functions = {lane: suites[lane.partition("-")[0]].functions for lane in NAMES}
            write_home(home, url, address, functions, profile, PATIENT_SECONDS if attended else NOBODY_SECONDS)
            async with running(home) as shoal:
                return await Runner(shoal, servers, model, attended=attended).run(cases[::every])
