"""Whole turns on a cluster with 1, 2 and 4 workers: `python -m bench.scaling` prints a table.

A turn takes the whole path: a person's message on the fake platform, `serve`, PostgreSQL, a worker, answers of the
fake model over HTTP with tool calls between them, the outbox, and the post. The platform, the model, PostgreSQL, one
`serve` and the workers share one machine. bench/cluster.py measures the bookkeeping alone.
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

from tests.chaos.checker import delays, read, violations
from tests.chaos.stand import Load, Server, Stand, server_of
from tests.postgres import private_server

THREADS = 100
TURNS = 10
SECONDS_MAX = 300.0
TICK_SECONDS = 0.02


def measure(workers: int, latency_ms: float, server: Server) -> tuple[float, float, float, int]:
    """Return the turns per second, the median and 95th percentile of the seconds from a message to its answer, and the
    number of violations.
    """
    load = Load(THREADS, TURNS, workers=workers, serves=1, trouble=0.0, latency_ms=latency_ms, seconds_max=SECONDS_MAX)
    with server.database(f"shoal_scaling_{workers}") as database:
        stand = Stand(load, Path(tempfile.mkdtemp(prefix="shoal-scaling-")), database)
        pause = threading.Event()
        try:
            _start(stand, pause)
            began = time.monotonic()
            while (state := stand.state()).answered < state.wanted and time.monotonic() < began + SECONDS_MAX:
                pause.wait(TICK_SECONDS)
            seconds = time.monotonic() - began
            for node in stand.nodes:
                node.stop()
            seen = read(database, stand.chat_logs[0], stand.model_log, stand.tool_log)
        finally:
            stand.close()
    waited = delays(seen)
    wanted = [f"{person}.{number}" for person in range(THREADS) for number in range(TURNS)]
    broken = len(violations(seen, wanted))
    return len(waited) / seconds, waited[len(waited) // 2], waited[len(waited) * 95 // 100], broken


def _start(stand: Stand, pause: threading.Event) -> None:
    """Start the processes one after another, workers first. Wait until each process is ready before starting the
    next.
    """
    for node in sorted(stand.nodes, key=lambda node: node.role, reverse=True):
        node.start()
        while not node.is_ready and node.ended() is None:
            pause.wait(TICK_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay of the model's answers")
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {THREADS} threads × {TURNS} turns")
    print("| workers | turns per second | time to answer, p50 s | p95 s | violations |\n|---|---|---|---|---|")
    with private_server() as address:
        server = server_of(address)
        for workers in options.workers:
            rate, middle, late, broken = measure(workers, options.latency_ms, server)
            print(f"| {workers} | {rate:.1f} | {middle:.2f} | {late:.2f} | {broken} |", flush=True)


if __name__ == "__main__":
    main()
