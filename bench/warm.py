"""Turns in a warm process: plain turns, turns with tools, a long thread, and many concurrent threads."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.child import fake_model, inside, new_home
from bench.plan import FAN, HISTORY, HISTORY_AT, TURNS, Block, Measured
from bench.rows import Row, middle

ROUNDS = 3
LATENCY_MS = 200
HOST = '[sandbox]\nkind = "host"\n'
FLOOR_TIMES_MAX = 2.5
GROWTH_MAX = 1.3
FAN_SECONDS_MAX = 5.0


class Rounds:
    """The results of a plan's rounds, for Shoal and for the bare client."""

    def __init__(self) -> None:
        self.shoal: list[list[Measured]] = []
        self.bare: list[list[Measured]] = []

    def cpu_ms(self, block: int) -> tuple[float, float]:
        """Return the median CPU milliseconds per turn of Shoal and of the bare client."""
        return middle(one[block].cpu_ms for one in self.shoal), middle(one[block].cpu_ms for one in self.bare)

    def wall_ms(self, block: int) -> tuple[float, float]:
        """Return the median wall milliseconds per turn of Shoal and of the bare client."""
        return middle(one[block].wall_ms for one in self.shoal), middle(one[block].wall_ms for one in self.bare)

    def lost(self) -> int:
        """Return the number of lost replies in all rounds."""
        return sum(block.lost for one in self.shoal for block in one)


def _measured(module: str, task: Mapping[str, object], home: Path) -> list[Measured]:
    return msgspec.convert(inside(module, task, home), list[Measured])


def run_rounds(plan: Sequence[Block], rounds: int, *, latency_ms: int = 0, config: str = "") -> Rounds:
    """Record a plan's requests, then measure Shoal and the bare client in turn."""
    found = Rounds()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        requests = Path(folder) / "requests.json"
        with new_home("http://127.0.0.1:1") as home:
            inside("bench.turns", {"plan": plan, "record": str(requests)}, home)
        for _ in range(rounds):
            with fake_model(latency_ms) as url, new_home(url, config) as home:
                found.shoal.append(_measured("bench.turns", {"plan": plan}, home))
                task = {"plan": plan, "url": url, "requests": str(requests)}
                found.bare.append(_measured("bench.floor", task, home))
    return found


def turns() -> list[Row]:
    """Measure plain turns, and turns with ten tool calls in the default sandbox and on the host."""
    found = run_rounds(TURNS, ROUNDS)
    plain, tools = len(TURNS) - 2, len(TURNS) - 1
    rows = [
        Row("plain turn, CPU", "ms", *found.cpu_ms(plain), bound=FLOOR_TIMES_MAX),
        Row("plain turn, wall", "ms", *found.wall_ms(plain)),
    ]
    sandboxes = [("bubblewrap", found)] if shutil.which("bwrap") else []
    sandboxes.append(("host", run_rounds(TURNS, ROUNDS, config=HOST)))
    for sandbox, one in sandboxes:
        rows.append(Row(f"turn with 10 tool calls, {sandbox}, CPU", "ms", *one.cpu_ms(tools)))
        rows.append(Row(f"turn with 10 tool calls, {sandbox}, wall", "ms", *one.wall_ms(tools)))
    return rows


def history() -> list[Row]:
    """Measure the CPU time per turn as a thread grows. Shoal's own part excludes the bare request's CPU time."""
    found = run_rounds(HISTORY, 1)
    at = {turn: found.cpu_ms(block) for turn, block in HISTORY_AT.items()}
    own = {turn: shoal - bare for turn, (shoal, bare) in at.items()}
    rows = [Row(f"turn {turn} of a thread, CPU", "ms", *pair) for turn, pair in at.items()]
    growth = Row("turn 500 : turn 10, own CPU", "x", own[500] / own[10], bound=GROWTH_MAX)
    return [*rows, growth]


def fan() -> list[Row]:
    """Measure 200 concurrent threads of 5 turns with a slow model."""
    found = run_rounds(FAN, 1, latency_ms=LATENCY_MS)
    threads, each = FAN[-1].threads, FAN[-1].turns
    wall, bare_wall = (value * each / 1000 for value in found.wall_ms(-1))
    cpu, bare_cpu = (value * each * threads / 1000 for value in found.cpu_ms(-1))
    name = f"{threads} threads x {each} turns at {LATENCY_MS} ms"
    return [
        Row(
            f"{name}, wall",
            "s",
            wall,
            bare_wall,
            note=f"target: <= {FAN_SECONDS_MAX:g} s; lost replies: {found.lost()}",
        ),
        Row(f"{name}, CPU", "s", cpu, bare_cpu),
    ]
