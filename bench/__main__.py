"""Run the benchmarks and print a table: `python -m bench`. `--json` prints JSON, and `--only` selects benchmarks."""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable

import msgspec

from bench import checkpoints, cluster, cold, context, decisions, engine, growth, large, memory, page, past, size, warm
from bench.child import ROOT
from bench.rows import Row, table

MEASURES: dict[str, Callable[[], list[Row]]] = {
    "cold": cold.measure,
    "turns": warm.turns,
    "history": warm.history,
    "fan": warm.fan,
    "context": context.measure,
    "decisions": decisions.measure,
    "checkpoints": checkpoints.measure,
    "past": past.measure,
    "memory": memory.measure,
    "page": page.measure,
    "large": large.measure,
    "size": size.measure,
    "growth": growth.measure,
    "engine": engine.measure,
    "cluster": cluster.measure,
}
RESULTS = ROOT / "bench" / "results"


def loop_ms() -> float:
    """Return the CPU time of a fixed loop in milliseconds, as a measure of the machine's current speed."""
    began = time.process_time()
    total = 0
    for number in range(200_000):
        total ^= number * 31
    return (time.process_time() - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), default=list(MEASURES), help="run only these")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    rows: list[Row] = []
    speeds: list[float] = []
    began = time.time()
    for name in options.only:
        speeds.append(loop_ms())
        rows += MEASURES[name]()
    speeds.append(loop_ms())
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "loop_ms": [round(one, 1) for one in speeds],
        "seconds": round(time.time() - began),
    }
    lines = [msgspec.to_builtins(row) | {"ratio": row.ratio, "met": row.is_met} for row in rows]
    report = json.dumps({"machine": machine, "rows": lines}, indent=1)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / time.strftime("%Y%m%d-%H%M%S.json", time.gmtime())).write_text(report + "\n")
    if options.json:
        print(report)
        return
    print(table(rows))
    print(
        f"\n{machine['cpus']} CPUs, Python {machine['python']}, load {machine['load']}, {machine['seconds']} s. A "
        f"fixed loop took {min(speeds):.0f} to {max(speeds):.0f} ms of CPU between measurements (noise)."
    )


if __name__ == "__main__":
    main()
