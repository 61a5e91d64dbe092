"""A soak test of one process on SQLite under a steady load: `python -m tests.chaos.soak`. The exit code is 1 if its use
of resources grows.

People on two platforms do everything that a chat allows, and no harm is done. The model's window is small, so each
conversation is compacted several times in half an hour, like a real one in weeks. Not all conversations fit in
memory. A turn takes about 25 ms of one core, and the simulated model and platforms need as much again. The default
load fills one core.

The run samples memory, descriptors, threads and the write-ahead log of the process every few seconds. The first part
of the run is a warm-up. The rest is divided into `FLOORS` parts, and the minimum of each is compared: peaks come
from work in progress, but a leak raises the minimum. The growth is the median slope between all pairs of minimums
(Theil-Sen), multiplied by the duration. A measure is flat if it grows by less than one unit or by less than
`GROWTH_MAX` of its median.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import psutil

from tests.chaos import rules
from tests.chaos.stand import Load, Stand, adopt

GROWTH_MAX = 0.02
CONTEXT_TOKENS = 9_000
"""Window size. Instructions and tools take a third of it, so each conversation is compacted several times."""
WARM_UP = 0.5
"""Share of the run that is not judged. Until then the number of conversations in memory grows."""
LOOKS_MAX = 200
FLOORS = 12
TURNS_MAX = 100_000
TABLES = ("events", "inbox", "outbox", "approvals", "audit", "triggers", "occurrences", "processes", "settings")
MEASURES: Mapping[str, Callable[[psutil.Process, Path], float]] = {
    "memory, MiB": lambda process, home: process.memory_info().rss / 1024**2,
    "descriptors": lambda process, home: process.num_fds(),
    "threads": lambda process, home: process.num_threads(),
    "write-ahead log, MiB": lambda process, home: (home / "shoal.db-wal").stat().st_size / 1024**2,
}


def floors(looks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    size = max(1, len(looks) // FLOORS)
    return [min(looks[at : at + size], key=lambda look: look[1]) for at in range(0, len(looks), size)]


def growth(looks: Sequence[tuple[float, float]]) -> float:
    """Return the growth from the first sample to the last, by the median slope. Samples are (time, value)."""
    slopes = [(after - before) / (then - now) for (now, before), (then, after) in combinations(looks, 2) if then > now]
    return statistics.median(slopes) * (looks[-1][0] - looks[0][0]) if slopes else 0.0


def is_flat(looks: Sequence[tuple[float, float]]) -> bool:
    """Return True if a value grew by less than `GROWTH_MAX` of its median, or by less than one unit."""
    middle = statistics.median(value for _, value in looks)
    return growth(looks) <= max(GROWTH_MAX * middle, 0.99)


def watch(stand: Stand, seconds: float, turns: int) -> dict[str, list[tuple[float, float]]]:
    (node,) = stand.nodes
    assert node.process is not None
    process, home = psutil.Process(node.process.pid), stand.folder / "home"
    looks: dict[str, list[tuple[float, float]]] = {what: [] for what in MEASURES}
    began, pause = time.monotonic(), threading.Event()
    every, printed = max(1.0, seconds / LOOKS_MAX), 0
    while (now := time.monotonic() - began) < seconds and (answered := stand.state().answered) < turns:
        for what, measure in MEASURES.items():
            looks[what].append((now, measure(process, home)))
        if answered >= printed:
            values = ", ".join(f"{what} {samples[-1][1]:.1f}" for what, samples in looks.items())
            print(f"{now:6.0f} s, {answered} turns: {values}", flush=True)
            printed = answered + turns // 20
        pause.wait(every)
    return looks


def report(stand: Stand, looks: Mapping[str, list[tuple[float, float]]]) -> bool:
    """Print the samples. Return True if all measures are flat."""
    answered = stand.state().answered
    counts = {table: rules.select(stand.tables, f"select count(*) from {table}")[0][0] for table in TABLES}
    print("rows: " + ", ".join(f"{table} {count}" for table, count in counts.items()))
    size = (stand.folder / "home" / "shoal.db").stat().st_size
    print(f"database: {size / 1024**2:.1f} MiB, {size / max(answered, 1) / 1024:.1f} KiB a turn")
    waits = [seconds for seconds, _, _ in rules.waits(stand.record())]
    print(f"{answered} turns, waited p50 {waits[len(waits) // 2]:.2f} s, p99 {waits[int(len(waits) * 0.99)]:.2f} s")
    flat = True
    for what, samples in looks.items():
        judged = floors(samples[int(len(samples) * WARM_UP) :])
        ok = is_flat(judged)
        flat = flat and ok
        said = "flat" if ok else "not flat"
        print(f"{what}: {judged[0][1]:.1f} → {judged[-1][1]:.1f}, growth {growth(judged):+.2f}: {said}")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--turns", type=int, default=TURNS_MAX, help="so many at most")
    parser.add_argument("--rate", type=float, default=20.0, help="turns a second")
    parser.add_argument("--threads", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    adopt()
    load = Load(
        options.threads, TURNS_MAX, options.seed, options.seconds,
        trouble=0.0, latency_ms=50.0, alone=True, mixed=True, people_pause_seconds=options.threads / options.rate,
        context_tokens=CONTEXT_TOKENS,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as folder:
        stand = Stand(load, Path(folder), "")
        try:
            stand.start()
            stand.wait_ready()
            return 0 if report(stand, watch(stand, options.seconds, options.turns)) else 1
        finally:
            stand.close()


if __name__ == "__main__":
    sys.exit(main())
